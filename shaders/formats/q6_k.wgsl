// Q6_K: plane 0 nibbles, plane 1 high two bits (16 a word), plane 2 signed scale bytes per 16 weights,
// plane 3 f32 super scale per 256.
const GROUP_OCTETS: u32 = 2u;
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
