use crate::{OpenError, Sizes};
use laneway_files::{ModelConfig, Weights};
use laneway_model::{KvType, PAGE_POSITIONS};
use std::ops::Range;

/// What a model is about to need, checked against what there is before anything is allocated.
pub(crate) struct Need {
    pub lanes: usize,
    pub context_length: usize,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
}

impl Need {
    /// What some consecutive layers need, with all that is not in a layer.
    pub fn of(weights: &Weights, sizes: Sizes, layers: &Range<usize>) -> Self {
        let Sizes { lanes, context_length, pages, kv_type } = sizes;
        let positions = (pages as u64).saturating_mul(PAGE_POSITIONS as u64);
        let kv_bytes = positions.saturating_mul(kv_bytes_per_position(weights.config(), layers, kv_type));
        let elsewhere = |name: &str| {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            layer.is_some_and(|layer| !layers.contains(&layer))
        };
        let others: u64 = weights
            .tensors()
            .iter()
            .filter(|tensor| elsewhere(&tensor.name))
            .map(|tensor| tensor.byte_len() as u64)
            .sum();
        Self { lanes, context_length, weight_bytes: weights.total_bytes().saturating_sub(others), kv_bytes }
    }

    /// KV bytes of one sequence of full length.
    pub fn sequence_bytes(&self, config: &ModelConfig, layers: &Range<usize>, kv_type: KvType) -> u64 {
        kv_bytes_per_position(config, layers, kv_type).saturating_mul(self.context_length as u64)
    }

    pub fn check(&self, device: &str, reserved_bytes: u64, available_bytes: Option<u64>) -> Result<(), OpenError> {
        let Some(available_bytes) = available_bytes else { return Ok(()) };
        if reserved_bytes <= available_bytes {
            return Ok(());
        }
        Err(OpenError::TooLarge {
            device: device.into(),
            needed_bytes: reserved_bytes,
            weight_bytes: self.weight_bytes,
            kv_bytes: self.kv_bytes,
            lanes: self.lanes,
            context_length: self.context_length,
            available_bytes,
        })
    }
}

/// Bytes one position takes over these layers.
pub(crate) fn kv_bytes_per_position(config: &ModelConfig, layers: &Range<usize>, kv_type: KvType) -> u64 {
    let owners = config.layers.iter().enumerate().filter(|(i, layer)| layer.kv_layer == *i && layers.contains(i));
    owners.map(|(_, layer)| 2 * kv_type.resident_bytes(layer.kv_heads * layer.head_dim) as u64).sum()
}

/// Memory that the system can still give, where it says so.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
