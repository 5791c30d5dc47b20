// Chooses experts: softmax over the router's logits, the `used` largest, renormalised, times each expert's scale.
// Ties go to the lower expert. Grid: (ceil(tokens / WORKGROUP), 1, 1).
struct Params {
    tokens: u32,
    experts: u32,
    used: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [tokens, experts]
//@if SCALE
@group(0) @binding(2) var<storage, read> expert_scale: array<f32>; // [experts]
//@end
@group(0) @binding(3) var<storage, read_write> routes: array<vec2<u32>>; // [tokens, used] of (expert, weight bits)

fn taken(base: u32, count: u32, expert: u32) -> bool {
    for (var j = 0u; j < count; j++) {
        if routes[base + j].x == expert {
            return true;
        }
    }
    return false;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= p.tokens {
        return;
    }
    let base = id.x * p.used;
    var top = 0.0;
    var mass = 0.0;
    for (var j = 0u; j < p.used; j++) {
        var chosen = 0u;
        var best = -3.0e38;
        for (var e = 0u; e < p.experts; e++) {
            let value = logits[id.x * p.experts + e];
            if value > best && !taken(base, j, e) {
                best = value;
                chosen = e;
            }
        }
        if j == 0u {
            top = best;
        }
        // The softmax over all experts divides out when the chosen ones are renormalised.
        let weight = exp(best - top);
        mass += weight;
        routes[base + j] = vec2<u32>(chosen, bitcast<u32>(weight));
    }
    for (var j = 0u; j < p.used; j++) {
        let route = routes[base + j];
        var weight = bitcast<f32>(route.y) / mass;
//@if SCALE
        weight *= expert_scale[route.x];
//@end
        routes[base + j] = vec2<u32>(route.x, bitcast<u32>(weight));
    }
}
