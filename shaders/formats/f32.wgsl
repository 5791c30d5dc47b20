// F32: plane 0 holds one word per weight.
const GROUP_OCTETS: u32 = 1u;
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let i = row * p.cols + o * 8u;
    return array<vec4<f32>, 2>(
        bitcast<vec4<f32>>(vec4<u32>(weight[i], weight[i + 1u], weight[i + 2u], weight[i + 3u])),
        bitcast<vec4<f32>>(vec4<u32>(weight[i + 4u], weight[i + 5u], weight[i + 6u], weight[i + 7u])),
    );
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}
