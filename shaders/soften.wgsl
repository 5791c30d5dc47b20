// What the soft embeddings share: soft[place of row c] = (+) sum over v of weights[c, offset + v] · table[start_row + v].
struct Params {
    cols: u32,
    plane1: u32,
    plane2: u32,
    plane3: u32,
    start_row: u32,
    count: u32,
    tokens: u32,
    stride: u32,
    offset: u32,
    is_first: u32,
    canvas: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // table [rows, cols] in planes
@group(0) @binding(2) var<storage, read> weights: array<f32>; // [C, stride]
@group(0) @binding(3) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(4) var<storage, read> wanted: array<u32>; // [C]
@group(0) @binding(5) var<storage, read_write> soft: array<f32>; // [lanes, canvas, cols]

const NO_PLACE: u32 = 0xffffffffu;

/// Where row c's embedding starts, if it belongs to a block.
fn place(c: u32) -> u32 {
    if c >= p.tokens {
        return NO_PLACE;
    }
    let row = step_rows[wanted[c]];
    let offset = row.w & 0x7fffu;
    return select((row.z * p.canvas + offset) * p.cols, NO_PLACE, row.w == 0u || offset >= p.canvas);
}

fn keep(at: u32, value: f32) {
    var before = 0.0;
    if p.is_first == 0u {
        before = soft[at];
    }
    soft[at] = before + value;
}
