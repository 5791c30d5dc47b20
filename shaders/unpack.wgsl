// How planes of words are taken apart; every format file may use these.
// A format file gives `octet(row, o)`, eight raw weights, and `group_scale(row, g)`, their (factor, offset), where a group
// is GROUP_OCTETS octets: weight = factor · raw + offset.

/// Eight four-bit numbers of a word, the lowest bits first.
fn nibbles(word: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u)),
        vec4<f32>((vec4<u32>(word) >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u)),
    );
}

/// One more bit for each weight of octet `o`, from plane 1 (32 a word).
fn high_bits(row: u32, o: u32) -> array<vec4<f32>, 2> {
    let bits = weight[p.plane1 + row * (p.cols / 32u) + o / 4u] >> ((o % 4u) * 8u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)),
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(1u)),
    );
}

/// Two bits for each weight of octet `o`, from the plane at word `plane` (16 a word).
fn two_bits(plane: u32, row: u32, o: u32) -> array<vec4<f32>, 2> {
    let bits = weight[plane + row * (p.cols / 16u) + o / 2u] >> ((o & 1u) * 16u);
    return array<vec4<f32>, 2>(
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)),
        vec4<f32>((vec4<u32>(bits) >> vec4<u32>(8u, 10u, 12u, 14u)) & vec4<u32>(3u)),
    );
}

/// The f16 of group `g` of a row: two a word, each row padded to a word.
fn half_at(plane: u32, row: u32, g: u32) -> f32 {
    let both = unpack2x16float(weight[plane + row * ((p.cols / 32u + 1u) / 2u) + g / 2u]);
    return select(both.x, both.y, (g & 1u) == 1u);
}

/// Byte `index` of the plane at word `plane`.
fn byte_at(plane: u32, index: u32) -> u32 {
    return (weight[plane + index / 4u] >> ((index % 4u) * 8u)) & 255u;
}

/// A byte as a number from -128 to 127.
fn signed_byte(b: u32) -> f32 {
    return f32(i32(b << 24u) >> 24u);
}

/// Eight values looked up by the four-bit numbers of a word.
fn coded(w: u32, codebook: array<f32, 16>) -> array<vec4<f32>, 2> {
    var codes = codebook;
    return array<vec4<f32>, 2>(
        vec4<f32>(codes[w & 15u], codes[(w >> 4u) & 15u], codes[(w >> 8u) & 15u], codes[(w >> 12u) & 15u]),
        vec4<f32>(codes[(w >> 16u) & 15u], codes[(w >> 20u) & 15u], codes[(w >> 24u) & 15u], codes[w >> 28u]),
    );
}
