// MXFP4: plane 0 E2M1 codes (8 a word; the codebook is doubled), plane 1 power-of-two exponent bytes per 32 weights
// (a row padded to whole words).
const GROUP_OCTETS: u32 = 4u;
const CODEBOOK = array<f32, 16>(
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0);
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return coded(weight[row * (p.cols / 8u) + o], CODEBOOK);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let e = byte_at(p.plane1, row * ((p.cols / 32u + 3u) / 4u) * 4u + g);
    return vec2<f32>(0.5 * bitcast<f32>(e << 23u), 0.0);
}
