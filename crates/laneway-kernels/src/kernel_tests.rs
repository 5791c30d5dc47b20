//! Each kernel against a plain loop over dequantised weights, on odd shapes, in both shapes of work.

use crate::device::{AdapterChoice, AdapterClass, Gpu};
use crate::draft::DRAFT_BYTES;
use crate::plan::PlanBuilder;
use crate::readback::read_back;
use crate::recorder::{GpuAct, Recorder, StepShape};
use crate::sampling::tests::sample_once;
use crate::scratch::Scratch;
use crate::state::{DeviceState, StateShape};
use crate::weights::GpuSpace;
use laneway_files::{Activation, Format, RopePairs, Tensor};
use laneway_model::sample::{IN_PROMPT, SamplerParams, sample};
use laneway_model::{Attention, ExpertShape, KvShape, Ops, Residual, WeightSpace};

pub(crate) const CLASSES: [AdapterClass; 2] = [AdapterClass::Software, AdapterClass::Hardware];

pub(crate) const SMALL: StateShape = StateShape {
    lanes: 1,
    slots: 1,
    pages: 1,
    max_pages: 1,
    max_rows: 64,
    vocab: 8,
    canvas_length: 0,
    hidden: 0,
    kv_type: laneway_model::KvType::F32,
};

/// Numbers from a counter, so that failures repeat.
pub(crate) struct Noise(pub u64);

impl Noise {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn float(&mut self) -> f32 {
        (self.word() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

pub(crate) fn gpu(class: AdapterClass) -> Gpu {
    let gpu = pollster::block_on(Gpu::open(&AdapterChoice::for_tests()));
    gpu.expect("tests need lavapipe: `cargo xtask setup`").laid_out_for(class)
}

/// Random blocks whose scales are ordinary numbers.
pub(crate) fn random_tensor(format: Format, rows: usize, cols: usize, noise: &mut Noise) -> Tensor {
    let mut bytes = Vec::new();
    for _ in 0..rows * cols / format.block_len() {
        let mut block: Vec<u8> = (0..format.block_bytes()).map(|_| noise.word() as u8).collect();
        let mut half = |at: usize| {
            let value = half::f16::from_f32(noise.float() * 0.1);
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        match format {
            Format::F32 => block = noise.float().to_le_bytes().to_vec(),
            Format::F16 => half(0),
            Format::BF16 => block = noise.float().to_le_bytes()[2..].to_vec(),
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => half(0),
            Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => {
                half(0);
                half(2);
            }
            Format::Q2K => {
                half(80);
                half(82);
            }
            Format::Q3K => half(108),
            Format::Q6K => half(208),
            Format::Mxfp4 => block[0] = 120 + block[0] % 8,
            Format::Nvfp4 => block[..4].iter_mut().for_each(|s| *s = 40 + *s % 16),
        }
        bytes.extend(block);
    }
    Tensor::from_bytes("test", format, vec![rows, cols], bytes).unwrap()
}

fn with_recorder(gpu: &Gpu, tokens: usize, record: impl FnOnce(&mut Recorder<'_>) -> GpuAct) -> Vec<f32> {
    with_state(gpu, tokens, DeviceState::new(gpu, &[], SMALL), record)
}

fn with_state(
    gpu: &Gpu,
    tokens: usize,
    mut state: DeviceState,
    record: impl FnOnce(&mut Recorder<'_>) -> GpuAct,
) -> Vec<f32> {
    let shape = StepShape { tokens, ..StepShape::default() };
    run(gpu, &mut state, shape, DRAFT_BYTES, record)
}

/// Records one plan over a state, runs it and reads what it made.
pub(crate) fn run(
    gpu: &Gpu,
    state: &mut DeviceState,
    shape: StepShape,
    draft_bytes: usize,
    record: impl FnOnce(&mut Recorder<'_>) -> GpuAct,
) -> Vec<f32> {
    let scratch = Scratch::new(gpu);
    let plan = PlanBuilder::new(gpu);
    let mut recorder = Recorder { gpu, plan, scratch: &scratch, state, shape, draft_bytes, observed: None };
    let act = record(&mut recorder);
    let plan = recorder.plan.finish();
    gpu.tensors.flush().unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    plan.encode(&mut encoder);
    gpu.queue.submit([encoder.finish()]);
    let found = pollster::block_on(read_back(gpu, &act)).unwrap();
    gpu.check().unwrap();
    found
}

pub(crate) fn upload(recorder: &Recorder<'_>, rows: usize, cols: usize, values: &[f32]) -> GpuAct {
    let act = recorder.act(rows, cols);
    act.loan.buffer.write(recorder.gpu, 0, bytemuck::cast_slice(values));
    act
}

pub(crate) fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 2e-5 * scale, "{what} at {i}: {a} for {b} (scale {scale})");
    }
}

pub(crate) fn dot(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

fn activated(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
    }
}

#[test]
fn products_of_every_format_match_dequantised_weights() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(1);
        for format in Format::ALL {
            // Rows and tokens that fill no tile; cols that end in the middle of nothing but a block.
            let cols = if format.block_len() == 256 { 512 } else { 192 };
            for (rows, tokens) in [(1, 1), (37, 1), (37, 3), (70, 21)] {
                let tensor = random_tensor(format, rows, cols, &mut noise);
                let x = noise.floats(tokens * cols);
                let weights = tensor.to_f32();
                let expected: Vec<f32> = x
                    .chunks_exact(cols)
                    .flat_map(|x| weights.chunks_exact(cols).map(|w| dot(x, w)).collect::<Vec<_>>())
                    .collect();
                let matrix = GpuSpace::new(&gpu).matrix(&[&tensor]).unwrap();
                let found = with_recorder(&gpu, tokens, |recorder| {
                    let x = upload(recorder, tokens, cols, &x);
                    recorder.linear(&x, &matrix)
                });
                assert_close(&found, &expected, &format!("{} {class:?} {rows} rows {tokens} tokens", format.name()));
            }
        }
    }
}

#[test]
fn gated_products_match_in_every_shape_of_work() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(2);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for (ff, tokens) in [(5, 1), (45, 2), (45, 6), (70, 19)] {
                let (cols, format) = (64, Format::Q4_1);
                let [gate, up] = [(); 2].map(|()| random_tensor(format, ff, cols, &mut noise));
                let x = noise.floats(tokens * cols);
                let (g, u) = (gate.to_f32(), up.to_f32());
                let mut expected = Vec::new();
                for x in x.chunks_exact(cols) {
                    for (g, u) in g.chunks_exact(cols).zip(u.chunks_exact(cols)) {
                        expected.push(activated(dot(x, g), activation) * dot(x, u));
                    }
                }
                let matrix = GpuSpace::new(&gpu).matrix(&[&gate, &up]).unwrap();
                let found = with_recorder(&gpu, tokens, |recorder| {
                    let x = upload(recorder, tokens, cols, &x);
                    recorder.gated_linear(&x, &matrix, activation)
                });
                assert_close(&found, &expected, &format!("{class:?} {activation:?} {ff} {tokens}"));
            }
        }
    }
}

#[test]
fn tensors_of_different_formats_make_one_matrix() {
    let gpu = gpu(AdapterClass::Software);
    let mut noise = Noise(3);
    for formats in [[Format::Q5_0, Format::Q8_0, Format::Q4_0], [Format::Q5_0, Format::Q4K, Format::F32]] {
        let parts = formats.map(|format| random_tensor(format, 11, 256, &mut noise));
        let x = noise.floats(256);
        let expected: Vec<f32> =
            parts.iter().flat_map(|p| p.to_f32().chunks_exact(256).map(|w| dot(&x, w)).collect::<Vec<_>>()).collect();
        let matrix = GpuSpace::new(&gpu).matrix(&parts.each_ref()).unwrap();
        let found = with_recorder(&gpu, 1, |recorder| {
            let x = upload(recorder, 1, 256, &x);
            recorder.linear(&x, &matrix)
        });
        assert_close(&found, &expected, &format!("{formats:?}"));
    }
}

#[test]
fn experts_are_chosen_and_summed_as_their_weights_say() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(4);
        let (tokens, hidden, ff, shape) = (3, 32, 24, ExpertShape { count: 5, used: 2 });
        let gate_up = random_tensor(Format::F32, shape.count * 2 * ff, hidden, &mut noise);
        let down = random_tensor(Format::F32, shape.count * hidden, ff, &mut noise);
        let (logits, x) = (noise.floats(tokens * shape.count), noise.floats(tokens * hidden));
        let scale = noise.floats(shape.count);
        let (gu, d) = (gate_up.to_f32(), down.to_f32());
        let mut expected = Vec::new();
        for t in 0..tokens {
            let mine = &logits[t * shape.count..(t + 1) * shape.count];
            let mut order: Vec<usize> = (0..shape.count).collect();
            order.sort_by(|&a, &b| mine[b].total_cmp(&mine[a]));
            let chosen = &order[..shape.used];
            let mass: f32 = chosen.iter().map(|&e| mine[e].exp()).sum();
            let mut sum = vec![0.0; hidden];
            for &e in chosen {
                let row = |i: usize| &gu[(e * 2 * ff + i) * hidden..][..hidden];
                let x = &x[t * hidden..(t + 1) * hidden];
                let h: Vec<f32> =
                    (0..ff).map(|i| activated(dot(x, row(i)), Activation::GeluTanh) * dot(x, row(ff + i))).collect();
                for (i, s) in sum.iter_mut().enumerate() {
                    *s += mine[e].exp() / mass * scale[e] * dot(&h, &d[(e * hidden + i) * ff..][..ff]);
                }
            }
            expected.extend(sum);
        }
        let mut space = GpuSpace::new(&gpu);
        let (gate_up, down) = (space.matrix(&[&gate_up]).unwrap(), space.matrix(&[&down]).unwrap());
        let scale = space.vector(&scale).unwrap();
        let found = with_recorder(&gpu, tokens, |recorder| {
            let logits = upload(recorder, tokens, shape.count, &logits);
            let x = upload(recorder, tokens, hidden, &x);
            let routes = recorder.route(&logits, shape.used, Some(&scale));
            let h = recorder.expert_gated_linear(&x, &gate_up, &routes, shape, Activation::GeluTanh);
            recorder.expert_linear_sum(&h, &down, &routes, shape)
        });
        assert_close(&found, &expected, &format!("{class:?}"));
    }
}

#[test]
fn norms_and_residuals_match_on_odd_widths() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(5);
        for cols in [1usize, 7, 64, 300] {
            let [x, a, post, next] = [2 * cols, 2 * cols, cols, cols].map(|n| noise.floats(n));
            let rms = |v: &[f32], w: &[f32]| -> Vec<f32> {
                let factor = (v.iter().map(|v| v * v).sum::<f32>() / v.len() as f32 + 1e-5).sqrt();
                v.iter().zip(w).map(|(v, w)| v / factor * w).collect()
            };
            let mut expected = Vec::new();
            for t in 0..2 {
                let own = t * cols..(t + 1) * cols;
                let normed = rms(&a[own.clone()], &post);
                let sum: Vec<f32> = x[own].iter().zip(normed).map(|(x, a)| (x + a) * 0.5).collect();
                expected.extend(rms(&sum, &next));
            }
            let mut space = GpuSpace::new(&gpu);
            let (post, next) = (space.vector(&post).unwrap(), space.vector(&next).unwrap());
            let found = with_recorder(&gpu, 2, |recorder| {
                let mut x = upload(recorder, 2, cols, &x);
                let a = upload(recorder, 2, cols, &a);
                recorder.add_norm(&mut x, &a, Residual { post: Some(&post), scale: 0.5, eps: 1e-5 }, &next)
            });
            assert_close(&found, &expected, &format!("{class:?} {cols}"));
        }
    }
}

#[test]
fn attention_over_several_pages_and_tiles_matches_a_loop() {
    // 150 positions: past five pages and two tiles of the kernel for GPUs; a head of 80 fills no power of two.
    let (tokens, pages) = (150usize, [4u32, 0, 3, 1, 2]);
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(7);
        for (heads, kv_heads, head_dim, window) in [(4, 2, 16, None), (3, 1, 80, Some(70)), (2, 2, 32, Some(1))] {
            let cols = (heads + 2 * kv_heads) * head_dim;
            let qkv = noise.floats(tokens * cols);
            let part = |t: usize, head: usize| &qkv[t * cols + head * head_dim..][..head_dim];
            let mut expected = Vec::new();
            for t in 0..tokens {
                for head in 0..heads {
                    let kv_head = head / (heads / kv_heads);
                    let first = window.map_or(0, |w: usize| (t + 1).saturating_sub(w));
                    let scores: Vec<f32> =
                        (first..=t).map(|k| 0.3 * dot(part(t, head), part(k, heads + kv_head))).collect();
                    let highest = scores.iter().copied().fold(f32::MIN, f32::max);
                    let mass: f32 = scores.iter().map(|s| (s - highest).exp()).sum();
                    let weighted = |i: usize| -> f32 {
                        let each = scores.iter().enumerate();
                        each.map(|(at, s)| (s - highest).exp() / mass * part(first + at, heads + kv_heads + kv_head)[i])
                            .sum()
                    };
                    expected.extend((0..head_dim).map(weighted));
                }
            }
            let shape = StateShape { pages: 5, max_pages: 5, max_rows: tokens, ..SMALL };
            let state = DeviceState::new(&gpu, &[Some(KvShape { kv_heads, head_dim })], shape);
            let rows: Vec<u32> = (0..tokens as u32).flat_map(|t| [0, t, 0, 0]).collect();
            state.rows.write(&gpu, 0, &rows);
            state.tables.write(&gpu, 0, &pages);
            let still = GpuSpace::new(&gpu).vector(&vec![0.0; head_dim / 2]).unwrap();
            let attention = Attention {
                kv_layer: 0,
                writes_kv: true,
                heads,
                kv_heads,
                head_dim,
                window,
                scale: 0.3,
                eps: 1e-6,
                q_norm: None,
                k_norm: None,
                unit_value_norm: false,
                value_from_key: false,
                inv_freq: &still,
                pairs: RopePairs::Half,
            };
            let found = with_state(&gpu, tokens, state, |recorder| {
                let qkv = upload(recorder, tokens, cols, &qkv);
                recorder.attention(&qkv, &attention)
            });
            assert_close(&found, &expected, &format!("{class:?} {heads} heads of {head_dim}, window {window:?}"));
        }
    }
}

#[test]
fn sampling_on_the_device_follows_the_reference() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(6);
        let base = SamplerParams { temperature: 0.8, seed: 0x1234_5678_9abc, ..SamplerParams::GREEDY };
        let cases = [
            SamplerParams::GREEDY,
            base,
            SamplerParams { top_k: 5, ..base },
            SamplerParams { top_p: 0.6, ..base },
            SamplerParams { min_p: 0.2, ..base },
            SamplerParams { top_k: 40, top_p: 0.9, min_p: 0.01, ..base },
            SamplerParams { repetition: 1.3, presence: 0.5, frequency: 0.25, ..base },
            SamplerParams { repetition: 0.8, top_logprobs: 20, ..SamplerParams::GREEDY },
            SamplerParams { top_logprobs: 3, ..base },
        ];
        for vocab in [5usize, 300, 9001] {
            for (case, params) in cases.iter().enumerate() {
                for position in 0..4 {
                    let logits: Vec<f32> = noise.floats(vocab).iter().map(|l| l * 6.0).collect();
                    let counts: Vec<u32> = (0..vocab as u32)
                        .map(|i| match i % 5 {
                            0 => IN_PROMPT,
                            1 => 2,
                            2 => IN_PROMPT | 1,
                            _ => 0,
                        })
                        .collect();
                    let expected = sample(&logits, &counts, params, position);
                    let found = sample_once(&gpu, &logits, &counts, *params, position).unwrap();
                    let what = format!("{class:?} vocab {vocab} case {case} position {position}");
                    assert_eq!(found.token, expected.token, "{what}");
                    assert!((found.logprob - expected.logprob).abs() < 1e-4, "{what}: {found:?} {expected:?}");
                    assert_eq!(
                        found.top.iter().map(|t| t.0).collect::<Vec<_>>(),
                        expected.top.iter().map(|t| t.0).collect::<Vec<_>>(),
                        "{what}"
                    );
                }
            }
        }
    }
}
