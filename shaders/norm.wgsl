// RMS norm of each run of `group` columns: y = x / sqrt(mean(x²) + eps) · weight.
// Grid: (runs per row, tokens, 1), one workgroup a run.
struct Params {
    group: u32,
    stride: u32,
    eps: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [tokens, stride]
//@if WEIGHT
@group(0) @binding(2) var<storage, read> norm: array<f32>; // [group]
//@end
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [tokens, stride]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) run: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let base = run.y * p.stride + run.x * p.group;
    var squares = 0.0;
    for (var i = local; i < p.group; i += WORKGROUP) {
        squares += x[base + i] * x[base + i];
    }
    let factor = inverseSqrt(total(local, squares) / f32(p.group) + p.eps);
    for (var i = local; i < p.group; i += WORKGROUP) {
//@if WEIGHT
        y[base + i] = x[base + i] * factor * norm[i];
//@else
        y[base + i] = x[base + i] * factor;
//@end
    }
}
