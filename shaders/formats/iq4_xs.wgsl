// IQ4_XS: plane 0 codebook indices (8 a word), plane 1 signed scale bytes per 32 weights, plane 2 f32 super scale per 256.
const GROUP_OCTETS: u32 = 4u;
const CODEBOOK = array<f32, 16>(
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0);
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return coded(weight[row * (p.cols / 8u) + o], CODEBOOK);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let d = bitcast<f32>(weight[p.plane2 + row * (p.cols / 256u) + g / 8u]);
    return vec2<f32>(d * signed_byte(byte_at(p.plane1, row * (p.cols / 32u) + g)), 0.0);
}
