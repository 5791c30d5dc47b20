// Soft embeddings for GPUs: a workgroup of 256 computes 64 columns for 64 rows; 16 tokens' embeddings and weights at a
// time are staged through workgroup memory; each invocation keeps a 4 × 4 tile in registers.
// Grid: (ceil(cols / 64), ceil(C / 64), 1).

var<workgroup> tile_e: array<f32, 1088>; // [16, 64 + 4]: the 4 spread the banks
var<workgroup> tile_w: array<f32, 1088>; // [16, 64 + 4]

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let first = group.x * 64u;
    let token = group.y * 64u;
    let across = local % 16u; // its rows: 4·across ..
    let down = local / 16u; // its columns: 4·down ..
//@each r 4
    var sum_$r = vec4<f32>(0.0);
//@end
    let load_from = min(token + local / 4u, p.tokens - 1u) * p.stride + p.offset;
    let load_octet = first / 8u + local % 8u;
    for (var v = 0u; v < p.count; v += 16u) {
        if local < 128u {
            var low = vec4<f32>(0.0);
            var high = vec4<f32>(0.0);
            if load_octet < p.cols / 8u && v + local / 8u < p.count {
                let row = p.start_row + v + local / 8u;
                let q = octet(row, load_octet);
                let s = group_scale(row, load_octet / GROUP_OCTETS);
                low = q[0] * s.x + s.y;
                high = q[1] * s.x + s.y;
            }
            let at = local / 8u * 68u + local % 8u * 8u;
            for (var i = 0u; i < 4u; i++) {
                tile_e[at + i] = low[i];
                tile_e[at + 4u + i] = high[i];
            }
        }
        for (var i = 0u; i < 4u; i++) {
            let mine = local % 4u * 4u + i;
            var w = 0.0;
            if v + mine < p.count {
                w = weights[load_from + v + mine];
            }
            tile_w[mine * 68u + local / 4u] = w;
        }
        workgroupBarrier();
        for (var k = 0u; k < 16u; k++) {
            let at = k * 68u;
            let w = vec4<f32>(
                tile_w[at + 4u * across], tile_w[at + 4u * across + 1u],
                tile_w[at + 4u * across + 2u], tile_w[at + 4u * across + 3u]);
//@each r 4
            sum_$r += tile_e[at + 4u * down + $ru] * w;
//@end
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let to = place(token + 4u * across + i);
        if to != NO_PLACE {
//@each r 4
            if first + 4u * down + $ru < p.cols {
                keep(to + first + 4u * down + $ru, sum_$r[i]);
            }
//@end
        }
    }
}
