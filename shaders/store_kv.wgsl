// Packs new keys and values into pages of a smaller type. An invocation has one block of a row's keys and of its values,
// and so all bits of the words that it writes. Grid: (ceil(width / BLOCK / WORKGROUP), tokens, 1).
struct Params {
    width: u32,
    max_pages: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> new_0: array<f32>; // [tokens, K, d] keys
@group(0) @binding(2) var<storage, read> new_1: array<f32>; // [tokens, K, d] values
@group(0) @binding(3) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(4) var<storage, read> tables: array<u32>; // [lanes, max_pages]
@group(0) @binding(5) var<storage, read_write> pages_0: array<u32>; // keys
@group(0) @binding(6) var<storage, read_write> pages_1: array<u32>; // values

const BLOCK: u32 = 32u;

fn byte(value: f32, inverse: f32) -> u32 {
    return bitcast<u32>(i32(clamp(round(value * inverse), -127.0, 127.0))) & 0xffu;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let blocks = p.width / BLOCK;
    if id.x >= blocks {
        return;
    }
    let row = step_rows[id.y];
    let page = tables[row.z * p.max_pages + row.y / 32u];
    let position = row.y % 32u;
    let source = id.y * p.width + id.x * BLOCK;
//@each i 2
//@if KV_F16
    let start_$i = ((page * 32u + position) * p.width + id.x * BLOCK) / 2u;
    for (var j = 0u; j < BLOCK / 2u; j++) {
        let pair = vec2<f32>(new_$i[source + 2u * j], new_$i[source + 2u * j + 1u]);
        pages_$i[start_$i + j] = pack2x16float(pair);
    }
//@else
    var peak_$i = 0.0;
    for (var j = 0u; j < BLOCK; j++) {
        peak_$i = max(peak_$i, abs(new_$i[source + j]));
    }
    let scale_$i = unpack2x16float(pack2x16float(vec2<f32>(min(peak_$i / 127.0, 65504.0), 0.0))).x;
    let inverse_$i = select(0.0, 1.0 / scale_$i, scale_$i > 0.0);
    let start_$i = page * 9u * p.width + position * (p.width / 4u) + id.x * (BLOCK / 4u);
    for (var j = 0u; j < BLOCK / 4u; j++) {
        let at = source + 4u * j;
        pages_$i[start_$i + j] = byte(new_$i[at], inverse_$i) | byte(new_$i[at + 1u], inverse_$i) << 8u
            | byte(new_$i[at + 2u], inverse_$i) << 16u | byte(new_$i[at + 3u], inverse_$i) << 24u;
    }
    pages_$i[page * 9u * p.width + 8u * p.width + position * blocks + id.x] = bitcast<u32>(scale_$i);
//@end
//@end
}
