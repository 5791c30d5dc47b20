//! Pages of one engine answer in another as they do at home.

use laneway_engine::{DeviceChoice, EngineSettings, KvType, ModelEngine};
use laneway_files::Weights;
use laneway_session::{Engine, EngineError, PageCopy, Row, Sampled, Sampling, SamplingOptions, StepPlan, Token};

const PROMPT: usize = 71;
const ANSWER: usize = 12;
/// Log probabilities of the same token on two devices.
const TOLERANCE: f32 = 2e-3;

fn open(model: &str, device: &str, kv_type: KvType) -> ModelEngine {
    let path = format!("{}/../../tests/data/fixtures/{model}", env!("CARGO_MANIFEST_DIR"));
    let weights = Weights::open(path).expect("fixtures are valid");
    let device = device.parse::<DeviceChoice>().expect("any text is a choice");
    let settings = EngineSettings { device, lanes: 2, context_length: Some(160), kv_type, ..EngineSettings::default() };
    pollster::block_on(ModelEngine::open(&weights, &settings)).expect("tests need lavapipe")
}

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|at| ((at * 37 + 5) % 512) as u32).collect()
}

/// Runs rows from `start` on over the pages of `table`; samples behind the last.
fn step(engine: &mut ModelEngine, lane: usize, table: &[u32], start: usize, tokens: &[Token]) -> Sampled {
    step_after(engine, Vec::new(), lane, table, start, tokens)
}

/// The same after copies of pages.
fn step_after(
    engine: &mut ModelEngine,
    mut copies: Vec<PageCopy>,
    lane: usize,
    table: &[u32],
    start: usize,
    tokens: &[Token],
) -> Sampled {
    let mut sampled = Vec::new();
    let chunk = engine.limits().max_rows;
    for (at, tokens) in tokens.chunks(chunk).enumerate() {
        let row =
            |(i, &token): (usize, &Token)| Row { token, position: (start + at * chunk + i) as u32, lane, block: None };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        let mut tables = vec![Vec::new(); engine.limits().lanes];
        tables[lane] = table.to_vec();
        let samples = vec![rows.len() as u32 - 1];
        let copies = std::mem::take(&mut copies);
        engine.submit(&StepPlan { copies, rows, tables, samples, ..StepPlan::default() }).expect("the step is valid");
        sampled = pollster::block_on(engine.collect()).expect("the device is there").sampled;
    }
    sampled.remove(0)
}

fn known(tokens: &[u32]) -> Vec<Token> {
    tokens.iter().map(|token| Token::Known(*token)).collect()
}

/// Greedy tokens behind a prompt of which all but the last token is in the pages.
fn answer(engine: &mut ModelEngine, lane: usize, table: &[u32]) -> Vec<Sampled> {
    let greedy = Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }).expect("valid");
    let prompt = prompt();
    engine.begin(lane, &greedy, &prompt).expect("the lane exists");
    let mut answer = vec![step(engine, lane, table, PROMPT - 1, &known(&prompt[PROMPT - 1..]))];
    for at in 0..ANSWER - 1 {
        answer.push(step(engine, lane, table, PROMPT + at, &[Token::Sampled]));
    }
    answer
}

fn check(model: &str, from: &str, to: &str, kv_type: KvType) {
    let (mut home, mut away) = (open(model, from, kv_type), open(model, to, kv_type));
    let positions = home.limits().page_positions;
    let table = [4, 1, 3];
    step(&mut home, 1, &table, 0, &known(&prompt()[..PROMPT - 1]));
    let count = |page: usize| (PROMPT - 1 - page * positions).min(positions);
    let pages: Vec<Vec<u8>> = (0..3)
        .map(|page| pollster::block_on(home.read_page(table[page], count(page))).expect("the page is there"))
        .collect();
    assert_eq!(pages[2].len(), count(2) * home.limits().row_bytes);
    // Other numbers, and something else in them before.
    let other = [2, 0, 5];
    step(&mut away, 0, &other, 0, &known(&[7; 90]));
    for (page, content) in pages.iter().enumerate() {
        away.write_page(other[page], count(page), content).expect("the page fits");
    }
    let again = pollster::block_on(away.read_page(other[2], count(2))).expect("the page is there");
    assert_eq!(again, pages[2]);
    // A copy within an engine is as good as the page itself.
    let copied = [4, 1, 6];
    let copy = PageCopy { from: 3, to: 6 };
    step_after(&mut home, vec![copy], 0, &copied, PROMPT - 1, &known(&prompt()[PROMPT - 1..]));
    let again = answer(&mut home, 0, &copied);
    let (expected, found) = (answer(&mut home, 1, &table), answer(&mut away, 0, &other));
    let ids = |answer: &[Sampled]| answer.iter().map(|one| one.token).collect::<Vec<_>>();
    let scores = |answer: &[Sampled]| answer.iter().map(|one| (one.token, one.logprob.to_bits())).collect::<Vec<_>>();
    assert_eq!(scores(&again), scores(&expected), "{model} on {from}, {kv_type}");
    assert_eq!(ids(&found), ids(&expected), "{model} from {from} to {to}");
    for (a, b) in expected.iter().zip(&found) {
        let apart = (a.logprob - b.logprob).abs();
        assert!(
            if from == to { a.logprob == b.logprob } else { apart <= TOLERANCE },
            "{model} from {from} to {to}: {apart}"
        );
    }
}

/// L83
#[test]
fn pages_of_one_engine_answer_in_another_as_at_home() {
    for (from, to) in [("cpu", "cpu"), ("lavapipe", "lavapipe"), ("cpu", "lavapipe"), ("lavapipe", "cpu")] {
        for model in ["llama_tiny_gguf/model.gguf", "gemma3_tiny", "gemma4_moe_tiny"] {
            for kv_type in [KvType::F32, KvType::F16, KvType::Q8] {
                check(model, from, to, kv_type);
            }
        }
    }
}

/// L78, L82
#[test]
fn pages_that_do_not_fit_change_nothing() {
    for device in ["cpu", "lavapipe"] {
        let mut engine = open("llama_tiny_gguf/model.gguf", device, KvType::F32);
        let row = engine.limits().row_bytes;
        let is_step = |result: Result<(), EngineError>| matches!(result, Err(EngineError::Step(_)));
        engine.write_page(3, 2, &vec![1; 2 * row]).expect("it fits");
        assert!(is_step(engine.write_page(3, 2, &vec![2; 2 * row - 1])));
        assert!(is_step(engine.write_page(3, 33, &vec![2; 33 * row])));
        assert!(is_step(engine.write_page(u32::MAX, 1, &vec![2; row])));
        assert!(is_step(pollster::block_on(engine.read_page(u32::MAX, 1)).map(drop)));
        assert!(is_step(pollster::block_on(engine.read_page(3, 33)).map(drop)));
        assert_eq!(pollster::block_on(engine.read_page(3, 2)), Ok(vec![1; 2 * row]), "{device}");
    }
}
