//! A model in stages computes what it computes as a whole.

use laneway_engine::{DeviceChoice, EngineSettings, ModelEngine, StageSettings, cuts};
use laneway_files::Weights;
use laneway_session::{Engine, EngineError, PageCopy, Row, Sampled, Sampling, SamplingOptions, StepPlan, Token};

const CPU: &str = "cpu";
const GPU: &str = "lavapipe";
/// Largest difference of logits on the graphics device, relative to the largest logit.
const TOLERANCE: f32 = 1e-3;
const ANSWER: usize = 10;

fn fixture(model: &str) -> Weights {
    let path = format!("{}/../../tests/data/fixtures/{model}", env!("CARGO_MANIFEST_DIR"));
    Weights::open(path).expect("fixtures are valid")
}

fn device(name: &str) -> DeviceChoice {
    name.parse().expect("any text is a choice")
}

fn whole(weights: &Weights, name: &str) -> ModelEngine {
    let settings = EngineSettings { device: device(name), ..sizes() };
    pollster::block_on(ModelEngine::open(weights, &settings)).expect("tests need lavapipe")
}

fn split(weights: &Weights, stages: &[(&str, usize)]) -> ModelEngine {
    pollster::block_on(ModelEngine::open(weights, &EngineSettings { stages: settings(stages), ..sizes() }))
        .expect("tests need lavapipe")
}

fn settings(stages: &[(&str, usize)]) -> Vec<StageSettings> {
    stages.iter().map(|(name, first_layer)| StageSettings { device: device(name), first_layer: *first_layer }).collect()
}

fn sizes() -> EngineSettings {
    EngineSettings { lanes: 3, context_length: Some(128), threads: Some(2), ..EngineSettings::default() }
}

fn prompt(length: usize, salt: usize) -> Vec<u32> {
    (0..length).map(|at| ((at * 37 + salt * 101 + 5) % 500) as u32).collect()
}

fn logits(engine: &mut ModelEngine) -> Vec<f32> {
    pollster::block_on(engine.prefill_logits(&prompt(45, 1))).expect("the device is there")
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance * scale, "{what}: {worst} of {scale}");
}

/// Greedy answers of three lanes decoded together; the third goes on from a copy of the first one's page.
fn answers(engine: &mut ModelEngine) -> Vec<Vec<u32>> {
    let greedy = Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }).expect("valid");
    let tables = [vec![0, 3], vec![1, 4], vec![2, 5]];
    let step = |engine: &mut ModelEngine, copies: Vec<PageCopy>, rows: Vec<Row>, samples: Vec<u32>| {
        let plan = StepPlan { copies, rows, tables: tables.to_vec(), samples, ..StepPlan::default() };
        engine.submit(&plan).expect("the step is valid");
        pollster::block_on(engine.collect()).expect("the device is there").sampled
    };
    let row = |token, position: usize, lane| Row { token, position: position as u32, lane, block: None };
    let (first, second) = (prompt(20, 2), prompt(23, 3));
    let third = [&first[..12], &prompt(9, 4)].concat();
    let mut answers: Vec<Vec<u32>> = Vec::new();
    for (lane, (prompt, start)) in [(&first, 0), (&second, 0), (&third, 12)].into_iter().enumerate() {
        engine.begin(lane, &greedy, prompt).expect("the lane exists");
        let copies = if start > 0 { vec![PageCopy { from: 0, to: 2 }] } else { Vec::new() };
        let rows: Vec<Row> = (start..prompt.len()).map(|at| row(Token::Known(prompt[at]), at, lane)).collect();
        let last = rows.len() as u32 - 1;
        answers.push(step(engine, copies, rows, vec![last]).iter().map(|one| one.token).collect());
    }
    let lengths = [first.len(), second.len(), third.len()];
    for at in 0..ANSWER - 1 {
        let rows = (0..3).map(|lane| row(Token::Sampled, lengths[lane] + at, lane)).collect();
        let sampled: Vec<Sampled> = step(engine, Vec::new(), rows, vec![0, 1, 2]);
        answers.iter_mut().zip(sampled).for_each(|(answer, one)| answer.push(one.token));
    }
    answers
}

/// L94, L53: positions come with every step's rows, so that no stage can be elsewhere than the others.
#[test]
fn a_split_model_computes_what_the_whole_one_does() {
    for model in ["llama_tiny_gguf/model.gguf", "llama_tiny", "qwen3_tiny", "gemma3_tiny", "gemma4_moe_tiny"] {
        let weights = fixture(model);
        let (expected, expected_ids) = {
            let mut engine = whole(&weights, CPU);
            (logits(&mut engine), answers(&mut engine))
        };
        let cuts = cuts(weights.config());
        assert!(!cuts.is_empty(), "{model}");
        for &cut in &cuts {
            let mut engine = split(&weights, &[(CPU, 0), (CPU, cut)]);
            assert_eq!(logits(&mut engine), expected, "{model} cut before layer {cut}");
            assert_eq!(answers(&mut engine), expected_ids, "{model} cut before layer {cut}");
        }
        let middle = cuts[cuts.len() / 2];
        for (first, second) in [(CPU, GPU), (GPU, CPU), (GPU, GPU)] {
            let mut engine = split(&weights, &[(first, 0), (second, middle)]);
            let what = format!("{model} on {first} and {second}");
            assert_close(&logits(&mut engine), &expected, TOLERANCE, &what);
            assert_eq!(answers(&mut engine), expected_ids, "{what}");
        }
        if let [first, .., last] = cuts[..] {
            let mut engine = split(&weights, &[(CPU, 0), (GPU, first), (CPU, last)]);
            assert_close(&logits(&mut engine), &expected, TOLERANCE, model);
            assert_eq!(answers(&mut engine), expected_ids, "{model} in three stages");
        }
    }
}

/// L83, L94: a page has the layers of all stages, as that of the whole model does.
#[test]
fn pages_of_a_split_model_are_those_of_the_whole_one() {
    let weights = fixture("gemma3_tiny");
    let (mut one, mut two) = (whole(&weights, CPU), split(&weights, &[(CPU, 0), (GPU, 2)]));
    answers(&mut one);
    let limits = (one.limits(), two.limits());
    assert_eq!(limits.0.row_bytes, limits.1.row_bytes);
    let page = pollster::block_on(one.read_page(1, 23)).expect("the page is there");
    two.write_page(4, 23, &page).expect("the page fits");
    assert_eq!(pollster::block_on(two.read_page(4, 23)).expect("the page is there"), page);
    assert!(matches!(two.write_page(4, 22, &page), Err(EngineError::Step(_))));
}

/// L10, L94: what stands between layers besides the rows' activations cannot be cut.
#[test]
fn impossible_stages_are_refused_by_name() {
    let refused = |model: &str, stages: &[(&str, usize)], words: &str| {
        let settings = EngineSettings { stages: settings(stages), ..sizes() };
        let error = pollster::block_on(ModelEngine::open(&fixture(model), &settings)).err().expect(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    refused("llama_tiny", &[(CPU, 0), (CPU, 3)], "[0, 3] of 3");
    refused("llama_tiny", &[(CPU, 1)], "[1] of 3");
    refused("llama_tiny", &[(CPU, 0), (CPU, 2), (CPU, 1)], "[0, 2, 1]");
    refused("gemma4_ple_shared_tiny", &[(CPU, 0), (CPU, 2)], "can only be run as a whole");
    refused("diffusion_gemma_tiny", &[(CPU, 0), (CPU, 1)], "can only be run as a whole");
    assert!(cuts(fixture("gemma4_ple_shared_tiny").config()).is_empty());
}
