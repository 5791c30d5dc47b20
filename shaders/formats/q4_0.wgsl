// Q4_0: plane 0 nibbles (8 a word), plane 1 f16 scales (2 a word, each row padded to a word).
const GROUP_OCTETS: u32 = 4u;
fn nibbles(word: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u)),
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u)),
    );
}
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return nibbles(weight[row * (p.cols / 8u) + o]);
}
fn half_at(plane: u32, row: u32, g: u32) -> f32 {
    let both = unpack2x16float(weight[plane + row * ((p.cols / 32u + 1u) / 2u) + g / 2u]);
    return select(both.x, both.y, (g & 1u) == 1u);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let d = half_at(p.plane1, row, g);
    return vec2<f32>(d, -8.0 * d);
}
