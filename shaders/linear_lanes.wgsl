// Matrix-vector product for GPUs: LANES invocations share one output row, read neighbouring words, and add up through
// workgroup memory; TOKENS activation rows per pass.
// y and EXPERTS as in linear_rows. Grid: (x, ceil(tokens / TOKENS), z), x · z covering ceil(rows / (WORKGROUP / LANES)).

const ROWS_PER_GROUP: u32 = WORKGROUP / LANES;
var<workgroup> partial: array<f32, PARTIALS>; // [HALVES, TOKENS, WORKGROUP]

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let lane = local % LANES;
    let row = (group.z * grid.x + group.x) * ROWS_PER_GROUP + local / LANES;
    let token = group.y * TOKENS;
//@if EXPERTS
    let base = routes[token].x * p.expert_rows;
//@else
    let base = p.start_row;
//@end
//@each h HALVES
    let row_$h = base + min(row, p.rows - 1u) + $hu * p.up_row;
//@end
//@each t TOKENS
    let x_$t = min(token + $tu, p.tokens - 1u) / p.experts_per_x * (p.cols / 4u);
//@each h HALVES
    var sum_$h_$t = 0.0;
//@end
//@end
    for (var o = lane; o < p.cols / 8u; o += LANES) {
//@each t TOKENS
        let low_$t = x[x_$t + 2u * o];
        let high_$t = x[x_$t + 2u * o + 1u];
        let plain_$t = dot(low_$t + high_$t, vec4<f32>(1.0));
//@end
//@each h HALVES
        let q_$h = octet(row_$h, o);
        let s_$h = group_scale(row_$h, o / GROUP_OCTETS);
//@each t TOKENS
        sum_$h_$t += s_$h.x * (dot(q_$h[0], low_$t) + dot(q_$h[1], high_$t)) + s_$h.y * plain_$t;
//@end
//@end
    }
//@each h HALVES
//@each t TOKENS
    partial[($hu * TOKENS + $tu) * WORKGROUP + local] = sum_$h_$t;
//@end
//@end
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
//@each i PARTIAL_ROWS
            partial[$iu * WORKGROUP + local] += partial[$iu * WORKGROUP + local + step];
//@end
        }
    }
    if lane == 0u && row < p.rows {
//@each t TOKENS
        if token + $tu < p.tokens {
            let out = (token + $tu) * p.y_stride + p.y_offset + row;
//@if GATED
            y[out] = activate(partial[$tu * WORKGROUP + local]) * partial[(TOKENS + $tu) * WORKGROUP + local];
//@else
            y[out] = partial[$tu * WORKGROUP + local];
//@end
        }
//@end
    }
}
