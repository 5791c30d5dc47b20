// Single logits: y[i] = x[row] · table[token], soft-capped, for the pair i of (row, token); LANES invocations share one.
// SEARCH: the pairs of row r are the tokens of the chunk that draft_merge chose for it.
// The table may be split: this dispatch holds rows first_row .. first_row + rows and skips pairs of other tokens.
// Grid: (x, 1, z), x · z covering ceil(pairs / (WORKGROUP / LANES)).
struct Params {
    rows: u32,
    cols: u32,
    first_row: u32,
    plane1: u32,
    plane2: u32,
    plane3: u32,
    pairs: u32,
    softcap: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [rows, cols] in planes
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>; // [tokens, cols]
//@if SEARCH
@group(0) @binding(3) var<storage, read> summary: array<Summary>; // [pairs / CHUNK]
//@else
@group(0) @binding(3) var<storage, read> labels: array<vec2<u32>>; // [pairs] of (row, token)
//@end
@group(0) @binding(4) var<storage, read_write> y: array<f32>; // [pairs]

const NO_TOKEN: u32 = 0xffffffffu;
//@if SHARED
var<workgroup> partial: array<f32, WORKGROUP>;
//@end

fn wanted_pair(index: u32) -> vec2<u32> {
    if index >= p.pairs {
        return vec2<u32>(0u, NO_TOKEN);
    }
//@if SEARCH
    let row = index / CHUNK;
    let place = index % CHUNK;
    return vec2<u32>(row, select(NO_TOKEN, summary[row].first + place, place < summary[row].count));
//@else
    return labels[index];
//@end
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let lane = local % LANES;
    let index = (group.z * grid.x + group.x) * (WORKGROUP / LANES) + local / LANES;
    let wanted = wanted_pair(index);
    let is_here = wanted.y >= p.first_row && wanted.y - p.first_row < p.rows;
    var sum = 0.0;
    if is_here {
        let row = wanted.y - p.first_row;
        let base = wanted.x * (p.cols / 4u);
        for (var o = lane; o < p.cols / 8u; o += LANES) {
            let low = x[base + 2u * o];
            let high = x[base + 2u * o + 1u];
            let q = octet(row, o);
            let s = group_scale(row, o / GROUP_OCTETS);
            sum += s.x * (dot(q[0], low) + dot(q[1], high)) + s.y * dot(low + high, vec4<f32>(1.0));
        }
    }
//@if SHARED
    partial[local] = sum;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            partial[local] += partial[local + step];
        }
    }
    sum = partial[local];
//@end
    if is_here && lane == 0u {
        y[index] = capped(sum);
    }
}
