// MXFP4: plane 0 E2M1 codes (8 a word; the codebook is doubled), plane 1 power-of-two exponent bytes per 32 weights
// (a row padded to whole words).
const GROUP_OCTETS: u32 = 4u;
const CODEBOOK = array<f32, 16>(
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0);
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    var codes = CODEBOOK;
    let w = weight[row * (p.cols / 8u) + o];
    return array<vec4<f32>, 2>(
        vec4<f32>(codes[w & 15u], codes[(w >> 4u) & 15u], codes[(w >> 8u) & 15u], codes[(w >> 12u) & 15u]),
        vec4<f32>(codes[(w >> 16u) & 15u], codes[(w >> 20u) & 15u], codes[(w >> 24u) & 15u], codes[w >> 28u]),
    );
}
fn byte_at(plane: u32, index: u32) -> u32 {
    return (weight[plane + index / 4u] >> ((index % 4u) * 8u)) & 255u;
}
fn signed_byte(b: u32) -> f32 {
    return f32(i32(b << 24u) >> 24u);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let e = byte_at(p.plane1, row * ((p.cols / 32u + 3u) / 4u) * 4u + g);
    return vec2<f32>(0.5 * bitcast<f32>(e << 23u), 0.0);
}
