use crate::GpuError;
use crate::pipeline::Pipelines;
use burn_wgpu::{MemoryConfiguration, RuntimeOptions, WgpuSetup, try_init_device};
use std::sync::{Arc, Mutex};

/// A graphics adapter of this machine.
#[derive(Clone, Debug)]
pub struct AdapterSummary {
    /// Position in the list of [`adapters`].
    pub index: usize,
    /// Name by its driver.
    pub name: String,
    /// vulkan, metal, dx12, webgpu …
    pub api: String,
    /// Driver and its version.
    pub driver: String,
    /// What kind of device it is.
    pub class: AdapterClass,
    /// Largest buffer a kernel can bind, in bytes.
    pub max_binding_bytes: u64,
}

/// How work is laid out for an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterClass {
    /// A real GPU: many invocations share a row, workgroup memory is fast.
    Hardware,
    /// A CPU that poses as one: an invocation computes whole rows, barriers are dear.
    Software,
}

/// Which adapter to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The best real GPU; never a software adapter.
    Hardware,
    /// By position in [`adapters`].
    Index(usize),
    /// By a part of its name, any case.
    Name(String),
    /// Whatever the browser gives.
    Any,
}

impl AdapterChoice {
    /// The adapter tests run on: `LANEWAY_TEST_DEVICE` (`gpu` for real hardware, else a name), or lavapipe, which every
    /// machine can have and whose results do not depend on the machine.
    pub fn for_tests() -> Self {
        match std::env::var("LANEWAY_TEST_DEVICE").as_deref() {
            Ok("gpu") => Self::Hardware,
            Ok(name) => Self::Name(name.into()),
            Err(_) => Self::Name("llvmpipe".into()),
        }
    }
}

/// An open device: the same one for burn's tensors and for our kernels.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) tensors: burn::tensor::Device,
    pub(crate) pipelines: Arc<Pipelines>,
    summary: AdapterSummary,
    failure: Arc<Mutex<Option<String>>>,
}

/// Lists the adapters of this machine; software ones last.
pub async fn adapters() -> Vec<AdapterSummary> {
    enumerate().await.iter().enumerate().map(|(index, adapter)| summarise(index, adapter)).collect()
}

impl Gpu {
    /// Opens a device on the chosen adapter.
    ///
    /// # Errors
    /// When no adapter matches or its driver refuses.
    pub async fn open(choice: &AdapterChoice) -> Result<Self, GpuError> {
        let adapter = choose(choice).await?;
        let summary = summarise(0, &adapter);
        let refused = |reason: String| GpuError::NoDevice { adapter: summary.name.clone(), reason };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("laneway"),
            // All that the adapter has: burn's kernels are written for the adapter's features, not the device's.
            required_features: adapter.features()
                - wgpu::Features::MAPPABLE_PRIMARY_BUFFERS
                - wgpu::Features::all_experimental_mask(),
            required_limits: adapter.limits(),
            // burn batches small allocations itself, and ours are large.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let (device, queue) = adapter.request_device(&descriptor).await.map_err(|e| refused(e.to_string()))?;
        let setup = WgpuSetup {
            instance: instance(),
            backend: adapter.get_info().backend,
            adapter,
            device: device.clone(),
            queue: queue.clone(),
        };
        // One page an allocation: weights stay for ever and must not be moved or padded to a neighbour's size.
        let options = RuntimeOptions { memory_config: MemoryConfiguration::ExclusivePages, ..options()? };
        let tensors = try_init_device(setup, options).map_err(|e| GpuError::Tensors(e.to_string()))?;
        // A device tells one listener, the last one set; cubecl's, which this one replaces, panics on every error.
        let failure = Arc::new(Mutex::new(None));
        watch(&device, &failure);
        Ok(Self { device, queue, tensors: tensors.into(), pipelines: Arc::default(), summary, failure })
    }

    /// The adapter behind the device.
    pub fn summary(&self) -> &AdapterSummary {
        &self.summary
    }

    /// The same device with work laid out for another class of adapter: tests run both shapes of work on one adapter.
    pub fn laid_out_for(mut self, class: AdapterClass) -> Self {
        self.summary.class = class;
        self
    }

    /// burn's handle of the device.
    pub fn tensors(&self) -> &burn::tensor::Device {
        &self.tensors
    }

    /// Limits of the open device.
    pub fn limits(&self) -> wgpu::Limits {
        self.device.limits()
    }

    /// An error when the device was lost or reported one since it was opened.
    ///
    /// # Errors
    /// [`GpuError::Lost`] with what the driver said first.
    pub fn check(&self) -> Result<(), GpuError> {
        match self.failure.lock().unwrap_or_else(|e| e.into_inner()).as_ref() {
            Some(reason) => Err(GpuError::Lost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Marks the device as lost, as a driver would: for tests of recovery.
    pub fn lose(&self) {
        self.device.destroy();
    }
}

fn options() -> Result<RuntimeOptions, GpuError> {
    RuntimeOptions::try_default().map_err(|e| GpuError::Tensors(e.to_string()))
}

fn watch(device: &wgpu::Device, failure: &Arc<Mutex<Option<String>>>) {
    let note = |failure: &Mutex<Option<String>>, reason: String| {
        failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(reason);
    };
    let errors = failure.clone();
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| note(&errors, error.to_string())));
    let losses = failure.clone();
    device.set_device_lost_callback(move |_, reason| note(&losses, reason));
}

/// Graphics interfaces with compute shaders good enough for us; OpenGL is not.
const BACKENDS: wgpu::Backends = wgpu::Backends::VULKAN
    .union(wgpu::Backends::METAL)
    .union(wgpu::Backends::DX12)
    .union(wgpu::Backends::BROWSER_WEBGPU);

fn instance() -> wgpu::Instance {
    let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    wgpu::Instance::new(wgpu::InstanceDescriptor { backends: BACKENDS, ..descriptor })
}

async fn enumerate() -> Vec<wgpu::Adapter> {
    let mut adapters = instance().enumerate_adapters(BACKENDS).await;
    adapters.sort_by_key(|a| match a.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    adapters
}

async fn choose(choice: &AdapterChoice) -> Result<wgpu::Adapter, GpuError> {
    if *choice == AdapterChoice::Any {
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let found = instance().request_adapter(&options).await;
        return found.map_err(|e| GpuError::NoAdapter { wanted: "any".into(), found: e.to_string() });
    }
    let adapters = enumerate().await;
    let found = adapters.iter().map(|a| a.get_info().name).collect::<Vec<_>>().join(", ");
    let found = if found.is_empty() { "none (is a Vulkan, Metal or DX12 driver installed?)".into() } else { found };
    let wanted = match choice {
        AdapterChoice::Hardware => "real graphics card".to_string(),
        AdapterChoice::Index(index) => format!("number {index}"),
        AdapterChoice::Name(name) => name.clone(),
        AdapterChoice::Any => "any".to_string(),
    };
    let matches = |(index, adapter): &(usize, wgpu::Adapter)| match choice {
        AdapterChoice::Hardware => class_of(&adapter.get_info()) == AdapterClass::Hardware,
        AdapterChoice::Index(wanted) => index == wanted,
        AdapterChoice::Name(name) => adapter.get_info().name.to_lowercase().contains(&name.to_lowercase()),
        AdapterChoice::Any => true,
    };
    let chosen = adapters.into_iter().enumerate().find(matches);
    chosen.map(|(_, adapter)| adapter).ok_or(GpuError::NoAdapter { wanted, found })
}

fn summarise(index: usize, adapter: &wgpu::Adapter) -> AdapterSummary {
    let info = adapter.get_info();
    AdapterSummary {
        index,
        class: class_of(&info),
        name: name_of(&info),
        api: info.backend.to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
        max_binding_bytes: adapter.limits().max_storage_buffer_binding_size,
    }
}

/// Browsers tell no name.
fn name_of(info: &wgpu::AdapterInfo) -> String {
    let names = [info.name.as_str(), info.driver_info.as_str(), "unnamed adapter"];
    names.into_iter().find(|name| !name.is_empty()).expect("the last is not empty").to_string()
}

fn class_of(info: &wgpu::AdapterInfo) -> AdapterClass {
    let name = format!("{} {} {}", info.name, info.driver, info.driver_info).to_lowercase();
    let software = ["swiftshader", "llvmpipe", "lavapipe", "basic render"].iter().any(|n| name.contains(n));
    if software || info.device_type == wgpu::DeviceType::Cpu { AdapterClass::Software } else { AdapterClass::Hardware }
}
