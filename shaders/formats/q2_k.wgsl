// Q2_K: plane 0 two-bit quants (16 a word), plane 1 a byte per 16 weights (scale low, minimum high nibble),
// plane 2 f16 super scale and super minimum per 256.
const GROUP_OCTETS: u32 = 2u;
fn octet(row: u32, o: u32) -> array<vec4<f32>, 2> {
    return two_bits(0u, row, o);
}
fn group_scale(row: u32, g: u32) -> vec2<f32> {
    let b = byte_at(p.plane1, row * (p.cols / 16u) + g);
    let d = unpack2x16float(weight[p.plane2 + row * (p.cols / 256u) + g / 16u]);
    return vec2<f32>(d.x * f32(b & 15u), -d.y * f32(b >> 4u));
}
