// Matrix product without workgroup memory: one invocation computes ROWS weight rows for TOKENS activation rows.
// The shape of work for software adapters, where barriers and reductions cost more than idle invocations.
// y[t, y_offset + r] = sum over c of x[t, c] · weight[r, c]; HALVES = 2: act(x·weight[r]) · (x·weight[r + up_row]).
// EXPERTS: each y row t has its own expert, whose rows start at expert · expert_rows, and reads x[t / experts_per_x].
// Grid: (ceil(rows / (ROWS · WORKGROUP)), ceil(tokens / TOKENS), 1).

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let first = id.x * ROWS;
    if first >= p.rows {
        return;
    }
    let token = id.y * TOKENS;
//@if EXPERTS
    let base = routes[token].x * p.expert_rows;
//@else
    let base = p.start_row;
//@end
    // Rows and tokens past the end repeat the last one and are not stored.
//@each h HALVES
//@each r ROWS
    let row_$h_$r = base + min(first + $ru, p.rows - 1u) + $hu * p.up_row;
//@end
//@end
//@each t TOKENS
    let x_$t = min(token + $tu, p.tokens - 1u) / p.experts_per_x * (p.cols / 4u);
//@each h HALVES
//@each r ROWS
    var sum_$h_$r_$t = 0.0;
//@end
//@end
//@end
    let groups = p.cols / (8u * GROUP_OCTETS);
    for (var g = 0u; g < groups; g++) {
//@each t TOKENS
        var plain_$t = 0.0;
//@each h HALVES
//@each r ROWS
        var dot_$h_$r_$t = 0.0;
//@end
//@end
//@end
        for (var j = 0u; j < GROUP_OCTETS; j++) {
            let o = g * GROUP_OCTETS + j;
//@each t TOKENS
            let low_$t = x[x_$t + 2u * o];
            let high_$t = x[x_$t + 2u * o + 1u];
            plain_$t += dot(low_$t + high_$t, vec4<f32>(1.0));
//@end
//@each h HALVES
//@each r ROWS
            let q_$h_$r = octet(row_$h_$r, o);
//@each t TOKENS
            dot_$h_$r_$t += dot(q_$h_$r[0], low_$t) + dot(q_$h_$r[1], high_$t);
//@end
//@end
//@end
        }
//@each h HALVES
//@each r ROWS
        let s_$h_$r = group_scale(row_$h_$r, g);
//@each t TOKENS
        sum_$h_$r_$t += s_$h_$r.x * dot_$h_$r_$t + s_$h_$r.y * plain_$t;
//@end
//@end
//@end
    }
//@each t TOKENS
    if token + $tu < p.tokens {
        let out = (token + $tu) * p.y_stride + p.y_offset + first;
//@each r ROWS
        if first + $ru < p.rows {
//@if GATED
            y[out + $ru] = activate(sum_0_$r_$t) * sum_1_$r_$t;
//@else
            y[out + $ru] = sum_0_$r_$t;
//@end
        }
//@end
    }
//@end
}
