//! Requests for decisions, and what the engine without weights must answer to them.

use std::sync::{Arc, LazyLock};

use laneway_decisions::{Reader, ReaderOptions};
use laneway_protocol::systemone::{Answers, DecisionRequest};
use laneway_session::canvas::{CanvasContext, CanvasLimits, Denoising, Noise, Selection, Stop};
use laneway_session::fake::{VOCABULARY, logits};
use laneway_session::{EngineLimits, Metrics};
use serde_json::{Value, json};

use super::{Server, Setup, Watched, deciding_tokenizer, settled};
use laneway_api::TurnService;

pub const CAUSAL: EngineLimits = EngineLimits {
    lanes: 2,
    pages: 512,
    page_positions: 16,
    context_length: 4096,
    max_rows: 128,
    depth: 1,
    branches: 2,
    row_bytes: 0,
    canvas: None,
};

pub const CANVAS: EngineLimits = EngineLimits {
    canvas: Some(CanvasLimits {
        length: 64,
        vocabulary: VOCABULARY + 256,
        noise: Noise::Uniform,
        context: CanvasContext::Causal,
        shift: false,
        is_conditioned: true,
        pad: 0,
        denoising: Denoising {
            max_steps: 4,
            t_max: 0.8,
            t_min: 0.4,
            selection: Selection::EntropyBound(0.1),
            stop: Stop::Stable { passes: 1, entropy: 0.005 },
        },
    }),
    ..CAUSAL
};

pub async fn start(setup: &Setup) -> Server<Watched> {
    setup.start(deciding_tokenizer()).await
}

/// One question of each kind, with ids that no model may see.
pub fn body(state: impl Into<Value>) -> Value {
    json!({
        "model": "jev-latest",
        "state": state.into(),
        "questions": {
            "z last\u{1F600} \u{202E}ß\"\\": {"type": "noul", "instructions": "Is it about money?"},
            "a": {"type": "choice", "criteria": {"refund": "wants money back", "other": null, "ünï": {"deep": [1]}}},
            "0": {"type": "score", "instructions": "How urgent?", "criteria": ["low", {"level": "mid"}, "high"]},
            " ": {"type": "choice", "criteria": {"only": null}},
            "m": {"type": "noul", "criteria": {"true": "angry"}},
        },
    })
}

static CAUSAL_READER: LazyLock<Reader> = LazyLock::new(|| reader(CAUSAL));
static CANVAS_READER: LazyLock<Reader> = LazyLock::new(|| reader(CANVAS));

fn reader(limits: EngineLimits) -> Reader {
    let tokenizer = Arc::new(deciding_tokenizer());
    Setup::new(limits).reader(&tokenizer, ReaderOptions::default()).expect("it can decide")
}

/// The answers that the engine's logits give.
pub fn expected(limits: &EngineLimits, body: &Value) -> Value {
    let reader = if limits.canvas.is_some() { &*CANVAS_READER } else { &*CAUSAL_READER };
    let request = DecisionRequest::from_json(body.to_string().as_bytes()).expect("a valid request");
    let plan = reader.plan(&request, limits.context_length).expect("it fits");
    let run = |part: &laneway_decisions::ReadPart| logits(limits, &part.prompt, &part.branches);
    let mut read: Vec<_> = plan.parts().iter().map(run).collect();
    if let Some(more) = plan.more(&read) {
        read.extend(more.iter().map(run));
    }
    let answers = Answers::new(&request, plan.readings(&read).expect("finite logits")).expect("one for each");
    // By way of text, as the answers that it is compared with.
    serde_json::from_str(&serde_json::to_string(&answers).expect("JSON")).expect("JSON")
}

/// All turns and reads have ended, each counted once, and every lane is free.
pub async fn check_conserved(server: &Server<Watched>) {
    settled(server).await;
    let metrics: &Metrics = server.service.metrics();
    super::wait_until(|| metrics.snapshot().lanes.active == 0).await;
    let total = metrics.snapshot().total();
    assert_eq!(total.queued, total.started + total.rejected, "{total:?}");
    assert_eq!(total.started, total.finished + total.failed, "{total:?}");
}
