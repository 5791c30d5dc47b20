// Second pass of sampling: one workgroup a row picks the token. Temperature 0 takes the best penalised logit; otherwise
// min-p, top-k and top-p become one lower bound on the logit (found by radix selection on its sortable bits), and the
// token is the Gumbel maximum above it, with noise from a hash of (seed, position, id). See `laneway-model::sample`.
// Grid: (R, 1, 1).
struct Params {
    vocab: u32,
    chunks: u32,
    softcap: f32,
}
struct Picked {
    token: u32,
    logprob: f32,
    tops: u32,
    unused: u32,
    top_ids: array<u32, 20>,
    top_logprobs: array<f32, 20>,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [R, vocab]
@group(0) @binding(2) var<storage, read> step_rows: array<vec4<u32>>; // [tokens] of (token, position, lane, block)
@group(0) @binding(3) var<storage, read> wanted: array<u32>; // [R]
@group(0) @binding(4) var<storage, read> lanes: array<Lane>;
@group(0) @binding(5) var<storage, read_write> counts: array<u32>; // [lanes, vocab]
@group(0) @binding(6) var<storage, read> scan: array<vec4<f32>>; // [R, chunks]
@group(0) @binding(7) var<storage, read_write> sampled: array<u32>; // [lanes]
@group(0) @binding(8) var<storage, read_write> picked: array<Picked>; // [R]

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> chosen: vec2<u32>;
var<workgroup> best: array<vec2<f32>, WORKGROUP>;
var<workgroup> found: atomic<u32>;

/// Bits whose unsigned order is the order of the floats.
fn sortable(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn hash4(seed: vec4<u32>) -> u32 {
    var v = seed * 1664525u + 1013904223u;
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    v = v ^ (v >> vec4<u32>(16u));
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    return v.w;
}

fn raw_logit(row: u32, id: u32) -> f32 {
    return capped(logits[row * p.vocab + id]);
}

fn score(row: u32, lane_index: u32, lane: Lane, id: u32) -> f32 {
    var value = raw_logit(row, id);
    if lane.penalised == 1u {
        value = penalise(lane, value, counts[lane_index * p.vocab + id]);
    }
    return value / lane.temperature;
}

/// Adds what `weigh` says of each key that starts with `prefix` to its next digit's bin, then finds the digit at which
/// the running total from the top reaches what is left of the target: (digit, target left within that digit).
fn choose_digit(local: u32, left: u32) -> vec2<u32> {
    workgroupBarrier();
    if local == 0u {
        var above = 0u;
        var digit = 255u;
        loop {
            let here = atomicLoad(&bins[digit]);
            if here >= left - above || digit == 0u {
                break;
            }
            above += here;
            digit -= 1u;
        }
        chosen = vec2<u32>(digit, left - above);
    }
    workgroupBarrier();
    let result = chosen;
    workgroupBarrier();
    return result;
}

fn clear_bins(local: u32) {
    for (var i = local; i < 256u; i += WORKGROUP) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = group.x;
    let step_row = step_rows[wanted[row]];
    let lane_index = step_row.z;
    let lane = lanes[lane_index];

    var top = vec2<f32>(-3.0e38, 0.0);
    var first = vec2<f32>(-3.0e38, 0.0);
    for (var i = 0u; i < p.chunks; i++) {
        let part = scan[row * p.chunks + i];
        let high = max(top.x, part.x);
        top = vec2<f32>(high, top.y * exp(top.x - high) + part.y * exp(part.x - high));
        if part.z > first.x {
            first = part.zw;
        }
    }
    let log_mass = top.x + log(top.y);
    var token = u32(first.y);

    if lane.temperature > 0.0 {
        let highest = first.x / lane.temperature;
        var bound = 0u;
        if lane.min_p > 0.0 {
            bound = sortable(highest + log(lane.min_p));
        }
        if lane.top_k > 0u && lane.top_k < p.vocab {
            var prefix = 0u;
            var left = lane.top_k;
            for (var shift = 24u; shift < 32u; shift -= 8u) {
                clear_bins(local);
                for (var id = local; id < p.vocab; id += WORKGROUP) {
                    let key = sortable(score(row, lane_index, lane, id));
                    if shift == 24u || (key >> (shift + 8u)) == prefix {
                        atomicAdd(&bins[(key >> shift) & 255u], 1u);
                    }
                }
                let digit = choose_digit(local, left);
                prefix = (prefix << 8u) | digit.x;
                left = digit.y;
            }
            bound = max(bound, prefix);
        }
        if lane.top_p < 1.0 {
            var mass = 0.0;
            for (var id = local; id < p.vocab; id += WORKGROUP) {
                let value = score(row, lane_index, lane, id);
                if sortable(value) >= bound {
                    mass += exp(value - highest);
                }
            }
            mass = total(local, mass);
            var prefix = 0u;
            var left = max(1u, u32(lane.top_p * 1073741824.0));
            for (var shift = 24u; shift < 32u; shift -= 8u) {
                clear_bins(local);
                for (var id = local; id < p.vocab; id += WORKGROUP) {
                    let value = score(row, lane_index, lane, id);
                    let key = sortable(value);
                    if key >= bound && (shift == 24u || (key >> (shift + 8u)) == prefix) {
                        atomicAdd(&bins[(key >> shift) & 255u], u32(exp(value - highest) / mass * 1073741824.0));
                    }
                }
                let digit = choose_digit(local, left);
                prefix = (prefix << 8u) | digit.x;
                left = digit.y;
            }
            bound = max(bound, prefix);
        }
        var winner = vec2<f32>(-3.0e38, 0.0);
        for (var id = local; id < p.vocab; id += WORKGROUP) {
            let value = score(row, lane_index, lane, id);
            if sortable(value) >= bound {
                let noise = hash4(vec4<u32>(id, step_row.y, lane.seed_low, lane.seed_high));
                let uniform_draw = (f32(noise >> 8u) + 0.5) / 16777216.0;
                let drawn = value - log(-log(uniform_draw));
                if drawn > winner.x {
                    winner = vec2<f32>(drawn, f32(id));
                }
            }
        }
        best[local] = winner;
        for (var step = WORKGROUP / 2u; step > 0u; step /= 2u) {
            workgroupBarrier();
            if local < step {
                let c = best[local];
                let d = best[local + step];
                if d.x > c.x || (d.x == c.x && d.y < c.y) {
                    best[local] = d;
                }
            }
        }
        workgroupBarrier();
        token = u32(best[0].y);
    }

    if lane.top_logprobs > 0u {
        var prefix = 0u;
        var left = min(lane.top_logprobs, p.vocab);
        for (var shift = 24u; shift < 32u; shift -= 8u) {
            clear_bins(local);
            for (var id = local; id < p.vocab; id += WORKGROUP) {
                let key = sortable(raw_logit(row, id));
                if shift == 24u || (key >> (shift + 8u)) == prefix {
                    atomicAdd(&bins[(key >> shift) & 255u], 1u);
                }
            }
            let digit = choose_digit(local, left);
            prefix = (prefix << 8u) | digit.x;
            left = digit.y;
        }
        if local == 0u {
            atomicStore(&found, 0u);
        }
        workgroupBarrier();
        // All above the bound first, then as many ties as fit.
        for (var ties = 0u; ties < 2u; ties++) {
            for (var id = local; id < p.vocab; id += WORKGROUP) {
                let logit = raw_logit(row, id);
                let key = sortable(logit);
                if (ties == 0u && key > prefix) || (ties == 1u && key == prefix) {
                    let at = atomicAdd(&found, 1u);
                    if at < lane.top_logprobs {
                        picked[row].top_ids[at] = id;
                        picked[row].top_logprobs[at] = logit - log_mass;
                    }
                }
            }
            workgroupBarrier();
        }
    }
    if local == 0u {
        picked[row].token = token;
        picked[row].logprob = raw_logit(row, token) - log_mass;
        picked[row].tops = min(lane.top_logprobs, p.vocab);
        sampled[lane_index] = token;
        counts[lane_index * p.vocab + token] += 1u;
    }
}
