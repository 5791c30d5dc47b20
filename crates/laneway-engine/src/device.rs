use crate::OpenError;
use laneway_kernels::{AdapterChoice, AdapterClass, AdapterSummary, Gpu, adapters};
use std::fmt;
use std::str::FromStr;

/// Where a model computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A real GPU if there is one, else the cpu.
    Auto,
    /// The cpu device.
    Cpu,
    /// The best real GPU.
    Gpu,
    /// A graphics adapter by part of its name; the way to a software adapter.
    Name(String),
    /// A graphics adapter by its number in the list of devices.
    Index(usize),
}

impl FromStr for DeviceChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.trim() {
            "" | "auto" => Self::Auto,
            "cpu" => Self::Cpu,
            "gpu" => Self::Gpu,
            // Mesa's software Vulkan names itself llvmpipe; people know it as lavapipe.
            "lavapipe" => Self::Name("llvmpipe".into()),
            other => other.parse().map_or_else(|_| Self::Name(other.into()), Self::Index),
        })
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu => f.write_str("gpu"),
            Self::Name(name) => f.write_str(name),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}

/// A device a model can run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// What `--device` takes for it.
    pub choice: DeviceChoice,
    /// Its name.
    pub name: String,
    /// vulkan, metal, dx12, webgpu, or cpu.
    pub api: String,
    /// Driver and version, empty for the cpu.
    pub driver: String,
    /// Whether `auto` may take it.
    pub automatic: bool,
}

impl DeviceSummary {
    pub(crate) fn cpu(threads: usize) -> Self {
        Self {
            choice: DeviceChoice::Cpu,
            name: format!("cpu with {threads} threads"),
            api: "cpu".into(),
            driver: String::new(),
            automatic: true,
        }
    }

    pub(crate) fn gpu(adapter: &AdapterSummary) -> Self {
        Self {
            choice: DeviceChoice::Index(adapter.index),
            name: adapter.name.clone(),
            api: adapter.api.clone(),
            driver: adapter.driver.clone(),
            automatic: adapter.class == AdapterClass::Hardware,
        }
    }
}

/// All devices of this machine: graphics adapters, then the cpu.
pub async fn devices() -> Vec<DeviceSummary> {
    let mut all: Vec<_> = adapters().await.iter().map(DeviceSummary::gpu).collect();
    all.push(DeviceSummary::cpu(cores()));
    all
}

pub(crate) enum Resolved {
    Cpu,
    Gpu(Gpu),
}

pub(crate) async fn resolve(choice: &DeviceChoice) -> Result<Resolved, OpenError> {
    let adapter = match choice {
        DeviceChoice::Cpu => return Ok(Resolved::Cpu),
        // A browser offers one adapter, without a choice.
        DeviceChoice::Auto | DeviceChoice::Gpu if cfg!(target_arch = "wasm32") => AdapterChoice::Any,
        DeviceChoice::Auto if !adapters().await.iter().any(|a| a.class == AdapterClass::Hardware) => {
            return Ok(Resolved::Cpu);
        }
        DeviceChoice::Auto | DeviceChoice::Gpu => AdapterChoice::Hardware,
        DeviceChoice::Name(name) => AdapterChoice::Name(name.clone()),
        DeviceChoice::Index(index) => AdapterChoice::Index(*index),
    };
    Ok(Resolved::Gpu(Gpu::open(&adapter).await?))
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_read_as_people_write_them() {
        let check = |text: &str, expected| assert_eq!(text.parse(), Ok(expected), "{text}");
        check("auto", DeviceChoice::Auto);
        check("cpu", DeviceChoice::Cpu);
        check("gpu", DeviceChoice::Gpu);
        check("1", DeviceChoice::Index(1));
        check("lavapipe", DeviceChoice::Name("llvmpipe".into()));
        check("Radeon", DeviceChoice::Name("Radeon".into()));
    }
}
