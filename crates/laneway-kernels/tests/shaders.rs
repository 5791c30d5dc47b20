//! Every kernel variant that can be asked for is valid WGSL and keeps to what any WebGPU device offers.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

use laneway_files::Format;
use laneway_kernels::{Shader, Variant, declared_bindings};

fn linear_variants(format: Format) -> Vec<Variant> {
    let mut all = Vec::new();
    for (halves, gated, experts, activation) in
        [(1, 0, 0, None), (2, 1, 0, Some(0)), (2, 1, 0, Some(1)), (1, 0, 1, None), (2, 1, 1, Some(1))]
    {
        let mut common = vec![("HALVES", halves), ("GATED", gated), ("EXPERTS", experts)];
        common.extend(activation.map(|a| ("ACTIVATION", a)));
        for tokens in if experts == 1 { vec![1] } else { vec![1, 2, 4, 8] } {
            let rows = if tokens == 1 { 8 / halves } else { 24 / halves };
            let mut constants = vec![("WORKGROUP", 8), ("ROWS", rows), ("TOKENS", tokens)];
            constants.extend(common.clone());
            all.push(Variant::of_format(Shader::LinearRows, format, &constants));
            let mut constants = vec![
                ("WORKGROUP", 128),
                ("LANES", 32),
                ("TOKENS", tokens),
                ("PARTIAL_ROWS", halves * tokens),
                ("PARTIALS", halves * tokens * 128),
            ];
            constants.extend(common.clone());
            all.push(Variant::of_format(Shader::LinearLanes, format, &constants));
        }
        if experts == 0 {
            all.push(Variant::of_format(Shader::LinearTiles, format, &common));
        }
    }
    all.push(Variant::of_format(Shader::Embed, format, &[("WORKGROUP", 32)]));
    for (workgroup, lanes, shared) in [(8, 1, 0), (128, 32, 1)] {
        for search in [0, 1] {
            let constants =
                [("WORKGROUP", workgroup), ("LANES", lanes), ("SHARED", shared), ("SEARCH", search), ("CHUNK", 1024)];
            all.push(Variant::of_format(Shader::LabelLogits, format, &constants));
        }
    }
    for tokens in [1, 2, 4, 8] {
        all.push(Variant::of_format(Shader::SoftenRows, format, &[("WORKGROUP", 8), ("TOKENS", tokens)]));
    }
    all.push(Variant::of_format(Shader::SoftenTiles, format, &[]));
    all
}

fn plain_variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for wide in [32, 256] {
        for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            all.push(Variant::new(Shader::AddNorm, &[("WORKGROUP", wide), ("POST", a), ("NEXT", b)]));
        }
        for weight in [0, 1] {
            all.push(Variant::new(Shader::Norm, &[("WORKGROUP", wide), ("WEIGHT", weight)]));
        }
        all.push(Variant::new(Shader::SampleScan, &[("WORKGROUP", wide), ("CHUNK", 4096)]));
        all.push(Variant::new(Shader::SamplePick, &[("WORKGROUP", wide)]));
    }
    for flag in [0, 1] {
        all.push(Variant::new(Shader::Gate, &[("WORKGROUP", 64), ("ACTIVATION", flag)]));
        all.push(Variant::new(Shader::Rope, &[("WORKGROUP", 64), ("HEAD_NORM", flag)]));
        all.push(Variant::new(Shader::Route, &[("WORKGROUP", 8), ("SCALE", flag)]));
    }
    for dim in [16, 64, 80, 128, 256, 512] {
        all.push(Variant::new(Shader::Attention, &[("HEAD_DIM", dim)]));
    }
    for (heads, quads, round) in [(1, 4, 4), (16, 4, 4), (3, 16, 16), (2, 32, 32), (1, 64, 64), (1, 128, 64)] {
        let rounds = u32::div_ceil(quads, round);
        let constants = [("HEADS", heads), ("QUADS", quads), ("ROUND", round), ("ROUNDS", rounds)];
        all.push(Variant::new(Shader::AttentionRows, &[&[("WORKGROUP", 8)], &constants[..]].concat()));
    }
    // Pages of smaller types.
    for kinds in [[("KV_F16", 1), ("KV_Q8", 0)], [("KV_F16", 0), ("KV_Q8", 1)]] {
        for dim in [16, 64, 80, 256] {
            all.push(Variant::new(Shader::Attention, &[&[("HEAD_DIM", dim)], &kinds[..]].concat()));
        }
        let constants = [("WORKGROUP", 8), ("HEADS", 3), ("QUADS", 16), ("ROUND", 16), ("ROUNDS", 1)];
        all.push(Variant::new(Shader::AttentionRows, &[&constants[..], &kinds].concat()));
        all.push(Variant::new(Shader::StoreKv, &[&[("WORKGROUP", 8)], &kinds[..]].concat()));
    }
    all.push(Variant::new(Shader::Rope, &[("WORKGROUP", 64), ("HEAD_NORM", 1), ("PACKED", 1)]));
    for shader in [Shader::Mix, Shader::Condition, Shader::DraftWeigh, Shader::CopyPages] {
        all.push(Variant::new(shader, &[("WORKGROUP", 64)]));
    }
    for shader in [Shader::DraftMerge, Shader::DraftPick] {
        all.push(Variant::new(shader, &[("WORKGROUP", 8)]));
    }
    for workgroup in [8, 64] {
        all.push(Variant::new(Shader::DraftScan, &[("WORKGROUP", workgroup), ("CHUNK", 1024)]));
    }
    all.push(Variant::new(Shader::Gather, &[("WORKGROUP", 64)]));
    all
}

#[test]
fn every_variant_is_valid_and_fits_webgpu_defaults() {
    let variants: Vec<Variant> = Format::ALL.into_iter().flat_map(linear_variants).chain(plain_variants()).collect();
    for shader in Shader::ALL {
        assert!(variants.iter().any(|v| v.shader == *shader), "{} is not checked", shader.name());
    }
    for variant in &variants {
        let source = variant.source();
        let module = naga::front::wgsl::parse_str(&source)
            .unwrap_or_else(|e| panic!("{variant:?}: {}\n{source}", e.emit_to_string(&source)));
        // Neither f16 nor subgroups: of naga's capabilities only unpack2x16float's, which core WGSL has.
        let core = naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), core);
        validator.validate(&module).unwrap_or_else(|e| panic!("{variant:?}: {}", e.emit_to_string(&source)));
        let storage = declared_bindings(&source).iter().filter(|b| b.1 != wgpu::BufferBindingType::Uniform).count();
        assert!(storage <= 8, "{variant:?} binds {storage} storage buffers");
        let [x, y, z] = module.entry_points[0].workgroup_size;
        assert!(x * y * z <= 256, "{variant:?} has {} invocations", x * y * z);
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let bytes: u32 = shared.map(|(_, v)| layouter[v.ty].size).sum();
        assert!(bytes <= 16 * 1024, "{variant:?} takes {bytes} bytes of workgroup memory");
    }
}
