// Q2_K: plane 0 two-bit quants (16 a word), plane 1 a byte per 16 weights (scale low, minimum high nibble),
// plane 2 f16 super scale and super minimum per 256.
const GROUP_OCTETS: u32 = 2u;
fn two_bits(plane: u32, row: u32, o: u32) -> array<vec4<f32>, 2> {
    let bits = weight[plane + row * (p.cols / 16u) + o / 2u] >> ((o & 1u) * 16u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)),
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(8u, 10u, 12u, 14u)) & vec4<u32>(3u)),
    );
}
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return two_bits(0u, row, o);
}
fn byte_at(plane: u32, index: u32) -> u32 {
    return (weight[plane + index / 4u] >> ((index % 4u) * 8u)) & 255u;
}
fn signed_byte(b: u32) -> f32 {
    return f32(i32(b << 24u) >> 24u);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let b = byte_at(p.plane1, row * (p.cols / 16u) + g);
    let d = unpack2x16float(weight[p.plane2 + row * (p.cols / 256u) + g / 16u]);
    return vec2<f32>(d.x * f32(b & 15u), -d.y * f32(b >> 4u));
}
