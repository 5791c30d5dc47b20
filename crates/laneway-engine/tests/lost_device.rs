//! What the session sees when a graphics device goes away, on a real driver.

use laneway_engine::{DeviceChoice, EngineSettings, ModelEngine, StageSettings};
use laneway_files::Weights;
use laneway_session::{Engine, EngineError, Row, Sampling, StepPlan, Token};

#[test]
fn a_lost_device_is_told_as_lost_and_a_new_engine_works() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/fixtures/llama_tiny_gguf/model.gguf");
    let weights = Weights::open(path).expect("fixtures are valid");
    let device = "lavapipe".parse::<DeviceChoice>().expect("any text is a choice");
    let whole =
        EngineSettings { device: device.clone(), lanes: 1, context_length: Some(64), ..EngineSettings::default() };
    // L96: a stage that is lost ends the turns of the whole engine, which holds nothing of them but pages.
    let stages =
        vec![StageSettings { device: DeviceChoice::Cpu, first_layer: 0 }, StageSettings { device, first_layer: 1 }];
    lose(&weights, &whole);
    lose(&weights, &EngineSettings { stages, ..whole });
}

fn lose(weights: &Weights, settings: &EngineSettings) {
    let open = || pollster::block_on(ModelEngine::open(weights, settings)).expect("tests need lavapipe");
    let plan = StepPlan {
        rows: vec![Row { token: Token::Known(5), position: 0, lane: 0, block: None }],
        tables: vec![vec![0]],
        samples: vec![0],
        ..StepPlan::default()
    };
    let step = |engine: &mut ModelEngine| {
        engine.begin(0, &Sampling::default(), &[5])?;
        engine.submit(&plan)?;
        pollster::block_on(engine.collect())
    };
    let mut engine = open();
    assert_eq!(step(&mut engine).expect("the device is there").sampled.len(), 1);
    engine.lose_device();
    let lost = step(&mut engine).expect_err("the device is gone");
    assert!(matches!(lost, EngineError::Lost(_)), "{lost:?}");
    drop(engine);
    assert_eq!(step(&mut open()).expect("a new device is there").sampled.len(), 1);
}
