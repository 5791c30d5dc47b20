// Sum over a workgroup, seen by all its invocations.
var<workgroup> sums: array<f32, WORKGROUP>;

fn total(local: u32, value: f32) -> f32 {
    sums[local] = value;
    for (var step = WORKGROUP / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if local < step {
            sums[local] += sums[local + step];
        }
    }
    workgroupBarrier();
    let result = sums[0];
    workgroupBarrier();
    return result;
}
