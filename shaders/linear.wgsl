// What the matrix products share: parameters and bindings. Row 0 of a product is row start_row of the weights.
struct Params {
    rows: u32,
    cols: u32,
    tokens: u32,
    y_stride: u32,
    y_offset: u32,
    up_row: u32,
    plane1: u32,
    plane2: u32,
    plane3: u32,
    expert_rows: u32,
    experts_per_x: u32,
    start_row: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<u32>; // [rows, cols] in planes
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>; // [tokens, cols]
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [tokens, y_stride]
//@if EXPERTS
@group(0) @binding(4) var<storage, read> routes: array<vec2<u32>>; // [tokens] of (expert, weight bits)
//@end
