// y[t, i] = act(gate[t, i]) · g[t, offset + i].
// Grid: (ceil(cols / WORKGROUP), tokens, 1).
struct Params {
    cols: u32,
    g_stride: u32,
    offset: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> gate: array<f32>; // [tokens, cols]
@group(0) @binding(2) var<storage, read> g: array<f32>; // [tokens, g_stride]
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [tokens, cols]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.cols {
        let at = id.y * p.cols + id.x;
        y[at] = activate(gate[at]) * g[id.y * p.g_stride + p.offset + id.x];
    }
}
