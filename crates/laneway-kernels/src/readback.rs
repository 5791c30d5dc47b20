use crate::GpuError;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::recorder::GpuAct;

/// A mapping that was asked for.
pub(crate) type Mapped = futures_channel::oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>;

/// Host-readable buffers that come back when their contents were read.
pub(crate) struct Readbacks {
    idle: Vec<wgpu::Buffer>,
    /// Words of the smallest one made.
    least: usize,
}

impl Readbacks {
    pub fn new(least: usize) -> Self {
        Self { idle: Vec::new(), least }
    }

    /// A buffer of at least `words`.
    pub fn take(&mut self, gpu: &Gpu, words: usize) -> wgpu::Buffer {
        let bytes = 4 * words as u64;
        match self.idle.iter().position(|buffer| buffer.size() >= bytes) {
            Some(index) => self.idle.swap_remove(index),
            None => readback_buffer(gpu, 4 * words.max(self.least).next_power_of_two() as u64),
        }
    }

    pub fn give_back(&mut self, buffer: wgpu::Buffer) {
        self.idle.push(buffer);
    }
}

impl Gpu {
    /// Copies `bytes` from one buffer to another `times` times and waits: what the memory can do at best.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn copy(&self, bytes: u64, times: usize) -> Result<(), GpuError> {
        let buffer = |label| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: bytes,
                usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let (from, to) = (buffer("copy source"), buffer("copy target"));
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for _ in 0..times {
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes);
        }
        let fence = readback_buffer(self, 4);
        encoder.copy_buffer_to_buffer(&to, 0, &fence, 0, 4);
        self.queue.submit([encoder.finish()]);
        wait(self, map(&fence, 1)).await
    }
}

fn readback_buffer(gpu: &Gpu, bytes: u64) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("read-back"),
        size: bytes,
        usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
        mapped_at_creation: false,
    })
}

pub(crate) async fn wait(gpu: &Gpu, mapped: Mapped) -> Result<(), GpuError> {
    // In a browser this does nothing: the event loop calls back.
    let polled = gpu.device.poll(wgpu::PollType::wait_indefinitely());
    gpu.check()?;
    polled.map_err(|e| GpuError::Lost(e.to_string()))?;
    let outcome = mapped.await.map_err(|_| GpuError::Lost("the read-back was dropped".into()))?;
    // A browser tells of a failed submission only while the mapping is awaited.
    gpu.check()?;
    outcome.map_err(|e| GpuError::Lost(e.to_string()))
}

/// Copies activations to the host in a submission of its own.
pub(crate) async fn read_back(gpu: &Gpu, act: &GpuAct) -> Result<Vec<f32>, GpuError> {
    let words = buffer_words(gpu, &act.loan.buffer, act.rows * act.cols).await?;
    Ok(words.into_iter().map(f32::from_bits).collect())
}

/// Copies the first words of a buffer to the host in a submission of its own.
pub(crate) async fn buffer_words(gpu: &Gpu, buffer: &Buffer, words: usize) -> Result<Vec<u32>, GpuError> {
    let target = readback_buffer(gpu, 4 * words as u64);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    buffer.copy_to(&mut encoder, &target, words);
    gpu.queue.submit([encoder.finish()]);
    wait(gpu, map(&target, words)).await?;
    read(&target, words)
}

pub(crate) fn map(buffer: &wgpu::Buffer, words: usize) -> Mapped {
    let (sender, receiver) = futures_channel::oneshot::channel();
    buffer.slice(..4 * words as u64).map_async(wgpu::MapMode::Read, move |outcome| {
        // The receiver is gone when its runner was dropped: nobody wants the outcome then.
        let _ = sender.send(outcome);
    });
    receiver
}

pub(crate) fn read(buffer: &wgpu::Buffer, words: usize) -> Result<Vec<u32>, GpuError> {
    let view = buffer.slice(..4 * words as u64).get_mapped_range().map_err(|e| GpuError::Lost(e.to_string()))?;
    let copied = view.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    drop(view);
    buffer.unmap();
    Ok(copied)
}
