use crate::device::AdapterClass;
use crate::recorder::{GpuAct, Recorder};
use crate::shader::{Shader, Variant};
use crate::state::LANE_WORDS;
use laneway_model::sample::{Picked, SamplerParams};

/// Words of one row's result: `struct Picked` in `shaders/sample_pick.wgsl`.
pub(crate) const PICKED_WORDS: usize = 44;
const SCAN_CHUNK: usize = 4096;

/// A lane's parameters as `struct Lane` in `shaders/score.wgsl`.
pub(crate) fn lane_words(params: &SamplerParams) -> [u32; LANE_WORDS] {
    [
        params.temperature.to_bits(),
        params.top_p.to_bits(),
        params.min_p.to_bits(),
        params.repetition.to_bits(),
        params.presence.to_bits(),
        params.frequency.to_bits(),
        params.top_k,
        params.top_logprobs,
        params.seed as u32,
        (params.seed >> 32) as u32,
        params.penalises().into(),
        0,
    ]
}

pub(crate) fn record_sampling(recorder: &mut Recorder<'_>, logits: &GpuAct, softcap: Option<f32>) -> GpuAct {
    let vocab = logits.cols;
    let chunks = vocab.div_ceil(SCAN_CHUNK);
    let scan = recorder.act(logits.rows, 4 * chunks);
    let picked = recorder.act(logits.rows, PICKED_WORDS);
    let workgroup = if recorder.gpu.summary().class == AdapterClass::Software { 32 } else { 256 };
    let params = [vocab.into(), chunks.into(), softcap.unwrap_or(0.0).into()];
    let scanned = Variant::new(Shader::SampleScan, &[("WORKGROUP", workgroup), ("CHUNK", SCAN_CHUNK as u32)]);
    let state = &recorder.state;
    let shared = [&logits.loan.buffer, &state.rows, &state.wanted, &state.lanes, &state.counts, &scan.loan.buffer];
    let (wanted, sampled) = (logits.rows, state.sampled.clone());
    recorder.plan.dispatch(scanned, &params, &shared, [chunks, wanted, 1]);
    let mut buffers = shared.to_vec();
    buffers.extend([&sampled, &picked.loan.buffer]);
    let pick = Variant::new(Shader::SamplePick, &[("WORKGROUP", workgroup)]);
    recorder.plan.dispatch(pick, &params, &buffers, [wanted, 1, 1]);
    picked
}

/// Reads one row's result.
pub(crate) fn decode(words: &[u32]) -> Picked {
    let tops = (words[2] as usize).min(20);
    let mut top: Vec<(u32, f32)> = (0..tops).map(|i| (words[4 + i], f32::from_bits(words[24 + i]))).collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    Picked { token: words[0], logprob: f32::from_bits(words[1]), top }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::GpuError;
    use crate::device::Gpu;
    use crate::draft::DRAFT_BYTES;
    use crate::plan::PlanBuilder;
    use crate::readback::read_back;
    use crate::recorder::StepShape;
    use crate::scratch::Scratch;
    use crate::state::{DeviceState, StateShape};

    /// Samples once from given logits with the device's kernels.
    pub(crate) fn sample_once(
        gpu: &Gpu,
        logits: &[f32],
        counts: &[u32],
        params: SamplerParams,
        position: u32,
    ) -> Result<Picked, GpuError> {
        let shape = StateShape {
            lanes: 1,
            slots: 1,
            pages: 1,
            max_pages: 1,
            max_rows: 1,
            vocab: logits.len(),
            canvas_length: 0,
            hidden: 0,
            kv_type: laneway_model::KvType::F32,
        };
        let mut state = DeviceState::new(gpu, &[], shape);
        state.rows.write(gpu, 0, &[0, position, 0, 0]);
        state.lanes.write(gpu, 0, &lane_words(&params));
        state.counts.write(gpu, 0, counts);
        let scratch = Scratch::new(gpu);
        let plan = PlanBuilder::new(gpu);
        let mut recorder = Recorder {
            gpu,
            plan,
            scratch: &scratch,
            state: &mut state,
            shape: StepShape { tokens: 1, wanted: 1, ..StepShape::default() },
            draft_bytes: DRAFT_BYTES,
            observed: None,
        };
        let act = recorder.act(1, logits.len());
        act.loan.buffer.write(gpu, 0, bytemuck::cast_slice(logits));
        let picked = record_sampling(&mut recorder, &act, None);
        let plan = recorder.plan.finish();
        gpu.tensors.flush().map_err(|e| GpuError::Lost(e.to_string()))?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        plan.encode(&mut encoder);
        gpu.queue.submit([encoder.finish()]);
        let words: Vec<u32> = pollster::block_on(read_back(gpu, &picked))?.into_iter().map(f32::to_bits).collect();
        Ok(decode(&words))
    }
}
