// Q8_0: plane 0 signed bytes (4 a word), plane 1 f16 scales (2 a word, each row padded to a word).
const GROUP_OCTETS: u32 = 4u;
fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let i = row * (p.cols / 4u) + o * 2u;
    return array<vec4<f32>, 2>(signed_bytes(weight[i]), signed_bytes(weight[i + 1u]));
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    return vec2<f32>(half_at(p.plane1, row, g), 0.0);
}
