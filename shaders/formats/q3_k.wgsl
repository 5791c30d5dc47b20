// Q3_K: plane 0 low two bits (16 a word), plane 1 high bits (32 a word), plane 2 signed scale bytes per 16 weights,
// plane 3 f32 super scale per 256.
const GROUP_OCTETS: u32 = 2u;
fn two_bits(plane: u32, row: u32, o: u32) -> array<vec4<f32>, 2> {
    let bits = weight[plane + row * (p.cols / 16u) + o / 2u] >> ((o & 1u) * 16u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)),
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(8u, 10u, 12u, 14u)) & vec4<u32>(3u)),
    );
}
fn high_bits(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let bits = weight[p.plane1 + row * (p.cols / 32u) + o / 4u] >> ((o % 4u) * 8u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)),
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(1u)),
    );
}
fn byte_at(plane: u32, index: u32) -> u32 {
    return (weight[plane + index / 4u] >> ((index % 4u) * 8u)) & 255u;
}
fn signed_byte(b: u32) -> f32 {
    return f32(i32(b << 24u) >> 24u);
}
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let low = two_bits(0u, row, o);
    let high = high_bits(row, o);
    return array<vec4<f32>, 2>(low[0] + 4.0 * high[0], low[1] + 4.0 * high[1]);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let d = bitcast<f32>(weight[p.plane3 + row * (p.cols / 256u) + g / 16u]);
    let s = d * signed_byte(byte_at(p.plane2, row * (p.cols / 16u) + g));
    return vec2<f32>(s, -4.0 * s);
}
