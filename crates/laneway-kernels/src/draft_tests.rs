//! The kernels of blocks, labels and drafts against plain loops, on odd shapes, in both shapes of work.

use crate::draft::DRAFT_BYTES;
use crate::kernel_tests::{CLASSES, Noise, SMALL, assert_close, dot, gpu, random_tensor, run, upload};
use crate::plain::drafted;
use crate::readback::buffer_words;
use crate::recorder::{GpuAct, Recorder, StepShape};
use crate::state::{DeviceState, StateShape};
use crate::weights::GpuSpace;
use crate::{AdapterClass, Gpu};
use laneway_files::{Format, RopePairs, Tensor};
use laneway_model::{Attention, Block, DRAFT_COLUMNS, Draft, DraftHead, Drafted, KvShape, Ops, Row, WeightSpace};

fn write_rows(gpu: &Gpu, state: &DeviceState, rows: &[Row]) {
    let words: Vec<u32> = rows.iter().flat_map(|r| [r.token, r.position, r.lane, r.block_word()]).collect();
    state.rows.write(gpu, 0, &words);
}

fn capped(logit: f32, softcap: Option<f32>) -> f32 {
    softcap.map_or(logit, |cap| cap * (logit / cap).tanh())
}

/// Logits `[rows, V]` of `x [rows, cols]`.
fn plain_logits(x: &[f32], table: &[f32], cols: usize, softcap: Option<f32>) -> Vec<f32> {
    let row = |x: &[f32]| table.chunks_exact(cols).map(|w| capped(dot(x, w), softcap)).collect::<Vec<_>>();
    x.chunks_exact(cols).flat_map(row).collect()
}

#[test]
fn labels_of_every_format_and_part_match_dequantised_weights() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(11);
        for format in Format::ALL {
            let cols = if format.block_len() == 256 { 512 } else { 192 };
            // A second format makes a second part, except where both are one.
            let parts = [(format, 23), (Format::F32, 14)].map(|(f, rows)| random_tensor(f, rows, cols, &mut noise));
            let table: Vec<f32> = parts.iter().flat_map(Tensor::to_f32).collect();
            let matrix = GpuSpace::new(&gpu).matrix(&parts.each_ref()).unwrap();
            assert_eq!(matrix.parts.len(), if format == Format::F32 { 1 } else { 2 });
            for (count, softcap) in [(1usize, None), (5, Some(3.0)), (11, Some(30.0))] {
                let x = noise.floats(3 * cols);
                // The ends of both parts, then any.
                let ends = [22, 23, 36, 0];
                let pairs: Vec<(usize, usize)> = (0..count)
                    .map(|i| (i % 3, ends.get(i).copied().unwrap_or_else(|| noise.word() as usize % 37)))
                    .collect();
                let all = plain_logits(&x, &table, cols, softcap);
                let expected: Vec<f32> = pairs.iter().map(|&(row, token)| all[row * 37 + token]).collect();
                let mut state = DeviceState::new(&gpu, &[], SMALL);
                gpu.tensors.flush().unwrap();
                let mut words: Vec<u32> = pairs.iter().flat_map(|p| [p.0 as u32, p.1 as u32]).collect();
                words.resize(2 * count.next_power_of_two(), u32::MAX);
                state.labels.write(&gpu, 0, &words);
                let shape = StepShape { tokens: 3, labels: count.next_power_of_two(), ..StepShape::default() };
                let found = run(&gpu, &mut state, shape, DRAFT_BYTES, |recorder| {
                    let x = upload(recorder, 3, cols, &x);
                    recorder.label_logits(&x, &matrix, softcap)
                });
                assert_close(&found[..count], &expected, &format!("{} {class:?} {count}", format.name()));
            }
        }
    }
}

/// A draft of some rows of a canvas of 80 that two slots have soft embeddings of.
struct Case<'a> {
    head: &'a [&'a Tensor],
    embed: Option<(&'a [&'a Tensor], f32)>,
    softcap: Option<f32>,
    forbidden: Option<u32>,
    rows: usize,
    draft_bytes: usize,
}

const CANVAS: usize = 80;

fn floats_of(parts: &[&Tensor]) -> Vec<f32> {
    parts.iter().flat_map(|part| part.to_f32()).collect()
}

/// Runs a case with temperatures and draws of all kinds and checks all that it leaves.
fn check(gpu: &Gpu, case: &Case<'_>, noise: &mut Noise, what: &str) {
    let cols = case.head[0].cols();
    let (tokens, head) = (case.rows + 3, floats_of(case.head));
    let vocab = head.len() / cols;
    let x: Vec<f32> = noise.floats(tokens * cols);
    // The wanted rows start at the second, in two slots; places run backwards to see that they are followed.
    let rows: Vec<Row> = (0..tokens)
        .map(|i| {
            let (lane, position) = (u32::from(i > tokens / 2), 100 + (CANVAS - 1 - i) as u32);
            let block = Some(Block { start: 100, len: CANVAS as u32, is_conditioned: false });
            Row { token: 0, position, lane, block }
        })
        .collect();
    let draws = [0.0, 1.0, 0.5, 0.999, 0.1];
    let drafts: Vec<Draft> = (0..case.rows)
        .map(|i| {
            let draw = if i % 7 < 5 { draws[i % 7] } else { noise.float().abs() };
            Draft { row: i as u32 + 2, temperature: [0.8, 0.05, 3.0][i % 3], draw }
        })
        .collect();
    let shape = StateShape { slots: 2, max_rows: 128, canvas_length: CANVAS, hidden: cols, ..SMALL };
    let mut state = DeviceState::new(gpu, &[], shape);
    gpu.tensors.flush().unwrap();
    write_rows(gpu, &state, &rows);
    let before = noise.floats(2 * CANVAS * cols);
    state.soft.write(gpu, 0, bytemuck::cast_slice(&before));
    state.wanted.write(gpu, 0, &drafts.iter().map(|d| d.row).collect::<Vec<_>>());
    let words: Vec<u32> = drafts.iter().flat_map(|d| [d.temperature.to_bits(), d.draw.to_bits()]).collect();
    state.drafts.write(gpu, 0, &words);

    let mut space = GpuSpace::new(gpu);
    let table = space.matrix(case.head).unwrap();
    let embed = case.embed.map(|(parts, scale)| (space.matrix(parts).unwrap(), scale));
    let soften = embed.as_ref().map(|(embed, scale)| (embed, *scale));
    let draft = DraftHead { table: &table, softcap: case.softcap, forbidden: case.forbidden, soften };
    let step = StepShape { tokens, drafts: case.rows, ..StepShape::default() };
    let mut counted = 0;
    let found = run(gpu, &mut state, step, case.draft_bytes, |recorder| {
        let x = upload(recorder, tokens, cols, &x);
        let columns = recorder.draft(&x, &draft);
        counted = recorder.plan.head_multiply_adds();
        columns
    });
    let passes = if case.embed.is_some() && case.draft_bytes < 4 * case.rows * vocab { 2 } else { 1 };
    assert_eq!(counted, (passes * case.rows * vocab * cols) as u64, "{what}");

    let logits = plain_logits(&x, &head, cols, case.softcap);
    let mut soft = before.clone();
    let (columns, rest) = found.as_chunks::<DRAFT_COLUMNS>();
    assert!(rest.is_empty());
    assert_eq!(columns.len(), drafts.len(), "{what}");
    for (i, (draft, columns)) in drafts.iter().zip(columns).enumerate() {
        let what = format!("{what}, row {i} {draft:?}");
        let own = &logits[draft.row as usize * vocab..][..vocab];
        let (expected, probabilities) = drafted(own, draft, case.forbidden);
        check_draft(Drafted::from_columns(columns), expected, &probabilities, draft, case.forbidden, &what);
        if let Some((parts, scale)) = case.embed {
            let row = rows[draft.row as usize];
            let place = row.lane as usize * CANVAS + row.position as usize - 100;
            let embed = floats_of(parts);
            for d in 0..cols {
                let column = embed.iter().skip(d).step_by(cols).zip(&probabilities);
                soft[place * cols + d] = scale * column.map(|(e, p)| f64::from(*e) * f64::from(*p)).sum::<f64>() as f32;
            }
        }
    }
    let words = pollster::block_on(buffer_words(gpu, &state.soft, before.len())).unwrap();
    let left: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
    // Small temperatures magnify the rounding of the logits.
    let scale = soft.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    for (i, (a, b)) in left.iter().zip(&soft).enumerate() {
        assert!((a - b).abs() <= 3e-4 * scale, "{what}: soft embedding at {i} is {a} for {b} (scale {scale})");
    }
}

fn check_draft(
    found: Drafted,
    expected: Drafted,
    probabilities: &[f32],
    draft: &Draft,
    forbidden: Option<u32>,
    what: &str,
) {
    let close = |a: f32, b: f32| (a - b).abs() <= 2e-4 + 2e-5 * b.abs();
    assert_eq!(found.argmax, expected.argmax, "{what}");
    assert!(close(found.argmax_logprob, expected.argmax_logprob), "{what}: {found:?} for {expected:?}");
    assert!(close(found.second_logprob, expected.second_logprob), "{what}: {found:?} for {expected:?}");
    assert!(close(found.entropy, expected.entropy), "{what}: {found:?} for {expected:?}");
    assert_ne!(Some(found.sampled), forbidden, "{what}");
    // Any token whose cumulative probability covers the draw but for rounding.
    let at = found.sampled as usize;
    let through: f64 = probabilities[..=at].iter().map(|&p| f64::from(p)).sum();
    let below = through - f64::from(probabilities[at]);
    let draw = f64::from(draft.draw);
    assert!(through >= draw - 1e-4 && below <= draw + 1e-4, "{what}: {found:?} covers {below} to {through}");
    if draft.draw == 0.0 {
        assert_eq!(found.sampled, expected.sampled, "{what}");
    }
    let logprob = f64::from(probabilities[at]).ln() as f32;
    assert!(close(found.sampled_logprob, logprob) || logprob < -80.0, "{what}: {found:?} for {logprob}");
}

#[test]
fn drafts_match_the_reference_whole_and_in_tiles() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(12);
        // 2501 tokens are three chunks, and with the second part's 38 four.
        let big = random_tensor(Format::F32, 2501, 8, &mut noise);
        let rest = random_tensor(Format::BF16, 38, 8, &mut noise);
        for (forbidden, softcap) in [(None, None), (Some(0), Some(2.0)), (Some(2538), None), (Some(1024), Some(30.0))] {
            for rows in [1, 3, 21] {
                // All at once; tiles of 1500; of 192 and a rest; of 9, shorter than any kernel's.
                for draft_bytes in [DRAFT_BYTES, 6000 * rows, 4 * 200 * rows, 4 * 9 * rows] {
                    let case = Case { head: &[&big, &rest], embed: None, softcap, forbidden, rows, draft_bytes };
                    check(&gpu, &case, &mut noise, &format!("{class:?} {forbidden:?} {rows} rows {draft_bytes} bytes"));
                    if rows == 21 && draft_bytes < 4 * 100 * rows {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn a_tile_of_nothing_but_the_forbidden_token_holds_no_candidate() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(13);
        let head = random_tensor(Format::F32, 5, 8, &mut noise);
        for forbidden in 0..5 {
            let rows = 7;
            let forbidden = Some(forbidden);
            let case = Case { head: &[&head], embed: None, softcap: None, forbidden, rows, draft_bytes: 4 * rows };
            check(&gpu, &case, &mut noise, &format!("{class:?} {forbidden:?}"));
        }
    }
}

#[test]
fn the_lowest_of_equal_tokens_is_the_argmax_in_and_across_tiles() {
    for class in CLASSES {
        let gpu = gpu(class);
        let one: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let bytes: Vec<u8> = std::iter::repeat_n(one, 150).flatten().collect();
        let head = Tensor::from_bytes("test", Format::F32, vec![150, 8], bytes).unwrap();
        for (forbidden, tile) in [(None, 150), (Some(0), 150), (None, 64), (Some(0), 7)] {
            let case =
                Case { head: &[&head], embed: None, softcap: None, forbidden, rows: 4, draft_bytes: 4 * 4 * tile };
            check(&gpu, &case, &mut Noise(14), &format!("{class:?} {forbidden:?} {tile}"));
        }
    }
}

#[test]
fn soft_embeddings_of_every_format_match_dequantised_weights() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(15);
        for format in Format::ALL {
            let cols = if format.block_len() == 256 { 256 } else { 64 };
            let embed = random_tensor(format, 83, cols, &mut noise);
            let head = random_tensor(Format::F32, 83, cols, &mut noise);
            for (rows, draft_bytes) in [(3, DRAFT_BYTES), (10, 4 * 10 * 33)] {
                let case = Case {
                    head: &[&head],
                    embed: Some((&[&embed], 1.5)),
                    softcap: Some(4.0),
                    forbidden: Some(17),
                    rows,
                    draft_bytes,
                };
                check(&gpu, &case, &mut noise, &format!("{} {class:?} {rows}", format.name()));
            }
        }
    }
}

#[test]
fn soft_embeddings_follow_a_table_that_is_split_elsewhere_than_the_head() {
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(16);
        let head = [(Format::F32, 40), (Format::BF16, 100)].map(|(f, rows)| random_tensor(f, rows, 72, &mut noise));
        let embed = [(Format::F16, 90), (Format::F32, 50)].map(|(f, rows)| random_tensor(f, rows, 72, &mut noise));
        // More rows than one workgroup takes, and columns that fill no tile.
        for (rows, tile) in [(67, 140), (67, 64), (5, 30), (1, 130)] {
            let case = Case {
                head: &head.each_ref(),
                embed: Some((&embed.each_ref(), 8.0)),
                softcap: Some(4.0),
                forbidden: None,
                rows,
                draft_bytes: 4 * rows * tile,
            };
            check(&gpu, &case, &mut noise, &format!("{class:?} {rows} rows, tiles of {tile}"));
        }
    }
}

#[test]
fn rows_read_the_soft_embedding_of_their_place_and_slot() {
    let gpu = gpu(AdapterClass::Software);
    let (cols, canvas) = (40, 6);
    let shape = StateShape { lanes: 1, slots: 3, canvas_length: canvas, hidden: cols, ..SMALL };
    let mut state = DeviceState::new(&gpu, &[], shape);
    gpu.tensors.flush().unwrap();
    let soft = Noise(17).floats(3 * canvas * cols);
    state.soft.write(&gpu, 0, bytemuck::cast_slice(&soft));
    let block = |is_conditioned| Some(Block { start: 30, len: 6, is_conditioned });
    let row = |lane, position, block| Row { token: 0, position, lane, block };
    let rows = [
        row(0, 30, block(true)),
        row(0, 35, block(true)),
        row(1, 31, block(false)),
        row(2, 33, block(true)),
        row(2, 33, None),
        // A place past the canvas has nothing to read.
        row(1, 40, Some(Block { start: 30, len: 20, is_conditioned: true })),
    ];
    write_rows(&gpu, &state, &rows);
    let step = StepShape { tokens: rows.len(), ..StepShape::default() };
    let found = run(&gpu, &mut state, step, DRAFT_BYTES, |recorder| recorder.condition(cols));
    let expected: Vec<f32> = [Some(0), Some(5), None, Some(2 * canvas + 3), None, None]
        .into_iter()
        .flat_map(|place| place.map_or(vec![0.0; cols], |place| soft[place * cols..][..cols].to_vec()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn rows_of_blocks_attend_in_both_directions_and_to_the_window_before() {
    // Lane 0: 70 rows, then a block of 45 over three pages; lane 1: a block of 16 at the start, two rows, a block of 5.
    let runs = [(0, 0, 70, false), (0, 70, 45, true), (1, 0, 16, true), (1, 16, 2, false), (1, 18, 5, true)];
    let rows: Vec<Row> = runs
        .into_iter()
        .flat_map(|(lane, start, len, is_block)| {
            let block = is_block.then_some(Block { start, len, is_conditioned: lane == 0 });
            (start..start + len).map(move |position| Row { token: 0, position, lane, block })
        })
        .collect();
    let tables = [4u32, 0, 3, 1, 2, 0, 0, 0];
    for class in CLASSES {
        let gpu = gpu(class);
        let mut noise = Noise(18);
        for (heads, kv_heads, head_dim, window) in
            [(4, 2, 16, None), (3, 1, 80, Some(70)), (2, 2, 32, Some(8)), (2, 1, 16, Some(1))]
        {
            let cols = (heads + 2 * kv_heads) * head_dim;
            let qkv = noise.floats(rows.len() * cols);
            let part = |t: usize, head: usize| &qkv[t * cols + head * head_dim..][..head_dim];
            let mut expected = Vec::new();
            for (t, row) in rows.iter().enumerate() {
                let seen: Vec<usize> = (0..rows.len())
                    .filter(|&k| rows[k].lane == row.lane)
                    .filter(|&k| row.visible(window).contains(&(rows[k].position as usize)))
                    .collect();
                for head in 0..heads {
                    let kv_head = heads + head / (heads / kv_heads);
                    let weights: Vec<f32> =
                        seen.iter().map(|&k| (0.3 * dot(part(t, head), part(k, kv_head))).exp()).collect();
                    let mass: f32 = weights.iter().sum();
                    let mixed = |i: usize| -> f32 {
                        let each = seen.iter().zip(&weights);
                        each.map(|(&k, w)| w / mass * part(k, kv_heads + kv_head)[i]).sum()
                    };
                    expected.extend((0..head_dim).map(mixed));
                }
            }
            let shape = StateShape { lanes: 1, slots: 2, pages: 5, max_pages: 4, max_rows: rows.len(), ..SMALL };
            let mut state = DeviceState::new(&gpu, &[Some(KvShape { kv_heads, head_dim })], shape);
            gpu.tensors.flush().unwrap();
            write_rows(&gpu, &state, &rows);
            state.tables.write(&gpu, 0, &tables);
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
            let step = StepShape { tokens: rows.len(), ..StepShape::default() };
            let attend = |recorder: &mut Recorder<'_>| -> GpuAct {
                let qkv = upload(recorder, rows.len(), cols, &qkv);
                recorder.attention(&qkv, &attention)
            };
            let found = run(&gpu, &mut state, step, DRAFT_BYTES, attend);
            assert_close(&found, &expected, &format!("{class:?} {heads} heads of {head_dim}, window {window:?}"));
        }
    }
}
