use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::pipeline::Pipeline;
use crate::shader::Variant;
use std::collections::HashSet;
use std::sync::Arc;

/// A step made ready: pipelines, bind groups and parameters, run as one compute pass.
pub struct Plan {
    dispatches: Vec<Dispatch>,
    /// What one run of the plan costs.
    pub cost: PlanCost,
}

struct Dispatch {
    pipeline: Arc<Pipeline>,
    bindings: wgpu::BindGroup,
    grid: [u32; 3],
}

/// What one run of a plan costs, known before it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCost {
    /// Kernel launches.
    pub dispatches: usize,
    /// Bytes of the weight buffers bound, each counted once.
    pub weight_bytes: u64,
    /// Multiplications of a hidden state with rows of the head, labels left out: their number is not the plan's.
    pub head_multiply_adds: u64,
}

/// Collects dispatches before their parameters are in a buffer.
pub(crate) struct PlanBuilder {
    gpu: Gpu,
    pending: Vec<Pending>,
    params: Vec<u8>,
    weights: HashSet<wgpu::Buffer>,
    cost: PlanCost,
}

struct Pending {
    pipeline: Arc<Pipeline>,
    buffers: Vec<Buffer>,
    params: (u64, u64),
    grid: [u32; 3],
}

/// A word of a shader's `Params`.
#[derive(Clone, Copy)]
pub(crate) enum Param {
    U(u32),
    F(f32),
}

impl From<usize> for Param {
    fn from(value: usize) -> Self {
        Self::U(value as u32)
    }
}

impl From<u32> for Param {
    fn from(value: u32) -> Self {
        Self::U(value)
    }
}

impl From<bool> for Param {
    fn from(value: bool) -> Self {
        Self::U(value.into())
    }
}

impl From<f32> for Param {
    fn from(value: f32) -> Self {
        Self::F(value)
    }
}

impl PlanBuilder {
    pub fn new(gpu: &Gpu) -> Self {
        let (pending, params) = (Vec::new(), Vec::new());
        Self { gpu: gpu.clone(), pending, params, weights: HashSet::new(), cost: PlanCost::default() }
    }

    /// Adds a kernel launch; `buffers` in the order of the shader's storage bindings, `params` as its struct.
    pub fn dispatch(&mut self, variant: Variant, params: &[Param], buffers: &[&Buffer], grid: [usize; 3]) {
        let pipeline = self.gpu.pipelines.get(&self.gpu, variant);
        let start = self.params.len().next_multiple_of(256);
        self.params.resize(start, 0);
        for param in params {
            let word = match param {
                Param::U(value) => *value,
                Param::F(value) => value.to_bits(),
            };
            self.params.extend(word.to_le_bytes());
        }
        let size = ((self.params.len() - start) as u64).next_multiple_of(16);
        self.params.resize(start + size as usize, 0);
        self.pending.push(Pending {
            pipeline,
            buffers: buffers.iter().map(|&b| b.clone()).collect(),
            params: (start as u64, size),
            grid: grid.map(|n| n as u32),
        });
    }

    /// Notes a weight buffer that the plan reads.
    pub fn count_weights(&mut self, buffer: &Buffer) {
        if self.weights.insert(buffer.raw().clone()) {
            self.cost.weight_bytes += 4 * buffer.words() as u64;
        }
    }

    /// Notes that `rows` hidden states `[cols]` meet all `vocab` rows of the head.
    pub fn count_head(&mut self, rows: usize, vocab: usize, cols: usize) {
        self.cost.head_multiply_adds += rows as u64 * vocab as u64 * cols as u64;
    }

    /// Multiplications with the head noted so far.
    #[cfg(test)]
    pub fn head_multiply_adds(&self) -> u64 {
        self.cost.head_multiply_adds
    }

    pub fn finish(self) -> Plan {
        let device = &self.gpu.device;
        let uniforms = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: (self.params.len() as u64).next_multiple_of(256).max(256),
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.gpu.queue.write_buffer(&uniforms, 0, &self.params);
        let cost = PlanCost { dispatches: self.pending.len(), ..self.cost };
        let bind = |pending: Pending| {
            let (offset, size) = pending.params;
            let size = wgpu::BufferSize::new(size);
            let params = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &uniforms, offset, size });
            let resources = std::iter::once(params).chain(pending.buffers.iter().map(Buffer::binding));
            let numbers = pending.pipeline.bindings.iter();
            let entries: Vec<_> =
                numbers.zip(resources).map(|(&binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
            let layout = &pending.pipeline.layout;
            let bindings =
                device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries });
            Dispatch { pipeline: pending.pipeline, bindings, grid: pending.grid }
        };
        Plan { dispatches: self.pending.into_iter().map(bind).collect(), cost }
    }
}

impl Plan {
    /// Encodes the whole plan as one pass.
    pub(crate) fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for dispatch in &self.dispatches {
            pass.set_pipeline(&dispatch.pipeline.compute);
            pass.set_bind_group(0, &dispatch.bindings, &[]);
            let [x, y, z] = dispatch.grid;
            pass.dispatch_workgroups(x, y, z);
        }
    }
}
