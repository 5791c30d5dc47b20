// Positions (first, end) that a row sees: all up to its own, or all of its block and what comes before that. The block is
// one word: offset of the row in bits 0 to 14, its length from bit 16 on; 0 without one. A window counts from the block's
// first position.
fn visible(row: vec4<u32>) -> vec2<u32> {
    let start = row.y - (row.w & 0x7fffu);
    var first = 0u;
    if p.window > 0u && start >= p.window {
        first = start + 1u - p.window;
    }
    return vec2<u32>(first, start + max(row.w >> 16u, 1u));
}
