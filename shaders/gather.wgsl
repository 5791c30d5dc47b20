// The rows that want logits or drafts: y[i] = x[wanted[i]]. Grid: (ceil(cols / WORKGROUP), wanted rows, 1).
struct Params {
    cols: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [tokens, cols]
@group(0) @binding(2) var<storage, read> wanted: array<u32>; // [R]
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [R, cols]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.cols {
        y[id.y * p.cols + id.x] = x[wanted[id.y] * p.cols + id.x];
    }
}
