// Q5_1: plane 0 nibbles, plane 1 fifth bits (32 a word), plane 2 f16 scale and minimum in one word.
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
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    return unpack2x16float(weight[p.plane2 + row * (p.cols / 32u) + g]);
}
