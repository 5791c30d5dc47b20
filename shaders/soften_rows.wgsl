// Soft embeddings without workgroup memory: one invocation computes eight columns for TOKENS rows.
// The shape of work for software adapters. Grid: (ceil(cols / 8 / WORKGROUP), ceil(C / TOKENS), 1).

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let o = id.x;
    if o >= p.cols / 8u {
        return;
    }
    let token = id.y * TOKENS;
    // Rows past the end repeat the last one and are not stored.
//@each t TOKENS
    let from_$t = min(token + $tu, p.tokens - 1u) * p.stride + p.offset;
    var low_$t = vec4<f32>(0.0);
    var high_$t = vec4<f32>(0.0);
//@end
    for (var v = 0u; v < p.count; v++) {
        let row = p.start_row + v;
        let q = octet(row, o);
        let s = group_scale(row, o / GROUP_OCTETS);
        let low = q[0] * s.x + s.y;
        let high = q[1] * s.x + s.y;
//@each t TOKENS
        let w_$t = weights[from_$t + v];
        low_$t += w_$t * low;
        high_$t += w_$t * high;
//@end
    }
//@each t TOKENS
    let to_$t = place(token + $tu);
    if to_$t != NO_PLACE {
        for (var i = 0u; i < 4u; i++) {
            keep(to_$t + o * 8u + i, low_$t[i]);
            keep(to_$t + o * 8u + 4u + i, high_$t[i]);
        }
    }
//@end
}
