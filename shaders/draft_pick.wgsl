// Third pass of a draft: one invocation a row walks the candidate's chunk to the token at which the draw is reached.
// The chunk's logits start at its first token in a row of all (whole = 1), or at 0 in a row of their own.
// Grid: (ceil(C / WORKGROUP), 1, 1).
struct Params {
    rows: u32,
    stride: u32,
    whole: u32,
    forbidden: u32,
    softcap: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [C, stride]
@group(0) @binding(2) var<storage, read> drafts: array<Draft>; // [C]
@group(0) @binding(3) var<storage, read> summary: array<Summary>; // [C]
@group(0) @binding(4) var<storage, read_write> columns: array<f32>; // [C, 6]: the last two

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= p.rows {
        return;
    }
    let row = summary[id.x];
    let base = id.x * p.stride + p.whole * row.first;
    var sum = 0.0;
    var is_found = false;
    var chosen = row.first;
    var chosen_z = NEVER;
    for (var i = 0u; i < row.count; i++) {
        if row.first + i == p.forbidden {
            continue;
        }
        let z = capped(logits[base + i]) / drafts[id.x].temperature;
        let weight = exp(z - row.high);
        sum += weight;
        // Where rounding keeps the sum just short of the target, the last possible token is the candidate.
        if weight > 0.0 || !is_found {
            chosen = row.first + i;
            chosen_z = z;
            is_found = true;
        }
        if sum >= row.left {
            break;
        }
    }
    columns[id.x * 6u + 4u] = f32(chosen);
    columns[id.x * 6u + 5u] = chosen_z - row.high - log(row.mass);
}
