// F16: plane 0 holds two weights a word; unpack2x16float needs no f16 support.
const GROUP_OCTETS: u32 = 1u;
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let i = row * (p.cols / 2u) + o * 4u;
    return array<vec4<f32>, 2>(
        vec4<f32>(unpack2x16float(weight[i]), unpack2x16float(weight[i + 1u])),
        vec4<f32>(unpack2x16float(weight[i + 2u]), unpack2x16float(weight[i + 3u])),
    );
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}
