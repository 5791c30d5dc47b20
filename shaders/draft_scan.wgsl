// First pass of a draft over a tile of the vocabulary: statistics of CHUNK tokens of one row by one workgroup.
// Grid: (ceil(count / CHUNK), C, 1).
struct Params {
    stride: u32,
    offset: u32,
    first: u32,
    count: u32,
    chunks: u32,
    first_chunk: u32,
    forbidden: u32,
    softcap: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // [C, stride], the tile from offset on
@group(0) @binding(2) var<storage, read> drafts: array<Draft>; // [C]
@group(0) @binding(3) var<storage, read_write> parts: array<Part>; // [C, chunks]

var<workgroup> own: array<Part, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let start = group.x * CHUNK;
    let end = min(start + CHUNK, p.count);
    let temperature = drafts[group.y].temperature;
    var part = Part(NEVER, 0.0, 0.0, NEVER, 0xffffffffu, p.first + start, end - start, 0u);
    for (var i = start + local; i < end; i += WORKGROUP) {
        let token = p.first + i;
        if token == p.forbidden {
            continue;
        }
        let z = capped(logits[group.y * p.stride + p.offset + i]) / temperature;
        part = merged(part, Part(z, 1.0, 0.0, NEVER, token, 0u, 0u, 0u));
    }
    own[local] = part;
    for (var step = WORKGROUP / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if local < step {
            own[local] = merged(own[local], own[local + step]);
        }
    }
    if local == 0u {
        parts[group.y * p.chunks + p.first_chunk + group.x] = own[0];
    }
}
