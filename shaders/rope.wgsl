// Prepares attention for one row: head norms and rotation of q in place, and of k on its way into the pages, v as well.
// One invocation a pair of dimensions of one head: q heads, then k heads, then v heads.
// Where the pages hold smaller types, keys and values are [tokens, K, d] instead, for `store_kv`.
// Every invocation of a normed head sums the head's squares anew: cheaper than a barrier.
// Grid: (ceil(heads · head_dim / 2 / WORKGROUP), tokens, 1), heads = H + 2K, or H where another layer owns the pages.
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    qkv_stride: u32,
    writes_kv: u32,
    value_from_key: u32,
    unit_value_norm: u32,
    interleaved: u32,
    max_pages: u32,
    eps: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> qkv: array<f32>; // [tokens, qkv_stride]
@group(0) @binding(2) var<storage, read> head_norms: array<f32>; // [2, d]: q then k, ones without norm
@group(0) @binding(3) var<storage, read> inv_freq: array<f32>; // [d / 2]
@group(0) @binding(4) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(5) var<storage, read> tables: array<u32>; // [lanes, max_pages]
@group(0) @binding(6) var<storage, read_write> q: array<f32>; // [tokens, H, d]
@group(0) @binding(7) var<storage, read_write> keys: array<f32>; // [pages, 32, K, d]
@group(0) @binding(8) var<storage, read_write> values: array<f32>; // [pages, 32, K, d]

fn unit_factor(base: u32) -> f32 {
    var squares = 0.0;
    for (var i = 0u; i < p.head_dim; i++) {
        squares += qkv[base + i] * qkv[base + i];
    }
    return inverseSqrt(squares / f32(p.head_dim) + p.eps);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let half = p.head_dim / 2u;
    let head = id.x / half;
    let pair = id.x % half;
    let all_heads = p.heads + select(0u, 2u * p.kv_heads, p.writes_kv == 1u);
    if head >= all_heads {
        return;
    }
    let row = step_rows[id.y];
    let is_q = head < p.heads;
    let is_v = head >= p.heads + p.kv_heads;
    // Where values come from the keys, v head h reads k head h.
    let source = select(head, head - p.kv_heads, is_v && p.value_from_key == 1u);
    let base = id.y * p.qkv_stride + source * p.head_dim;
    var first = pair;
    var second = pair + half;
    if p.interleaved == 1u && !is_v {
        first = 2u * pair;
        second = first + 1u;
    }
    var a = qkv[base + first];
    var b = qkv[base + second];
//@if HEAD_NORM
    if !is_v {
        let factor = unit_factor(base);
        let norm = select(p.head_dim, 0u, is_q);
        a *= factor * head_norms[norm + first];
        b *= factor * head_norms[norm + second];
    }
//@end
    if is_v && p.unit_value_norm == 1u {
        let factor = unit_factor(base);
        a *= factor;
        b *= factor;
    }
    if !is_v {
        let angle = f32(row.y) * inv_freq[pair];
        let c = cos(angle);
        let s = sin(angle);
        let rotated = a * c - b * s;
        b = b * c + a * s;
        a = rotated;
    }
    if is_q {
        let at = (id.y * p.heads + head) * p.head_dim;
        q[at + first] = a;
        q[at + second] = b;
        return;
    }
//@if PACKED
    // Another kernel packs them into the pages.
    let slot = id.y;
//@else
    let slot = tables[row.z * p.max_pages + row.y / 32u] * 32u + row.y % 32u;
//@end
    if is_v {
        let at = (slot * p.kv_heads + head - p.heads - p.kv_heads) * p.head_dim;
        values[at + first] = a;
        values[at + second] = b;
    } else {
        let at = (slot * p.kv_heads + head - p.heads) * p.head_dim;
        keys[at + first] = a;
        keys[at + second] = b;
    }
}
