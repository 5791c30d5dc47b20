// NVFP4: plane 0 E2M1 codes (8 a word; the codebook is doubled), plane 1 unsigned E4M3 scale bytes per 16 weights.
const GROUP_OCTETS: u32 = 2u;
const CODEBOOK = array<f32, 16>(
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0);
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return coded(weight[row * (p.cols / 8u) + o], CODEBOOK);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let s = byte_at(p.plane1, row * (p.cols / 16u) + g);
    let mantissa = f32(s & 7u);
    let e = (s >> 3u) & 15u;
    let normal = (1.0 + mantissa / 8.0) * bitcast<f32>((e + 120u) << 23u);
    let value = select(normal, mantissa / 512.0, e == 0u);
    return vec2<f32>(select(0.5 * value, 0.0, (s & 127u) == 127u), 0.0);
}
