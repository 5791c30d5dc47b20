// Makes one layer's page `to` equal to its page `from`, keys and values. Grid: (ceil(quads / WORKGROUP), copies, 1).
struct Params {
    quads: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> copies: array<vec2<u32>>; // [copies] of (from, to), all ones for none
@group(0) @binding(2) var<storage, read_write> keys: array<vec4<u32>>; // [pages] of `quads` each
@group(0) @binding(3) var<storage, read_write> values: array<vec4<u32>>; // [pages] of `quads` each

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let pages = copies[id.y];
    if id.x >= p.quads || pages.x == 0xffffffffu {
        return;
    }
    keys[pages.y * p.quads + id.x] = keys[pages.x * p.quads + id.x];
    values[pages.y * p.quads + id.x] = values[pages.x * p.quads + id.x];
}
