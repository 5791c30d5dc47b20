//! Lanes that are decoded in one step answer as each would alone.

use laneway_engine::{DeviceChoice, EngineSettings, ModelEngine};
use laneway_files::Weights;
use laneway_session::{Engine, Row, Sampled, Sampling, SamplingOptions, StepPlan, Token};

const DEVICES: [&str; 2] = ["cpu", "lavapipe"];
const LANES: usize = 8;
const ANSWER: usize = 12;
/// Log probabilities of the same token: batches of another size add the same products in another order.
const TOLERANCE: f32 = 2e-3;

fn open(model: &str, device: &str) -> ModelEngine {
    let path = format!("{}/../../tests/data/fixtures/{model}", env!("CARGO_MANIFEST_DIR"));
    let weights = Weights::open(path).expect("fixtures are valid");
    let device = device.parse::<DeviceChoice>().expect("any text is a choice");
    let settings = EngineSettings { device, lanes: LANES, context_length: Some(96), ..EngineSettings::default() };
    pollster::block_on(ModelEngine::open(&weights, &settings)).expect("tests need lavapipe")
}

/// Prompts of different lengths, some of them over a page's border.
fn prompt(lane: usize) -> Vec<u32> {
    (0..3 + lane * 5).map(|at| ((at * 37 + lane * 101 + 5) % 512) as u32).collect()
}

/// What each of `lanes` answers to its prompt, all of them decoded together, over pages that no other lane has.
fn decode(engine: &mut ModelEngine, lanes: &[usize]) -> Vec<Vec<Sampled>> {
    let limits = engine.limits();
    let each = limits.pages / LANES;
    let greedy = Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }).expect("valid");
    let step = |engine: &mut ModelEngine, rows: Vec<Row>, samples: Vec<u32>| {
        let mut tables = vec![Vec::new(); limits.lanes];
        for row in &rows {
            let pages = row.position as usize / limits.page_positions + 1;
            // The last pages first, so that a table is not its own inverse.
            tables[row.lane] = (0..pages).map(|page| ((row.lane + 1) * each - 1 - page) as u32).collect();
        }
        engine.submit(&StepPlan { rows, tables, samples, ..StepPlan::default() }).expect("the step is valid");
        pollster::block_on(engine.collect()).expect("the device is there").sampled
    };
    let row = |token, position: usize, lane| Row { token, position: position as u32, lane, block: None };
    let mut answers = Vec::new();
    for &lane in lanes {
        let prompt = prompt(lane);
        engine.begin(lane, &greedy, &prompt).expect("the lane exists");
        for (at, chunk) in prompt.chunks(limits.max_rows).enumerate() {
            let start = at * limits.max_rows;
            let rows: Vec<_> =
                chunk.iter().enumerate().map(|(i, &id)| row(Token::Known(id), start + i, lane)).collect();
            let last = start + rows.len() == prompt.len();
            let samples = if last { vec![rows.len() as u32 - 1] } else { Vec::new() };
            let sampled = step(engine, rows, samples);
            if last {
                answers.push(sampled);
            }
        }
    }
    for at in 0..ANSWER - 1 {
        let rows = lanes.iter().map(|&lane| row(Token::Sampled, prompt(lane).len() + at, lane)).collect();
        let sampled = step(engine, rows, (0..lanes.len() as u32).collect());
        for (answer, sampled) in answers.iter_mut().zip(sampled) {
            answer.push(sampled);
        }
    }
    answers
}

fn check(model: &str, device: &str) {
    let mut engine = open(model, device);
    let alone: Vec<_> = (0..LANES).map(|lane| decode(&mut engine, &[lane]).remove(0)).collect();
    assert!(alone.windows(2).any(|pair| pair[0][0].token != pair[1][0].token), "all prompts have the same answer");
    for count in [2, 3, 4, 5, 8] {
        // The last ones, so that row and lane differ.
        let lanes: Vec<usize> = (LANES - count..LANES).collect();
        for (&lane, together) in lanes.iter().zip(decode(&mut engine, &lanes)) {
            let ids = |answer: &[Sampled]| answer.iter().map(|one| (one.lane, one.token)).collect::<Vec<_>>();
            assert_eq!(ids(&together), ids(&alone[lane]), "{model} on {device}, lane {lane} of {count}");
            let apart = together.iter().zip(&alone[lane]).map(|(a, b)| (a.logprob - b.logprob).abs());
            let worst = apart.fold(0.0, f32::max);
            assert!(worst <= TOLERANCE, "{model} on {device}, lane {lane} of {count}: log probabilities {worst} apart");
        }
    }
}

#[test]
fn a_batch_of_lanes_answers_as_each_lane_alone() {
    for device in DEVICES {
        for model in ["llama_tiny_gguf/model.gguf", "gemma3_tiny", "gemma4_moe_tiny"] {
            check(model, device);
        }
    }
}
