// Q4_0: plane 0 nibbles (8 a word), plane 1 f16 scales (2 a word, each row padded to a word).
const GROUP_OCTETS: u32 = 4u;
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return nibbles(weight[row * (p.cols / 8u) + o]);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let d = half_at(p.plane1, row, g);
    return vec2<f32>(d, -8.0 * d);
}
