// Q5_0: plane 0 nibbles, plane 1 fifth bits (32 a word), plane 2 f16 scales (2 a word, rows padded).
const GROUP_OCTETS: u32 = 4u;
fn nibbles(word: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u)),
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u)),
    );
}
fn high_bits(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let bits = weight[p.plane1 + row * (p.cols / 32u) + o / 4u] >> ((o % 4u) * 8u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)),
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(1u)),
    );
}
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let low = nibbles(weight[row * (p.cols / 8u) + o]);
    let high = high_bits(row, o);
    return array<vec4<f32>, 2>(low[0] + 16.0 * high[0], low[1] + 16.0 * high[1]);
}
fn half_at(plane: u32, row: u32, g: u32) -> f32 {
    let both = unpack2x16float(weight[plane + row * ((p.cols / 32u + 1u) / 2u) + g / 2u]);
    return select(both.x, both.y, (g & 1u) == 1u);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let d = half_at(p.plane2, row, g);
    return vec2<f32>(d, -16.0 * d);
}
