// Attention over paged keys and values for GPUs: one workgroup a (row, head); 64 positions at a time, one invocation a
// score, then one invocation per few output dimensions; online softmax between the tiles. A row sees what `visible` says.
// Grid: (H, tokens, 1).
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
@group(0) @binding(3) var<storage, read> values: array<f32>; // [pages, 32, K, d]
@group(0) @binding(4) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(5) var<storage, read> tables: array<u32>; // [lanes, max_pages]
@group(0) @binding(6) var<storage, read_write> y: array<f32>; // [tokens, H, d]

const QUADS: u32 = HEAD_DIM / 4u;
const OWN: u32 = (HEAD_DIM + 63u) / 64u;
var<workgroup> scores: array<f32, 64>;
var<workgroup> slots: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let head = group.x;
    let row = step_rows[group.y];
    let kv_head = head / (p.heads / p.kv_heads);
    let mine = (group.y * p.heads + head) * QUADS;
    let seen = visible(row);
    var best = -3.0e38;
    var mass = 0.0;
    var sum: array<f32, OWN>;
    for (var tile = seen.x; tile < seen.y; tile += 64u) {
        let at = tile + local;
        var score = -3.0e38;
        if at < seen.y {
            let slot = tables[row.z * p.max_pages + at / 32u] * 32u + at % 32u;
            let base = (slot * p.kv_heads + kv_head) * QUADS;
            var product = 0.0;
            for (var i = 0u; i < QUADS; i++) {
                product += dot(q[mine + i], keys[base + i]);
            }
            score = product * p.scale;
            slots[local] = slot;
        }
        scores[local] = score;
        workgroupBarrier();
        let count = min(64u, seen.y - tile);
        var higher = best;
        for (var i = 0u; i < count; i++) {
            higher = max(higher, scores[i]);
        }
        let keep = exp(best - higher);
        best = higher;
        mass *= keep;
        for (var j = 0u; j < OWN; j++) {
            sum[j] *= keep;
        }
        for (var i = 0u; i < count; i++) {
            let weight = exp(scores[i] - higher);
            mass += weight;
            let base = (slots[i] * p.kv_heads + kv_head) * HEAD_DIM + local;
            for (var j = 0u; j < OWN; j++) {
                if local + j * 64u < HEAD_DIM {
                    sum[j] += weight * values[base + j * 64u];
                }
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < OWN; j++) {
        let dim = local + j * 64u;
        if dim < HEAD_DIM {
            y[(group.y * p.heads + head) * HEAD_DIM + dim] = sum[j] / mass;
        }
    }
}
