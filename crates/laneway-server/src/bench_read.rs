//! `laneway bench --read`: what decisions cost, on a bare engine driven by its service.

use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use futures::executor::block_on;
use laneway_decisions::{PartLogits, Plan, ReadPart};
use laneway_engine::ModelEngine;
use laneway_protocol::systemone::DecisionRequest;
use laneway_session::{
    Action, Cancel, Engine, Outcome, Read, ReadAnswer, Request, Service, ServiceConfig, Source, TurnError,
};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex};

use crate::args::BenchArgs;
use crate::host::engine_settings;
use crate::load::{self, TextSide, text_side};
use crate::output::{print, table, thousands};
use crate::settings::{ModelSettings, Usage};

/// Questions of the larger request.
const MANY: usize = 12;
/// Further reads per request whose median is the repeated one's.
const REPEATS: usize = 5;

/// A request that was answered.
#[derive(Clone, Copy, Default)]
struct Cost {
    seconds: f64,
    prompt_tokens: usize,
    cached_tokens: usize,
    computed_tokens: usize,
    slots: usize,
    labels: usize,
    head_multiply_adds: u64,
}

/// Loads the model, reads one and twelve questions about new and known states, and prints medians.
pub fn run(settings: &ModelSettings, args: &BenchArgs) -> Result<()> {
    let alone = ModelSettings { lanes: Some(1), ..settings.clone() };
    let text = text_side(&alone)?;
    let reader =
        text.reader.clone().map_err(|reason| Usage(format!("{} answers no decisions: {reason}", text.name)))?;
    let weights = load::open(&text.path)?;
    let (vocab, hidden) = (weights.config().vocab_size, weights.config().hidden_size);
    let engine = block_on(ModelEngine::open(&weights, &engine_settings(&alone, text.context_length)))?;
    drop(weights);
    let mut bench = Bench { engine, service: Service::new(ServiceConfig::default()), start: Instant::now() };
    let mut case = 0;
    let mut fresh = |count: usize, bench: &mut Bench, repeats: usize| -> Result<(Cost, Vec<Cost>)> {
        case += 1;
        let request = request(&state(&text, args.prompt as usize, case), count)?;
        let plan = reader.plan(&request, text.context_length).map_err(|error| Usage(error.to_string()))?;
        let first = bench.answer(&plan)?;
        Ok((first, (0..repeats).map(|_| bench.answer(&plan)).collect::<Result<_>>()?))
    };
    // The first request of all pays for kernels and caches.
    fresh(1, &mut bench, 0)?;
    fresh(MANY, &mut bench, 0)?;
    let (mut one, mut many, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.runs {
        one.push(fresh(1, &mut bench, 0)?.0);
        many.push(fresh(MANY, &mut bench, 0)?.0);
        again.extend(fresh(1, &mut bench, REPEATS)?.1);
    }
    let (one, many, again) = (median(one), median(many), median(again));
    let cost = |cost: Cost| {
        json!({
            "seconds": cost.seconds,
            "prompt_tokens": cost.prompt_tokens,
            "cached_tokens": cost.cached_tokens,
            "computed_tokens": cost.computed_tokens,
            "slots": cost.slots,
            "labels": cost.labels,
            "head_multiply_adds": cost.head_multiply_adds,
            "head_multiply_adds_of_all_logits": cost.slots * vocab * hidden,
        })
    };
    let report = json!({
        "model": text.name,
        "device": bench.engine.device().name,
        "runs": args.runs,
        "one_question": cost(one),
        "twelve_questions": cost(many),
        "one_question_again": cost(again),
        "twelve_to_one": many.seconds / one.seconds,
        "again_to_cold": again.seconds / one.seconds,
    });
    if args.json {
        return print(&format!("{report}\n"));
    }
    let line = |name: &str, cost: Cost, ratio: String| {
        let all = (cost.slots * vocab * hidden) as u64;
        vec![
            name.to_owned(),
            format!("{:.1}", cost.seconds * 1000.0),
            ratio,
            thousands(cost.prompt_tokens as u64),
            thousands(cost.cached_tokens as u64),
            thousands(cost.computed_tokens as u64),
            format!("{} of {}", thousands(cost.head_multiply_adds), thousands(all)),
        ]
    };
    let head = ["", "ms", "ratio", "prompt", "cached", "computed", "head multiply-adds, of all logits"];
    let rows = [
        head.map(str::to_owned).to_vec(),
        line("1 question, new state", one, "1.00".to_owned()),
        line("12 questions, new state", many, format!("{:.2}", many.seconds / one.seconds)),
        line("1 question, known state", again, format!("{:.2}", again.seconds / one.seconds)),
    ];
    print(&format!("{} on {}, medians of {}\n\n", text.name, bench.engine.device().name, args.runs))?;
    print(&table(&rows, &[1, 2, 3, 4, 5]))
}

struct Bench {
    engine: ModelEngine,
    service: Service<()>,
    start: Instant,
}

impl Bench {
    fn answer(&mut self, plan: &Plan) -> Result<Cost> {
        let (start, before) = (Instant::now(), self.engine.head_multiply_adds());
        let mut cost = Cost::default();
        let mut logits = Vec::new();
        self.read(plan.parts(), &mut logits, &mut cost)?;
        if let Some(more) = plan.more(&logits) {
            self.read(&more, &mut logits, &mut cost)?;
        }
        plan.readings(&logits)?;
        cost.seconds = start.elapsed().as_secs_f64();
        cost.head_multiply_adds = self.engine.head_multiply_adds() - before;
        Ok(cost)
    }

    fn read(&mut self, parts: &[ReadPart], logits: &mut Vec<PartLogits>, cost: &mut Cost) -> Result<()> {
        for part in parts {
            let slots = part.branches.iter().flat_map(|branch| &branch.slots);
            cost.slots += slots.clone().count();
            cost.labels += slots.map(|slot| slot.labels.len()).sum::<usize>();
            let answer = self.run(part)?;
            cost.prompt_tokens += answer.prompt_tokens;
            cost.cached_tokens += answer.cached_tokens;
            cost.computed_tokens += answer.computed_tokens;
            logits.push(answer.logits);
        }
        Ok(())
    }

    fn run(&mut self, part: &ReadPart) -> Result<ReadAnswer> {
        let answered = Arc::new(Mutex::new(None::<Result<ReadAnswer, TurnError>>));
        let told = answered.clone();
        let read = Read {
            prompt: part.prompt.clone(),
            branches: part.branches.clone(),
            answer: Box::new(move |result| *told.lock().expect("nobody panics with it") = Some(result)),
            cancel: Cancel::new(),
            deadline_ms: None,
            source: Source::LocalChat,
            namespace: 0,
        };
        self.service.submit_read(self.now(), Request { settings: (), idle_timeout_ms: None }, read)?;
        loop {
            if let Some(result) = answered.lock().map_err(|_| anyhow!("the read panicked"))?.take() {
                return Ok(result?);
            }
            let outcome = match self.service.plan(self.now()) {
                Action::Load { .. } => Outcome::Loaded(Ok(self.engine.limits())),
                Action::Engine(call) => block_on(call.execute(Some(&mut self.engine))),
                Action::Unload => Outcome::Unloaded,
                Action::Wait { .. } | Action::Stop => return Err(anyhow!("the service waits in the middle of a read")),
            };
            let now = self.now();
            self.service.commit(now, outcome);
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// A text of about so many tokens that shares no beginning with another case's.
fn state(text: &TextSide, tokens: usize, case: u32) -> String {
    const WORDS: [&str; 16] = [
        "invoice", "parcel", "refund", "window", "river", "signal", "paper", "engine", "garden", "ticket", "harbour",
        "copper", "letter", "market", "bridge", "winter",
    ];
    let mut state = format!("{case} cases");
    let mut at = case as usize;
    let count = |state: &str| text.tokenizer.encode(state, laneway_text::EncodeOptions::default()).len();
    while count(&state) < tokens {
        let missing = (tokens - count(&state)).div_ceil(2);
        for _ in 0..missing {
            at = at.wrapping_mul(31).wrapping_add(7);
            state += " ";
            state += WORDS[at % WORDS.len()];
        }
    }
    state
}

fn request(state: &str, count: usize) -> Result<DecisionRequest> {
    let question = |at: usize| match at % 3 {
        0 => json!({"type": "noul", "instructions": format!("Does case {at} ask for a refund?")}),
        1 => json!({"type": "choice", "instructions": format!("Which team takes case {at}?"),
                    "criteria": {"Billing": null, "Shipping": null, "Technical": null}}),
        _ => json!({"type": "score", "instructions": format!("How urgent is case {at}?"),
                    "criteria": ["can wait", "this week", "today"]}),
    };
    let questions: Map<String, Value> = (0..count).map(|at| (format!("q{at}"), question(at))).collect();
    let body = json!({"state": state, "questions": questions}).to_string();
    DecisionRequest::from_json(body.as_bytes()).context("the benchmark's own request")
}

/// The cost whose time is the median.
fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    costs.get(costs.len() / 2).copied().unwrap_or_default()
}
