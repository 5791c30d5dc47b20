// Q6_K: plane 0 nibbles, plane 1 high two bits (16 a word), plane 2 signed scale bytes per 16 weights,
// plane 3 f32 super scale per 256.
const GROUP_OCTETS: u32 = 2u;
fn nibbles(word: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u)),
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u)),
    );
}
fn two_bits(plane: u32, row: u32, o: u32) -> array<vec4<f32>, 2> {
    let bits = weight[plane + row * (p.cols / 16u) + o / 2u] >> ((o & 1u) * 16u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)),
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(8u, 10u, 12u, 14u)) & vec4<u32>(3u)),
    );
}
fn byte_at(plane: u32, index: u32) -> u32 {
    return (weight[plane + index / 4u] >> ((index % 4u) * 8u)) & 255u;
}
fn signed_byte(b: u32) -> f32 {
    return f32(i32(b << 24u) >> 24u);
}
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let low = nibbles(weight[row * (p.cols / 8u) + o]);
    let high = two_bits(p.plane1, row, o);
    return array<vec4<f32>, 2>(low[0] + 16.0 * high[0], low[1] + 16.0 * high[1]);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let d = bitcast<f32>(weight[p.plane3 + row * (p.cols / 256u) + g / 16u]);
    let s = d * signed_byte(byte_at(p.plane2, row * (p.cols / 16u) + g));
    return vec2<f32>(s, -32.0 * s);
}
