use crate::device::Gpu;
use burn::tensor::{Int, Tensor, TensorData};
use burn_wgpu::AutoCompiler;
use std::any::Any;
use std::sync::{Arc, Mutex};

/// A burn tensor and the part of a GPU buffer behind it, which our kernels bind.
///
/// The tensor is the owner: as long as this lives, burn neither frees nor moves the memory.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    tensor: Tensor<1, Int>,
    buffer: wgpu::Buffer,
    offset: u64,
    words: usize,
    /// While burn's claim on the memory is held, it is not moved.
    _claim: Mutex<Box<dyn Any + Send>>,
}

impl Buffer {
    /// Uploads words.
    pub fn upload(gpu: &Gpu, words: Vec<u32>) -> Self {
        let len = words.len().max(8);
        let mut words = words;
        words.resize(len, 0);
        let data = TensorData::new(bytemuck::allocation::cast_vec::<u32, i32>(words), [len]);
        Self::behind(Tensor::from_data(data, gpu.tensors()), len)
    }

    /// Uploads numbers.
    pub fn upload_f32(gpu: &Gpu, values: &[f32]) -> Self {
        Self::upload(gpu, values.iter().map(|v| v.to_bits()).collect())
    }

    /// Zeros.
    pub fn zeros(gpu: &Gpu, words: usize) -> Self {
        let words = words.max(8);
        Self::behind(Tensor::zeros([words], gpu.tensors()), words)
    }

    fn behind(tensor: Tensor<1, Int>, words: usize) -> Self {
        use burn::backend::DispatchTensorKind::Cube;
        let Cube(primitive) = tensor.clone().into_dispatch().kind else {
            unreachable!("the device was made by try_init_device, so its tensors are cubecl's")
        };
        let primitive = primitive.int();
        let claim = primitive
            .client
            .get_resource::<cubecl::wgpu::WgpuServer<AutoCompiler>>(primitive.handle.clone())
            .expect("the tensor was just made on this device");
        let (buffer, offset) = (claim.resource().buffer.clone(), claim.resource().offset);
        Self(Arc::new(Inner { tensor, buffer, offset, words, _claim: Mutex::new(Box::new(claim)) }))
    }

    /// The burn tensor that owns the memory.
    pub fn tensor(&self) -> &Tensor<1, Int> {
        &self.0.tensor
    }

    /// Length in 32-bit words.
    pub fn words(&self) -> usize {
        self.0.words
    }

    /// The memory as a kernel binds it.
    pub fn binding(&self) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.0.buffer,
            offset: self.0.offset,
            size: wgpu::BufferSize::new(self.0.words as u64 * 4),
        })
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.0.buffer
    }

    /// Overwrites words from `start` on, in queue order.
    pub fn write(&self, gpu: &Gpu, start: usize, words: &[u32]) {
        gpu.queue.write_buffer(&self.0.buffer, self.0.offset + 4 * start as u64, bytemuck::cast_slice(words));
    }

    /// Appends a copy of `words` from `start` on to a place of a buffer of the caller's.
    pub(crate) fn copy_part(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        (start, words): (usize, usize),
        target: &wgpu::Buffer,
        at: usize,
    ) {
        let from = self.0.offset + 4 * start as u64;
        encoder.copy_buffer_to_buffer(&self.0.buffer, from, target, 4 * at as u64, 4 * words as u64);
    }

    /// Appends a copy of the first `words` to a buffer of the caller's.
    pub(crate) fn copy_to(&self, encoder: &mut wgpu::CommandEncoder, target: &wgpu::Buffer, words: usize) {
        encoder.copy_buffer_to_buffer(&self.0.buffer, self.0.offset, target, 0, 4 * words as u64);
    }
}
