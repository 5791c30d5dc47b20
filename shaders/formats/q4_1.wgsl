// Q4_1: plane 0 nibbles (8 a word), plane 1 f16 scale and minimum of a block in one word.
const GROUP_OCTETS: u32 = 4u;
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return nibbles(weight[row * (p.cols / 8u) + o]);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    return unpack2x16float(weight[p.plane1 + row * (p.cols / 32u) + g]);
}
