//! The small step before the first turn.

use laneway_engine::{DeviceChoice, EngineSettings, ModelEngine, StageSettings, WarmUp};
use laneway_files::Weights;
use laneway_session::{Engine, Row, Sampling, SamplingOptions, StepPlan, Token};

fn open(model: &str, device: &str, stages: Vec<StageSettings>) -> ModelEngine {
    let path = format!("{}/../../tests/data/fixtures/{model}", env!("CARGO_MANIFEST_DIR"));
    let weights = Weights::open(path).expect("fixtures are valid");
    let device = device.parse::<DeviceChoice>().expect("any text is a choice");
    let settings = EngineSettings { device, lanes: 2, context_length: Some(128), stages, ..EngineSettings::default() };
    pollster::block_on(ModelEngine::open(&weights, &settings)).expect("tests need lavapipe")
}

/// Greedy tokens on lane 1, over the pages that a warm-up may have written to.
fn answer(engine: &mut ModelEngine) -> Vec<u32> {
    let greedy = Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }).expect("valid");
    engine.begin(1, &greedy, &[5, 6, 7]).expect("the lane exists");
    let tables = vec![Vec::new(), vec![0]];
    let row = |token, position| Row { token, position, lane: 1, block: None };
    let mut rows: Vec<Row> = (0..3).map(|at| row(Token::Known(5 + at), at)).collect();
    let mut answer = Vec::new();
    for position in 3..12 {
        let samples = vec![rows.len() as u32 - 1];
        engine.submit(&StepPlan { rows, tables: tables.clone(), samples, ..StepPlan::default() }).expect("valid");
        answer.push(pollster::block_on(engine.collect()).expect("the device is there").sampled[0].token);
        rows = vec![row(Token::Sampled, position)];
    }
    answer
}

/// L28, L29, L43: nothing of a warm-up is seen afterwards.
#[test]
fn a_warm_engine_answers_like_a_cold_one() {
    for device in ["cpu", "lavapipe"] {
        for model in ["llama_tiny_gguf/model.gguf", "gemma3_tiny"] {
            let expected = answer(&mut open(model, device, Vec::new()));
            let mut warm = open(model, device, Vec::new());
            assert_eq!(pollster::block_on(warm.warm_up()), Ok(WarmUp::Decode));
            assert_eq!(answer(&mut warm), expected, "{model} on {device}");
        }
        for model in ["diffusion_gemma_tiny", "qwen3_mdlm_tiny", "qwen3_bd3lm_tiny"] {
            let mut engine = open(model, device, Vec::new());
            assert_eq!(pollster::block_on(engine.warm_up()), Ok(WarmUp::Canvas), "{model} on {device}");
        }
    }
    let stage = |first_layer| StageSettings { device: DeviceChoice::Cpu, first_layer };
    let mut staged = open("llama_tiny", "cpu", vec![stage(0), stage(1)]);
    assert_eq!(pollster::block_on(staged.warm_up()), Ok(WarmUp::Skipped));
}
