// Matrix product for GPUs: a workgroup of 256 computes 64 weight rows for 64 activation rows, both staged through
// workgroup memory 16 columns at a time; each invocation keeps a 4 × 4 tile in registers.
// y as in linear_rows; GATED: a workgroup's 64 rows are 32 gate rows and their 32 up rows.
// Grid: (ceil(rows / (64 / HALVES)), ceil(tokens / 64), 1).

const OUT_ROWS: u32 = 64u / HALVES;
var<workgroup> tile_w: array<f32, 1088>; // [16, 64 + 4]: the 4 spread the banks
var<workgroup> tile_x: array<f32, 1088>; // [16, 64 + 4]

fn weight_row(first: u32, local: u32) -> u32 {
    let row = min(first + local % OUT_ROWS, p.rows - 1u);
    return p.start_row + row + local / OUT_ROWS * p.up_row;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let first = group.x * OUT_ROWS;
    let token = group.y * 64u;
    let octets = p.cols / 8u;
    let across = local % 16u; // its tokens: 4·across ..
    let down = local / 16u; // its rows: 2·down, 2·down + 1, 32 + 2·down, 33 + 2·down
//@each r 4
    var sum_$r = vec4<f32>(0.0);
//@end
    let load_token = min(token + local / 4u, p.tokens - 1u) * (p.cols / 4u);
    let load_row = weight_row(first, (local / 2u) % 64u);
    for (var o = 0u; o < octets; o += 2u) {
        if local < 128u {
            let mine = o + local % 2u;
            let at = (local % 2u) * 8u;
            var low = vec4<f32>(0.0);
            var high = vec4<f32>(0.0);
            if mine < octets {
                let q = octet(load_row, mine);
                let s = group_scale(load_row, mine / GROUP_OCTETS);
                low = q[0] * s.x + s.y;
                high = q[1] * s.x + s.y;
            }
            for (var i = 0u; i < 4u; i++) {
                tile_w[(at + i) * 68u + local / 2u] = low[i];
                tile_w[(at + 4u + i) * 68u + local / 2u] = high[i];
            }
        }
        let quad = 2u * o + local % 4u;
        var xs = vec4<f32>(0.0);
        if quad < p.cols / 4u {
            xs = x[load_token + quad];
        }
        for (var i = 0u; i < 4u; i++) {
            tile_x[((local % 4u) * 4u + i) * 68u + local / 4u] = xs[i];
        }
        workgroupBarrier();
        for (var k = 0u; k < 16u; k++) {
            let at = k * 68u;
            let xv = vec4<f32>(
                tile_x[at + 4u * across], tile_x[at + 4u * across + 1u],
                tile_x[at + 4u * across + 2u], tile_x[at + 4u * across + 3u]);
            sum_0 += tile_w[at + 2u * down] * xv;
            sum_1 += tile_w[at + 2u * down + 1u] * xv;
            sum_2 += tile_w[at + 32u + 2u * down] * xv;
            sum_3 += tile_w[at + 33u + 2u * down] * xv;
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let t = token + 4u * across + i;
        if t < p.tokens {
            let out = t * p.y_stride + p.y_offset + first;
//@if GATED
            if first + 2u * down < p.rows { y[out + 2u * down] = activate(sum_0[i]) * sum_2[i]; }
            if first + 2u * down + 1u < p.rows { y[out + 2u * down + 1u] = activate(sum_1[i]) * sum_3[i]; }
//@else
            if first + 2u * down < p.rows { y[out + 2u * down] = sum_0[i]; }
            if first + 2u * down + 1u < p.rows { y[out + 2u * down + 1u] = sum_1[i]; }
            if first + 2u * down + 32u < p.rows { y[out + 2u * down + 32u] = sum_2[i]; }
            if first + 2u * down + 33u < p.rows { y[out + 2u * down + 33u] = sum_3[i]; }
//@end
        }
    }
}
