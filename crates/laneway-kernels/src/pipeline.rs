use crate::device::Gpu;
use crate::shader::Variant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A compiled kernel and the order of its bindings.
pub struct Pipeline {
    pub(crate) compute: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// Binding numbers in the order in which a recorder names buffers; the first is the uniform.
    pub(crate) bindings: Vec<u32>,
}

/// Kernels compiled so far, by variant.
#[derive(Default)]
pub(crate) struct Pipelines(Mutex<HashMap<Variant, Arc<Pipeline>>>);

impl Pipelines {
    pub fn get(&self, gpu: &Gpu, variant: Variant) -> Arc<Pipeline> {
        let mut known = self.0.lock().unwrap_or_else(|e| e.into_inner());
        known.entry(variant).or_insert_with_key(|variant| Arc::new(compile(gpu, variant))).clone()
    }
}

/// What a WGSL text declares in group 0: (binding, kind), by binding.
pub fn declared_bindings(source: &str) -> Vec<(u32, wgpu::BufferBindingType)> {
    let mut found = Vec::new();
    for line in source.lines() {
        let Some(rest) = line.trim_start().strip_prefix("@group(0) @binding(") else { continue };
        let Some((number, rest)) = rest.split_once(')') else { continue };
        let kind = if rest.contains("var<uniform>") {
            wgpu::BufferBindingType::Uniform
        } else {
            wgpu::BufferBindingType::Storage { read_only: !rest.contains("read_write") }
        };
        found.extend(number.parse().ok().map(|n: u32| (n, kind)));
    }
    found.sort_by_key(|b| b.0);
    found
}

fn compile(gpu: &Gpu, variant: &Variant) -> Pipeline {
    let source = variant.source();
    let declared = declared_bindings(&source);
    let entries: Vec<_> = declared
        .iter()
        .map(|&(binding, ty)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        })
        .collect();
    let label = Some(variant.shader.name());
    let layout = gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
    let pipeline_layout = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let module = gpu
        .device
        .create_shader_module(wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(source.into()) });
    let compute = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            // Every kernel writes its workgroup memory before it reads it.
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    Pipeline { compute, layout, bindings: declared.iter().map(|b| b.0).collect() }
}
