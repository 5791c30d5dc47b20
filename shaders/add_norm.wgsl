// Residual step: x = (x + a) · scale, a RMS-normed by `post` first if POST; then y = RMS norm of x by `next` if NEXT.
// Grid: (tokens, 1, 1), one workgroup a row.
struct Params {
    cols: u32,
    eps: f32,
    scale: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>; // [tokens, cols]
@group(0) @binding(2) var<storage, read> a: array<f32>; // [tokens, cols]
//@if POST
@group(0) @binding(3) var<storage, read> post: array<f32>; // [cols]
//@end
//@if NEXT
@group(0) @binding(4) var<storage, read> next: array<f32>; // [cols]
@group(0) @binding(5) var<storage, read_write> y: array<f32>; // [tokens, cols]
//@end

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) row: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let base = row.x * p.cols;
//@if POST
    var squares = 0.0;
    for (var i = local; i < p.cols; i += WORKGROUP) {
        squares += a[base + i] * a[base + i];
    }
    let factor = inverseSqrt(total(local, squares) / f32(p.cols) + p.eps);
//@end
    var after = 0.0;
    for (var i = local; i < p.cols; i += WORKGROUP) {
//@if POST
        let value = (x[base + i] + a[base + i] * factor * post[i]) * p.scale;
//@else
        let value = (x[base + i] + a[base + i]) * p.scale;
//@end
        x[base + i] = value;
        after += value * value;
    }
//@if NEXT
    let unit = inverseSqrt(total(local, after) / f32(p.cols) + p.eps);
    for (var i = local; i < p.cols; i += WORKGROUP) {
        y[base + i] = x[base + i] * unit * next[i];
    }
//@end
}
