// Turns a tile of logits into probabilities times `scale`, in place.
// Grid: (ceil(count / WORKGROUP), C, 1).
struct Params {
    stride: u32,
    offset: u32,
    first: u32,
    count: u32,
    forbidden: u32,
    softcap: f32,
    scale: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>; // [C, stride], the tile from offset on
@group(0) @binding(2) var<storage, read> drafts: array<Draft>; // [C]
@group(0) @binding(3) var<storage, read> summary: array<Summary>; // [C]

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= p.count {
        return;
    }
    let at = id.y * p.stride + p.offset + id.x;
    var weight = 0.0;
    if p.first + id.x != p.forbidden {
        let z = capped(logits[at]) / drafts[id.y].temperature;
        weight = exp(z - summary[id.y].high) / summary[id.y].mass * p.scale;
    }
    logits[at] = weight;
}
