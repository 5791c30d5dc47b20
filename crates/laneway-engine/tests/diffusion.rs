//! Whole answers of canvas models, scheduler and device together, against the traces of the fixtures.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use laneway_engine::{DeviceChoice, EngineSettings, ModelEngine};
use laneway_files::Weights;
use laneway_session::canvas::{Confidence, Denoising, Selection, Stop};
use laneway_session::{
    Action, Cancel, Decoded, Decoder, Engine, Event, Finish, FinishReason, Outcome, Request, Sampling, SamplingOptions,
    Service, ServiceConfig, Source, StopReason, Turn, TurnError,
};
use serde_json::Value;

const DEVICES: [&str; 2] = ["cpu", "lavapipe"];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures").join(name)
}

fn trace(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(name).join("trace.json")).expect("the fixture has a trace");
    serde_json::from_str(&text).expect("a trace is JSON")
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("an id") as u32).collect()
}

/// Keeps the tokens, and ends at one of `eos`.
struct Ids {
    tokens: Arc<Mutex<Vec<u32>>>,
    eos: Vec<u32>,
}

impl Decoder for Ids {
    fn token(&mut self, token: u32) -> Decoded {
        self.tokens.lock().expect("nobody panics with it").push(token);
        let stop = self.eos.contains(&token).then_some(StopReason::Eos);
        Decoded { text: "x".to_owned(), stop, ..Decoded::default() }
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

struct Answer {
    tokens: Vec<u32>,
    /// Number of the last pass over each canvas.
    passes: Vec<u32>,
    finish: Result<Finish, TurnError>,
}

struct Ask {
    prompt: Vec<u32>,
    denoising: Denoising,
    seed: u64,
    max_tokens: usize,
    eos: Vec<u32>,
}

fn answer(model: &str, device: &str, ask: Ask) -> Answer {
    let weights = Weights::open(fixture(model)).expect("fixtures are valid");
    let device = device.parse::<DeviceChoice>().expect("any text is a choice");
    let settings = EngineSettings { device, lanes: 1, context_length: Some(256), ..EngineSettings::default() };
    let mut engine = pollster::block_on(ModelEngine::open(&weights, &settings)).expect("tests need lavapipe");
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = events.clone();
    let turn = Turn {
        prompt: ask.prompt,
        max_tokens: Some(ask.max_tokens),
        sampling: Sampling::new(SamplingOptions { seed: ask.seed, ..SamplingOptions::default() }).expect("valid"),
        decoder: Box::new(Ids { tokens: tokens.clone(), eos: ask.eos }),
        events: Box::new(move |event| told.lock().expect("nobody panics with it").push(event)),
        cancel: Cancel::new(),
        deadline_ms: None,
        source: Source::LocalChat,
        denoising: Some(ask.denoising),
        wants_drafts: true,
        gate: None,
        namespace: 0,
        target: laneway_session::Target::default(),
    };
    let mut service = Service::new(ServiceConfig::default());
    service.submit(0, Request { settings: (), idle_timeout_ms: None }, turn).expect("the queue is empty");
    loop {
        let outcome = match service.plan(0) {
            Action::Load { .. } => Outcome::Loaded(Ok(engine.limits())),
            Action::Engine(call) => pollster::block_on(call.execute(Some(&mut engine))),
            Action::Unload => Outcome::Unloaded,
            Action::Wait { .. } | Action::Stop => break,
        };
        service.commit(0, outcome);
    }
    let events = std::mem::take(&mut *events.lock().expect("nobody panics with it"));
    let mut passes = Vec::new();
    let mut finish = None;
    for event in events {
        match event {
            Event::Draft { step: 1, .. } => passes.push(1),
            Event::Draft { step, .. } => *passes.last_mut().expect("drafts begin with the first pass") = step,
            Event::Finished(result) => finish = Some(result),
            _ => {}
        }
    }
    let tokens = std::mem::take(&mut *tokens.lock().expect("nobody panics with it"));
    Answer { tokens, passes, finish: finish.expect("a turn finishes") }
}

#[test]
fn diffusion_gemma_writes_what_the_reference_writes() {
    let trace = trace("diffusion_gemma_tiny");
    for model in ["diffusion_gemma_tiny", "diffusion_gemma_tiny_gguf/model.gguf"] {
        for device in DEVICES {
            for run in ["default", "early_stop_eos"] {
                let run = &trace[run];
                let number = |name: &str| run["params"][name].as_f64().expect("a number") as f32;
                let whole = |name: &str| run["params"][name].as_u64().expect("a whole number") as u32;
                let denoising = Denoising {
                    max_steps: whole("max_denoising_steps"),
                    t_max: number("t_max"),
                    t_min: number("t_min"),
                    selection: Selection::EntropyBound(number("entropy_bound")),
                    stop: Stop::Stable {
                        passes: whole("stability_threshold"),
                        entropy: number("confidence_threshold"),
                    },
                };
                let eos = numbers(&run["params"]["eos"]);
                let mut expected = numbers(&run["output"]);
                let end = expected.iter().position(|token| eos.contains(token));
                expected.truncate(end.map_or(expected.len(), |end| end + 1));
                let answer = answer(
                    model,
                    device,
                    Ask {
                        prompt: numbers(&run["prompt"]),
                        denoising,
                        seed: run["seed"].as_u64().expect("a seed"),
                        max_tokens: run["max_new_tokens"].as_u64().expect("a limit") as usize,
                        eos,
                    },
                );
                let steps: Vec<u32> = run["canvases"]
                    .as_array()
                    .expect("canvases")
                    .iter()
                    .map(|canvas| canvas["steps"].as_array().expect("steps").len() as u32)
                    .collect();
                assert_eq!(answer.tokens, expected, "{model} on {device}");
                assert_eq!(answer.passes, steps, "{model} on {device}");
                let reason = answer.finish.expect("the turn succeeds").reason;
                assert_eq!(reason, if end.is_some() { FinishReason::Stop } else { FinishReason::Length });
            }
        }
    }
}

fn masked(model: &str, run: &str, denoising: Denoising) {
    let trace = trace(model);
    let run = &trace[run];
    let output = numbers(&run["output"]);
    let steps: Vec<u32> = run["blocks"]
        .as_array()
        .expect("blocks")
        .iter()
        .map(|block| block["steps"].as_array().expect("steps").len() as u32)
        .collect();
    for device in DEVICES {
        let answer = answer(
            model,
            device,
            Ask {
                prompt: numbers(&run["prompt"]),
                denoising,
                seed: run["seed"].as_u64().unwrap_or(0),
                max_tokens: output.len(),
                eos: Vec::new(),
            },
        );
        answer.finish.expect("the turn succeeds");
        assert_eq!(answer.tokens, output, "{model} on {device}");
        assert_eq!(answer.passes, steps, "{model} on {device}");
    }
}

#[test]
fn a_bidirectional_masked_model_writes_what_the_reference_writes() {
    let schedule = |temperature| Denoising {
        max_steps: 6,
        t_max: temperature,
        t_min: temperature,
        selection: Selection::Schedule(Confidence::Probability),
        stop: Stop::Decided,
    };
    masked("qwen3_mdlm_tiny", "low_confidence", schedule(0.0));
    masked("qwen3_mdlm_tiny", "temperature", schedule(0.7));
}

#[test]
fn a_block_by_block_masked_model_writes_what_the_reference_writes() {
    let threshold = Selection::Threshold { confidence: Confidence::Probability, least: 0.2, at_least: 1 };
    let denoising = Denoising { max_steps: 8, t_max: 0.0, t_min: 0.0, selection: threshold, stop: Stop::Decided };
    masked("qwen3_bd3lm_tiny", "threshold", denoising);
}
