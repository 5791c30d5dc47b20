// Attention over paged keys and values for software adapters, whose loads cost more than their arithmetic: a workgroup
// has HEADS query heads of one key/value head, each of its invocations every WORKGROUPth position for all of them, with
// an online softmax; then the invocations' sums are merged, ROUND quads of each head at a time.
// A row sees what `visible` says. Grid: (H / HEADS, tokens, 1).
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
@group(0) @binding(3) var<storage, read> values: array<vec2<u32>>; // [pages, 32, K, d], halves
//@else
//@if KV_Q8
@group(0) @binding(3) var<storage, read> values: array<u32>; // [pages] of bytes [32, K, d], then scales [32, K d / 32]
//@else
@group(0) @binding(3) var<storage, read> values: array<vec4<f32>>; // [pages, 32, K, d]
//@end
//@end
@group(0) @binding(4) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(5) var<storage, read> tables: array<u32>; // [lanes, max_pages]
@group(0) @binding(6) var<storage, read_write> y: array<vec4<f32>>; // [tokens, H, d]

// Of each invocation and head: largest score, sum of exponentials below it.
var<workgroup> stats: array<vec2<f32>, WORKGROUP * HEADS>;
var<workgroup> parts: array<vec4<f32>, WORKGROUP * HEADS * ROUND>;

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

// Four values of one position's head.
fn value_quad(slot: u32, head: u32, i: u32) -> vec4<f32> {
//@if KV_F16
    let words = values[(slot * p.kv_heads + head) * QUADS + i];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
//@else
//@if KV_Q8
    let width = p.kv_heads * QUADS * 4u;
    let page = slot / 32u * 9u * width;
    let at = head * QUADS + i;
    let bytes = bitcast<i32>(values[page + slot % 32u * (width / 4u) + at]);
    let scale = bitcast<f32>(values[page + 8u * width + slot % 32u * (width / 32u) + at / 8u]);
    let whole = vec4<i32>(extractBits(bytes, 0u, 8u), extractBits(bytes, 8u, 8u), extractBits(bytes, 16u, 8u), extractBits(bytes, 24u, 8u));
    return vec4<f32>(whole) * scale;
//@else
    return values[(slot * p.kv_heads + head) * QUADS + i];
//@end
//@end
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let first_head = group.x * HEADS;
    let row = step_rows[group.y];
    let kv_head = first_head / (p.heads / p.kv_heads);
    let mine = (group.y * p.heads + first_head) * QUADS;
    let seen = visible(row);
//@each h HEADS
    var query_$h: array<vec4<f32>, QUADS>;
    var sum_$h: array<vec4<f32>, QUADS>;
    var best_$h = -3.0e38;
    var mass_$h = 0.0;
//@each i QUADS
    query_$h[$i] = q[mine + $hu * QUADS + $iu] * p.scale;
//@end
//@end
    for (var at = seen.x + local; at < seen.y; at += WORKGROUP) {
        let slot = tables[row.z * p.max_pages + at / 32u] * 32u + at % 32u;
//@each h HEADS
        var score_$h = 0.0;
//@end
//@each i QUADS
        let key_$i = key_quad(slot, kv_head, $iu);
//@each h HEADS
        score_$h += dot(query_$h[$i], key_$i);
//@end
//@end
//@each h HEADS
        let higher_$h = max(best_$h, score_$h);
        let keep_$h = exp(best_$h - higher_$h);
        let weight_$h = exp(score_$h - higher_$h);
        best_$h = higher_$h;
        mass_$h = mass_$h * keep_$h + weight_$h;
//@end
//@each i QUADS
        let value_$i = value_quad(slot, kv_head, $iu);
//@each h HEADS
        sum_$h[$i] = sum_$h[$i] * keep_$h + weight_$h * value_$i;
//@end
//@end
    }
//@each h HEADS
    stats[$hu * WORKGROUP + local] = vec2<f32>(best_$h, mass_$h);
//@end
    workgroupBarrier();
//@each h HEADS
    var top_$h = -3.0e38;
    for (var i = 0u; i < WORKGROUP; i++) {
        top_$h = max(top_$h, stats[$hu * WORKGROUP + i].x);
    }
    var total_$h = 0.0;
    for (var i = 0u; i < WORKGROUP; i++) {
        let stat = stats[$hu * WORKGROUP + i];
        total_$h += stat.y * exp(stat.x - top_$h);
    }
    let share_$h = exp(best_$h - top_$h) / total_$h;
//@end
//@each round ROUNDS
    if $roundu > 0u {
        workgroupBarrier();
    }
//@each h HEADS
//@each i ROUND
    if $roundu * ROUND + $iu < QUADS {
        parts[($hu * ROUND + $iu) * WORKGROUP + local] = sum_$h[min($roundu * ROUND + $iu, QUADS - 1u)] * share_$h;
    }
//@end
//@end
    workgroupBarrier();
    for (var at = local; at < HEADS * ROUND; at += WORKGROUP) {
        let quad = $roundu * ROUND + at % ROUND;
        if quad < QUADS {
            var merged = vec4<f32>(0.0);
            for (var i = 0u; i < WORKGROUP; i++) {
                merged += parts[at * WORKGROUP + i];
            }
            y[mine + at / ROUND * QUADS + quad] = merged;
        }
    }
//@end
}
