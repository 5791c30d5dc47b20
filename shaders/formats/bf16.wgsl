// BF16: plane 0 holds two weights a word, each the upper half of an f32.
const GROUP_OCTETS: u32 = 1u;
fn pair(word: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(word << 16u, word & 0xffff0000u));
}
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let i = row * (p.cols / 2u) + o * 4u;
    return array<vec4<f32>, 2>(
        vec4<f32>(pair(weight[i]), pair(weight[i + 1u])),
        vec4<f32>(pair(weight[i + 2u]), pair(weight[i + 3u])),
    );
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}
