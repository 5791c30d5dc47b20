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
//@if KV_F16
@group(0) @binding(2) var<storage, read> keys: array<vec2<u32>>; // [pages, 32, K, d], halves
//@else
//@if KV_Q8
@group(0) @binding(2) var<storage, read> keys: array<u32>; // [pages] of bytes [32, K, d], then scales [32, K d / 32]
//@else
@group(0) @binding(2) var<storage, read> keys: array<vec4<f32>>; // [pages, 32, K, d]
//@end
//@end
//@if KV_F16
@group(0) @binding(3) var<storage, read> values: array<u32>; // [pages, 32, K, d], halves
//@else
//@if KV_Q8
@group(0) @binding(3) var<storage, read> values: array<u32>; // [pages] of bytes [32, K, d], then scales [32, K d / 32]
//@else
@group(0) @binding(3) var<storage, read> values: array<f32>; // [pages, 32, K, d]
//@end
//@end
@group(0) @binding(4) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(5) var<storage, read> tables: array<u32>; // [lanes, max_pages]
@group(0) @binding(6) var<storage, read_write> y: array<f32>; // [tokens, H, d]

const QUADS: u32 = HEAD_DIM / 4u;
const OWN: u32 = (HEAD_DIM + 63u) / 64u;
var<workgroup> scores: array<f32, 64>;
var<workgroup> slots: array<u32, 64>;

// Four keys of one position's head.
fn key_quad(slot: u32, head: u32, i: u32) -> vec4<f32> {
//@if KV_F16
    let words = keys[(slot * p.kv_heads + head) * QUADS + i];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
//@else
//@if KV_Q8
    let width = p.kv_heads * QUADS * 4u;
    let page = slot / 32u * 9u * width;
    let at = head * QUADS + i;
    let bytes = bitcast<i32>(keys[page + slot % 32u * (width / 4u) + at]);
    let scale = bitcast<f32>(keys[page + 8u * width + slot % 32u * (width / 32u) + at / 8u]);
    let whole = vec4<i32>(extractBits(bytes, 0u, 8u), extractBits(bytes, 8u, 8u), extractBits(bytes, 16u, 8u), extractBits(bytes, 24u, 8u));
    return vec4<f32>(whole) * scale;
//@else
    return keys[(slot * p.kv_heads + head) * QUADS + i];
//@end
//@end
}

// One value of one position's head.
fn value_at(slot: u32, head: u32, dim: u32) -> f32 {
//@if KV_F16
    let at = (slot * p.kv_heads + head) * HEAD_DIM + dim;
    let pair = unpack2x16float(values[at / 2u]);
    return select(pair.x, pair.y, at % 2u == 1u);
//@else
//@if KV_Q8
    let width = p.kv_heads * HEAD_DIM;
    let page = slot / 32u * 9u * width;
    let at = head * HEAD_DIM + dim;
    let bytes = bitcast<i32>(values[page + slot % 32u * (width / 4u) + at / 4u]);
    let scale = bitcast<f32>(values[page + 8u * width + slot % 32u * (width / 32u) + at / 32u]);
    return f32(extractBits(bytes, at % 4u * 8u, 8u)) * scale;
//@else
    return values[(slot * p.kv_heads + head) * HEAD_DIM + dim];
//@end
//@end
}

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
            var product = 0.0;
            for (var i = 0u; i < QUADS; i++) {
                product += dot(q[mine + i], key_quad(slot, kv_head, i));
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
            for (var j = 0u; j < OWN; j++) {
                if local + j * 64u < HEAD_DIM {
                    sum[j] += weight * value_at(slots[i], kv_head, local + j * 64u);
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
