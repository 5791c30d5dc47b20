// Self-conditioning signals: y[t] = soft[place of row t], or zeros where the row's block is not conditioned (bit 15).
// Grid: (ceil(cols / WORKGROUP), tokens, 1).
struct Params {
    cols: u32,
    canvas: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> soft: array<f32>; // [lanes, canvas, cols]
@group(0) @binding(2) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [tokens, cols]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= p.cols {
        return;
    }
    let row = step_rows[id.y];
    let offset = row.w & 0x7fffu;
    var value = 0.0;
    if (row.w & 0x8000u) != 0u && offset < p.canvas {
        value = soft[(row.z * p.canvas + offset) * p.cols + id.x];
    }
    y[id.y * p.cols + id.x] = value;
}
