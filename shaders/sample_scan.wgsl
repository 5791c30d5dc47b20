// First pass of sampling: each workgroup looks at CHUNK logits of one row and leaves the raw maximum, the sum of
// exponentials below it, and the best penalised logit with its id (the lower id on ties).
// Grid: (chunks, R, 1).
struct Params {
    vocab: u32,
    chunks: u32,
    softcap: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [R, vocab]
@group(0) @binding(2) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(3) var<storage, read> wanted: array<u32>; // [R]
@group(0) @binding(4) var<storage, read> lanes: array<Lane>;
@group(0) @binding(5) var<storage, read> counts: array<u32>; // [lanes, vocab]
@group(0) @binding(6) var<storage, read_write> scan: array<vec4<f32>>; // [R, chunks]

var<workgroup> raw: array<vec2<f32>, WORKGROUP>;
var<workgroup> best: array<vec2<f32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let lane_index = step_rows[wanted[group.y]].z;
    let lane = lanes[lane_index];
    let end = min((group.x + 1u) * CHUNK, p.vocab);
    var top = vec2<f32>(-3.0e38, 0.0);
    var first = -3.0e38;
    var first_id = 0u;
    for (var id = group.x * CHUNK + local; id < end; id += WORKGROUP) {
        let logit = capped(logits[group.y * p.vocab + id]);
        if logit > top.x {
            top = vec2<f32>(logit, top.y * exp(top.x - logit) + 1.0);
        } else {
            top.y += exp(logit - top.x);
        }
        var value = logit;
        if lane.penalised == 1u {
            value = penalise(lane, logit, counts[lane_index * p.vocab + id]);
        }
        if value > first {
            first = value;
            first_id = id;
        }
    }
    raw[local] = top;
    // Ids stay below 2^24, so they are exact as floats.
    best[local] = vec2<f32>(first, f32(first_id));
    for (var step = WORKGROUP / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if local < step {
            let a = raw[local];
            let b = raw[local + step];
            let high = max(a.x, b.x);
            raw[local] = vec2<f32>(high, a.y * exp(a.x - high) + b.y * exp(b.x - high));
            let c = best[local];
            let d = best[local + step];
            if d.x > c.x || (d.x == c.x && d.y < c.y) {
                best[local] = d;
            }
        }
    }
    if local == 0u {
        scan[group.y * p.chunks + group.x] = vec4<f32>(raw[0], best[0]);
    }
}
