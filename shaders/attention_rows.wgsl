// Attention over paged keys and values without workgroup memory: one invocation a (row, head), online softmax.
// A row sees what `visible` says. The shape of work for software adapters. Grid: (ceil(H / WORKGROUP), tokens, 1).
struct Params {
    heads: u32,
    kv_heads: u32,
    window: u32,
    max_pages: u32,
    scale: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>; // [tokens, H, d]
@group(0) @binding(2) var<storage, read> keys: array<vec4<f32>>; // [pages, 32, K, d]
@group(0) @binding(3) var<storage, read> values: array<vec4<f32>>; // [pages, 32, K, d]
@group(0) @binding(4) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(5) var<storage, read> tables: array<u32>; // [lanes, max_pages]
@group(0) @binding(6) var<storage, read_write> y: array<vec4<f32>>; // [tokens, H, d]

const QUADS: u32 = HEAD_DIM / 4u;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let head = id.x;
    if head >= p.heads {
        return;
    }
    let row = step_rows[id.y];
    let kv_head = head / (p.heads / p.kv_heads);
    let mine = (id.y * p.heads + head) * QUADS;
    let seen = visible(row);
    var best = -3.0e38;
    var mass = 0.0;
    var sum: array<vec4<f32>, QUADS>;
    for (var at = seen.x; at < seen.y; at++) {
        let slot = tables[row.z * p.max_pages + at / 32u] * 32u + at % 32u;
        let base = (slot * p.kv_heads + kv_head) * QUADS;
        var score = 0.0;
        for (var i = 0u; i < QUADS; i++) {
            score += dot(q[mine + i], keys[base + i]);
        }
        score *= p.scale;
        let higher = max(best, score);
        let keep = exp(best - higher);
        let weight = exp(score - higher);
        best = higher;
        mass = mass * keep + weight;
        for (var i = 0u; i < QUADS; i++) {
            sum[i] = sum[i] * keep + weight * values[base + i];
        }
    }
    for (var i = 0u; i < QUADS; i++) {
        y[mine + i] = sum[i] / mass;
    }
}
