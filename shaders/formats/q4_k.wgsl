// Q4_K: plane 0 nibbles, plane 1 scale and minimum bytes per 32 weights (2 blocks a word),
// plane 2 f16 super scale and super minimum per 256.
const GROUP_OCTETS: u32 = 4u;
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return nibbles(weight[row * (p.cols / 8u) + o]);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let both = weight[p.plane1 + row * (p.cols / 64u) + g / 2u] >> ((g & 1u) * 16u);
    let super_scale = unpack2x16float(weight[p.plane2 + row * (p.cols / 256u) + g / 8u]);
    return vec2<f32>(super_scale.x * f32(both & 255u), -super_scale.y * f32((both >> 8u) & 255u));
}
