// Second pass of a draft: one invocation a row puts its parts together and finds the chunk in which the cumulative
// probability reaches the draw. Entropy is ln(mass) - moment / mass.
// Grid: (ceil(C / WORKGROUP), 1, 1).
struct Params {
    rows: u32,
    chunks: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> parts: array<Part>; // [C, chunks]
@group(0) @binding(2) var<storage, read> drafts: array<Draft>; // [C]
@group(0) @binding(3) var<storage, read_write> summary: array<Summary>; // [C]
@group(0) @binding(4) var<storage, read_write> columns: array<f32>; // [C, 6]: the first four

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= p.rows {
        return;
    }
    let base = id.x * p.chunks;
    var whole = parts[base];
    for (var i = 1u; i < p.chunks; i++) {
        whole = merged(whole, parts[base + i]);
    }
    // The target and the search add up the same numbers in the same order: a draw of 1 is reached.
    var total = 0.0;
    for (var i = 0u; i < p.chunks; i++) {
        total += parts[base + i].mass * exp(parts[base + i].high - whole.high);
    }
    let reach = drafts[id.x].draw * total;
    var found = Summary(whole.high, whole.mass, 0.0, 0u, 0u);
    var before = 0.0;
    for (var i = 0u; i < p.chunks; i++) {
        let part = parts[base + i];
        // A chunk of nothing but the forbidden token holds no candidate.
        if part.mass > 0.0 {
            found.left = reach - before;
            found.first = part.first;
            found.count = part.count;
            before += part.mass * exp(part.high - whole.high);
            if before >= reach {
                break;
            }
        }
    }
    summary[id.x] = found;
    let log_mass = log(whole.mass);
    columns[id.x * 6u] = f32(whole.best);
    columns[id.x * 6u + 1u] = -log_mass;
    columns[id.x * 6u + 2u] = whole.second - whole.high - log_mass;
    columns[id.x * 6u + 3u] = max(log_mass - whole.moment / whole.mass, 0.0);
}
