// Weighted sum of a row's experts: y[t, i] = sum over j of weight[t, j] · h[t · used + j, i].
// Grid: (ceil(cols / WORKGROUP), tokens, 1).
struct Params {
    cols: u32,
    used: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> h: array<f32>; // [tokens · used, cols]
@group(0) @binding(2) var<storage, read> routes: array<vec2<u32>>; // [tokens, used] of (expert, weight bits)
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [tokens, cols]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= p.cols {
        return;
    }
    var sum = 0.0;
    for (var j = 0u; j < p.used; j++) {
        let at = id.y * p.used + j;
        sum += bitcast<f32>(routes[at].y) * h[at * p.cols + id.x];
    }
    y[id.y * p.cols + id.x] = sum;
}
