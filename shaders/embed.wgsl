// Embedding rows: y[t, c] = scale · table[token of row t, c]; a row's token may be the one its lane sampled last.
// The table may be split: this dispatch holds rows first_row .. first_row + rows.
// Grid: (ceil(cols / 8 / WORKGROUP), tokens, 1).
struct Params {
    rows: u32,
    cols: u32,
    first_row: u32,
    plane1: u32,
    plane2: u32,
    plane3: u32,
    scale: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [rows, cols] in planes
@group(0) @binding(2) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(3) var<storage, read> sampled: array<u32>; // [lanes]
@group(0) @binding(4) var<storage, read_write> y: array<f32>; // [tokens, cols]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let o = id.x;
    let step_row = step_rows[id.y];
    var token = step_row.x;
    if token == 0xffffffffu {
        token = sampled[step_row.z];
    }
    if o >= p.cols / 8u || token < p.first_row || token >= p.first_row + p.rows {
        return;
    }
    let row = token - p.first_row;
    let q = octet(row, o);
    let s = group_scale(row, o / GROUP_OCTETS);
    for (var i = 0u; i < 4u; i++) {
        y[id.y * p.cols + o * 8u + i] = (q[0][i] * s.x + s.y) * p.scale;
        y[id.y * p.cols + o * 8u + 4u + i] = (q[1][i] * s.x + s.y) * p.scale;
    }
}
