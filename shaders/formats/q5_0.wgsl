// Q5_0: plane 0 nibbles, plane 1 fifth bits (32 a word), plane 2 f16 scales (2 a word, rows padded).
const GROUP_OCTETS: u32 = 4u;
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let low = nibbles(weight[row * (p.cols / 8u) + o]);
    let high = high_bits(row, o);
    return array<vec4<f32>, 2>(low[0] + 16.0 * high[0], low[1] + 16.0 * high[1]);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let d = half_at(p.plane2, row, g);
    return vec2<f32>(d, -16.0 * d);
}
