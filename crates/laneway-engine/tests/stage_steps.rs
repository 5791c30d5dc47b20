//! Steps of every kind, and steps that fail, through a model in stages.

use laneway_engine::{DeviceChoice, EngineSettings, KvType, ModelEngine, StageSettings, cuts};
use laneway_files::Weights;
use laneway_session::{
    Engine, EngineError, LabelRow, PageCopy, Row, Sampled, Sampling, SamplingOptions, StepOutcome, StepPlan, Token,
};

const CPU: &str = "cpu";
const GPU: &str = "lavapipe";
const PROMPT: usize = 45;
const ANSWER: usize = 12;
/// Log probabilities of the same token on two devices.
const TOLERANCE: f32 = 2e-3;

fn fixture(model: &str) -> Weights {
    let path = format!("{}/../../tests/data/fixtures/{model}", env!("CARGO_MANIFEST_DIR"));
    Weights::open(path).expect("fixtures are valid")
}

/// A whole model where one stage is named.
fn open(weights: &Weights, stages: &[(&str, usize)], kv_type: KvType) -> ModelEngine {
    let device = |name: &str| name.parse::<DeviceChoice>().expect("any text is a choice");
    let stage = |(name, first_layer): &(&str, usize)| StageSettings { device: device(name), first_layer: *first_layer };
    let settings = EngineSettings {
        device: device(stages[0].0),
        lanes: 2,
        context_length: Some(128),
        threads: Some(2),
        kv_type,
        stages: if stages.len() > 1 { stages.iter().map(stage).collect() } else { Vec::new() },
        ..EngineSettings::default()
    };
    pollster::block_on(ModelEngine::open(weights, &settings)).expect("tests need lavapipe")
}

fn prompt(salt: usize) -> Vec<u32> {
    (0..PROMPT).map(|at| ((at * 37 + salt * 101 + 5) % 500) as u32).collect()
}

fn row(token: Token, position: usize, lane: usize) -> Row {
    Row { token, position: position as u32, lane, block: None }
}

/// A step of these rows, of which the last one is sampled; every lane has pages of its own.
fn plan(engine: &ModelEngine, rows: Vec<Row>) -> StepPlan {
    let limits = engine.limits();
    let mut tables = vec![Vec::new(); limits.lanes + limits.branches];
    tables[0] = vec![5, 1, 3];
    tables[1] = vec![2, 6, 4];
    let samples = vec![rows.len() as u32 - 1];
    StepPlan { rows, tables, samples, ..StepPlan::default() }
}

fn run(engine: &mut ModelEngine, plan: &StepPlan) -> Result<StepOutcome, EngineError> {
    engine.submit(plan)?;
    pollster::block_on(engine.collect())
}

fn sample(engine: &mut ModelEngine, plan: &StepPlan) -> Sampled {
    run(engine, plan).expect("the step is valid").sampled.remove(0)
}

fn prefill(engine: &mut ModelEngine, lane: usize, tokens: &[u32]) -> Sampled {
    let rows: Vec<Row> = tokens.iter().enumerate().map(|(at, &token)| row(Token::Known(token), at, lane)).collect();
    let chunk = engine.limits().max_rows;
    let plans: Vec<StepPlan> = rows.chunks(chunk).map(|rows| plan(engine, rows.to_vec())).collect();
    let (last, before) = plans.split_last().expect("there are tokens");
    for plan in before {
        run(engine, &StepPlan { samples: Vec::new(), ..plan.clone() }).expect("the step is valid");
    }
    sample(engine, last)
}

fn answer(engine: &mut ModelEngine, lane: usize, sampling: &Sampling) -> Vec<Sampled> {
    let prompt = prompt(lane);
    engine.begin(lane, sampling, &prompt).expect("the lane exists");
    let mut answer = vec![prefill(engine, lane, &prompt)];
    for at in 0..ANSWER - 1 {
        let plan = plan(engine, vec![row(Token::Sampled, PROMPT + at, lane)]);
        answer.push(sample(engine, &plan));
    }
    answer
}

fn greedy() -> Sampling {
    Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }).expect("valid")
}

fn assert_alike(found: &[Sampled], expected: &[Sampled], what: &str) {
    let ids = |answer: &[Sampled]| answer.iter().map(|one| (one.lane, one.token)).collect::<Vec<_>>();
    assert_eq!(ids(found), ids(expected), "{what}");
    let apart = found.iter().zip(expected).map(|(a, b)| (a.logprob - b.logprob).abs()).fold(0.0, f32::max);
    assert!(apart <= TOLERANCE, "{what}: log probabilities {apart} apart");
}

/// L10, L94: the last stage alone samples, with the seed and the penalties of the turn.
#[test]
fn stages_draw_what_the_whole_model_draws() {
    let drawn = Sampling::new(SamplingOptions {
        temperature: 0.9,
        top_k: 40,
        top_p: 0.95,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        seed: 11,
        top_logprobs: 3,
        ..SamplingOptions::default()
    })
    .expect("valid");
    for model in ["llama_tiny_gguf/model.gguf", "gemma3_tiny"] {
        let weights = fixture(model);
        let cut = cuts(weights.config())[0];
        let mut whole = open(&weights, &[(CPU, 0)], KvType::F32);
        let expected = [0, 1].map(|lane| answer(&mut whole, lane, &drawn));
        assert_ne!(expected[0].iter().map(|one| one.token).collect::<Vec<_>>(), {
            answer(&mut whole, 0, &greedy()).iter().map(|one| one.token).collect::<Vec<_>>()
        });
        let mut split = open(&weights, &[(CPU, 0), (CPU, cut)], KvType::F32);
        assert_eq!([0, 1].map(|lane| answer(&mut split, lane, &drawn)), expected, "{model}");
        for (first, second) in [(CPU, GPU), (GPU, CPU), (GPU, GPU)] {
            let mut split = open(&weights, &[(first, 0), (second, cut)], KvType::F32);
            for lane in [0, 1] {
                let found = answer(&mut split, lane, &drawn);
                assert_alike(&found, &expected[lane], &format!("{model} on {first} and {second}, lane {lane}"));
            }
        }
    }
}

/// L83, L94: pages of every type of value are those of the whole model, and stages go on from them.
#[test]
fn pages_of_every_type_go_between_a_whole_model_and_its_stages() {
    let weights = fixture("gemma3_tiny");
    let cut = cuts(weights.config())[0];
    for kv_type in [KvType::F32, KvType::F16, KvType::Q8] {
        let mut whole = open(&weights, &[(CPU, 0)], kv_type);
        let mut split = open(&weights, &[(CPU, 0), (CPU, cut)], kv_type);
        let expected = answer(&mut whole, 0, &greedy());
        assert_eq!(answer(&mut split, 0, &greedy()), expected, "{kv_type}");
        let positions = whole.limits().page_positions;
        let pages = [(5, positions), (1, PROMPT - 1 - positions)].map(|(page, count)| {
            let content = pollster::block_on(whole.read_page(page, count)).expect("the page is there");
            assert_eq!(pollster::block_on(split.read_page(page, count)).as_ref(), Ok(&content), "{kv_type}");
            (page, count, content)
        });
        for stages in [&[(CPU, 0), (GPU, cut)][..], &[(GPU, 0), (CPU, cut)], &[(GPU, 0)]] {
            let mut other = open(&weights, stages, kv_type);
            for (page, count, content) in &pages {
                other.write_page(*page, *count, content).expect("the page fits");
                assert_eq!(pollster::block_on(other.read_page(*page, *count)).as_ref(), Ok(content), "{kv_type}");
            }
            other.begin(0, &greedy(), &prompt(0)).expect("the lane exists");
            let last = plan(&other, vec![row(Token::Known(prompt(0)[PROMPT - 1]), PROMPT - 1, 0)]);
            assert_alike(&[sample(&mut other, &last)], &expected[..1], &format!("{kv_type} on {stages:?}"));
        }
    }
}

/// L94: a read's branches, which have page tables behind those of the lanes and want single logits.
#[test]
fn branches_of_a_read_go_through_all_stages() {
    let weights = fixture("qwen3_tiny");
    let cut = cuts(weights.config())[0];
    let labels = |engine: &mut ModelEngine| {
        prefill(engine, 0, &prompt(0));
        let branch = engine.limits().lanes;
        let rows = vec![row(Token::Known(7), PROMPT, 0), row(Token::Known(9), PROMPT, branch)];
        let mut plan = StepPlan { samples: Vec::new(), ..plan(engine, rows) };
        plan.tables[branch] = vec![5, 0];
        plan.copies = vec![PageCopy { from: 1, to: 0 }];
        plan.labels = vec![LabelRow { row: 0, tokens: vec![3, 400, 12] }, LabelRow { row: 1, tokens: vec![3, 400] }];
        run(engine, &plan).expect("the step is valid").labels
    };
    let expected = labels(&mut open(&weights, &[(CPU, 0)], KvType::F32));
    assert_eq!(expected.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2]);
    assert_ne!(expected[0][0], expected[1][0]);
    let mut split = open(&weights, &[(CPU, 0), (CPU, cut)], KvType::F32);
    assert_eq!(labels(&mut split), expected);
    let config = weights.config();
    // The prompt's last row wants all logits, the branches five.
    assert_eq!(split.head_multiply_adds(), ((config.vocab_size + 5) * config.hidden_size) as u64);
    for stages in [[(CPU, 0), (GPU, cut)], [(GPU, 0), (CPU, cut)], [(GPU, 0), (GPU, cut)]] {
        let found = labels(&mut open(&weights, &stages, KvType::F32));
        let apart = found.concat().iter().zip(expected.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart <= TOLERANCE, "{stages:?}: {apart}");
    }
}

/// L52, L96: nothing of a failed step is left in any stage that its repetition, or one from further back, would not
/// overwrite.
#[test]
fn a_step_that_fails_in_a_stage_is_repeated_as_if_it_had_not_been() {
    let weights = fixture("llama_tiny");
    let cut = cuts(weights.config())[0];
    let expected = answer(&mut open(&weights, &[(CPU, 0)], KvType::F32), 0, &greedy());
    let mut engine = open(&weights, &[(CPU, 0), (CPU, cut)], KvType::F32);
    engine.begin(0, &greedy(), &prompt(0)).expect("the lane exists");
    let mut found = vec![prefill(&mut engine, 0, &prompt(0))];
    for at in 0..ANSWER - 1 {
        let good = plan(&engine, vec![row(Token::Sampled, PROMPT + at, 0)]);
        // The first stage does its part of this one: only the last stage looks at what is sampled.
        let late = StepPlan { samples: vec![9], ..good.clone() };
        assert!(matches!(run(&mut engine, &late), Err(EngineError::Step(_))));
        let early = StepPlan { tables: vec![vec![99]], ..good.clone() };
        assert!(matches!(run(&mut engine, &early), Err(EngineError::Step(_))));
        found.push(sample(&mut engine, &good));
    }
    assert_eq!(found, expected);
    // All stages are behind the same positions, so a turn that goes back takes them all along.
    let back: Vec<Row> = (20..PROMPT).map(|at| row(Token::Known(prompt(0)[at]), at, 0)).collect();
    let back = plan(&engine, back);
    assert_eq!(sample(&mut engine, &back), expected[0]);
}

/// L96: whichever stage's device goes, the engine is told as lost, once for all stages.
#[test]
fn the_loss_of_any_stage_is_the_loss_of_the_engine() {
    let weights = fixture("llama_tiny");
    let last = *cuts(weights.config()).last().expect("three layers");
    let cases = [&[(GPU, 0)][..], &[(GPU, 0), (CPU, 1)], &[(CPU, 0), (GPU, 1)], &[(CPU, 0), (GPU, 1), (CPU, last)]];
    for stages in cases {
        let mut engine = open(&weights, stages, KvType::F32);
        prefill(&mut engine, 0, &prompt(0));
        engine.lose_device();
        let plan = plan(&engine, vec![row(Token::Sampled, PROMPT, 0)]);
        for _ in 0..2 {
            let error = run(&mut engine, &plan).expect_err("the device is gone");
            assert!(matches!(error, EngineError::Lost(_)), "{stages:?}: {error:?}");
        }
    }
}

/// L94: a model with trained weights, in three stages on two kinds of device.
#[test]
fn a_real_model_in_stages_says_what_it_says_as_a_whole() {
    let Ok(folder) = std::env::var("LANEWAY_TEST_MODELS") else { return };
    for (file, at) in [("smollm2.gguf", [11, 20]), ("gemma3-270m.gguf", [5, 12])] {
        let weights = Weights::open(format!("{folder}/{file}")).expect("a model");
        let expected = answer(&mut open(&weights, &[(CPU, 0)], KvType::F32), 1, &greedy());
        let on_cpu = [(CPU, 0), (CPU, at[0]), (CPU, at[1])];
        assert_eq!(answer(&mut open(&weights, &on_cpu, KvType::F32), 1, &greedy()), expected, "{file}");
        let mixed = [(CPU, 0), (GPU, at[0]), (CPU, at[1])];
        let found = answer(&mut open(&weights, &mixed, KvType::F32), 1, &greedy());
        let ids = |answer: &[Sampled]| answer.iter().map(|one| one.token).collect::<Vec<_>>();
        assert_eq!(ids(&found), ids(&expected), "{file}");
        let apart = found.iter().zip(&expected).map(|(a, b)| (a.logprob - b.logprob).abs()).fold(0.0, f32::max);
        println!("{file}: log probabilities at most {apart} apart with a stage on lavapipe");
        assert!(apart < 0.05, "{file}: {apart}");
    }
}
