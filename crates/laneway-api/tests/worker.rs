//! The whole way from a socket to an engine without weights.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::{Gate, Reply, Server, Setup, Watched, chat_body, post, settled, wait_until};
use laneway_api::TurnService;
use laneway_session::EngineLimits;
use laneway_session::fake::{Fault, VOCABULARY, continuation};
use laneway_text::{Tokenizer, TokenizerSource};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMITS: EngineLimits = EngineLimits {
    lanes: 2,
    pages: 64,
    page_positions: 16,
    context_length: 512,
    max_rows: 16,
    depth: 1,
    branches: 0,
    row_bytes: 0,
    canvas: None,
};
const PROMPT: &str = "user:hi\nassistant:";

/// The end of a turn and the words that the engine samples, then bytes.
fn tokenizer() -> Tokenizer {
    let mut tokens = vec!["<|im_end|>".to_owned()];
    tokens.extend((1..VOCABULARY).map(|word| format!("▁w{word}")));
    let words = tokens.len();
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    let mut types = vec![1; words];
    types[0] = 3;
    types.extend([6; 256]);
    Tokenizer::new(TokenizerSource {
        model: "llama".into(),
        scores: Some(vec![0.0; tokens.len()]),
        eos: Some(0),
        tokens,
        token_types: Some(types),
        chat_template: Some("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:".into()),
        ..Default::default()
    })
    .expect("the vocabulary is valid")
}

fn setup() -> Setup {
    Setup::new(LIMITS)
}

async fn start(setup: &Setup) -> Server<Watched> {
    setup.start(tokenizer()).await
}

/// What the engine answers to [`PROMPT`].
fn expected(seed: u64, max_tokens: usize) -> String {
    let tokenizer = tokenizer();
    let prompt = tokenizer.encode(PROMPT, Default::default());
    tokenizer.decode(&continuation(seed, &prompt, max_tokens), true)
}

#[tokio::test]
async fn the_engines_tokens_arrive_as_text() {
    let server = start(&setup()).await;
    for seed in 0..4 {
        let members = format!(r#","seed":{seed},"max_tokens":20"#);
        let whole = server.chat(&members).await.json();
        assert_eq!(whole["choices"][0]["message"]["content"], expected(seed, 20));
        let streamed = server.chat(&format!(r#"{members},"stream":true"#)).await.events();
        let text: String =
            streamed.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, expected(seed, 20));
    }
}

#[tokio::test]
async fn a_repeated_prompt_is_taken_from_the_cache() {
    let server = start(&setup()).await;
    let cached = async || {
        let usage = server.chat(r#","seed":1,"max_tokens":4"#).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens"], PROMPT.len());
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(cached().await, 0);
    assert_ne!(cached().await, 0);
}

/// L97: one tenant's prompts tell nothing about another's.
#[tokio::test]
async fn salted_requests_share_nothing_with_others() {
    let server = start(&setup()).await;
    let cached = async |salt: &str| {
        let usage = server.chat(&format!(r#","seed":1,"max_tokens":4{salt}"#)).await.json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    let (a, b) = (r#","cache_salt":"a""#, r#","cache_salt":"b""#);
    assert_eq!((cached("").await, cached(a).await, cached(b).await), (0, 0, 0));
    for salt in ["", a, b] {
        assert_ne!(cached(salt).await, 0);
    }
}

/// C17
#[tokio::test]
async fn a_one_shot_request_leaves_nothing_in_the_cache() {
    let server = start(&setup()).await;
    let cached = async |members: &str| {
        let usage = server.chat(&format!(r#","seed":1,"max_tokens":4{members}"#)).await.json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    let once = r#","x_laneway_one_shot":true"#;
    assert_eq!((cached(once).await, cached(once).await, cached("").await), (0, 0, 0));
    assert_ne!(cached(once).await, 0);
}

#[tokio::test]
async fn a_session_has_a_name_that_routers_can_keep_to() {
    let server = start(&setup()).await;
    let body = chat_body(r#","max_tokens":2"#);
    let named = server
        .post_with(
            "/v1/chat/completions",
            "content-type: application/json\r\nx-session-id: talk-7\r\n",
            body.as_bytes(),
        )
        .await;
    assert_eq!(named.header("x-session-id"), Some("talk-7"));
    let token = server
        .post_with(
            "/v1/chat/completions",
            "content-type: application/json\r\nx-session-token: talk-8\r\n",
            body.as_bytes(),
        )
        .await;
    assert_eq!(token.header("x-session-id"), Some("talk-8"));
    let unnamed = server
        .post_with("/v1/chat/completions", "content-type: application/json\r\nx-session-id: a b\r\n", body.as_bytes())
        .await;
    assert_eq!(unnamed.header("x-session-id").map(str::len), Some(36));
    assert_eq!(server.get("/health").await.header("x-session-id"), None);
}

/// G68: while a prompt is computed a stream has its head and signs of life, and a failure is told in it.
#[tokio::test]
async fn a_stream_is_alive_before_its_first_token() {
    let steps = Gate::of(0);
    let mut setup = Setup { steps: steps.clone(), ..setup() };
    setup.options.keep_alive = Duration::from_millis(20);
    let server = start(&setup).await;
    let mut stream = server.send(&post("/v1/chat/completions", &chat_body(r#","stream":true"#))).await;
    let mut seen = Vec::new();
    let alive = async {
        while seen.windows(3).filter(|bytes| bytes == b"\n:\n").count() < 3 {
            let mut part = [0; 512];
            let count = stream.read(&mut part).await.unwrap();
            assert!(count > 0);
            seen.extend_from_slice(&part[..count]);
        }
    };
    tokio::time::timeout(Duration::from_secs(10), alive).await.expect("comment lines come");
    assert!(seen.starts_with(b"HTTP/1.1 200 OK"));
    setup.faults.inject("collect", Fault::Step);
    steps.open();
    let rest = Reply::read_rest(&mut stream, seen).await;
    let events = rest.body;
    assert!(events.contains(r#"data: {"error""#) && events.contains("data: [DONE]"), "{events}");
}

#[tokio::test]
async fn the_figures_of_the_service_are_exported() {
    let server = start(&setup()).await;
    for _ in 0..3 {
        assert_eq!(server.chat(r#","seed":1,"max_tokens":5"#).await.status, 200);
    }
    settled(&server).await;
    let metrics = server.get("/metrics").await.body;
    for line in [
        r#"vllm:cache_config_info{model_name="tiny",engine="0",block_size="16",num_gpu_blocks="64"} 1"#,
        r#"vllm:time_to_first_token_seconds_count{model_name="tiny",engine="0"} 3"#,
        r#"vllm:e2e_request_latency_seconds_count{model_name="tiny",engine="0"} 3"#,
        r#"vllm:request_prompt_tokens_sum{model_name="tiny",engine="0"} 54.0"#,
        r#"vllm:prompt_tokens_total{model_name="tiny",engine="0"} 54"#,
        r#"laneway_turns_total{model_name="tiny",source="http",stage="finished"} 3"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in\n{metrics}");
    }
}

#[tokio::test]
async fn clients_that_leave_at_random_leave_nothing_behind() {
    let server = start(&setup()).await;
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..200 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let members = format!(r#","seed":{round},"max_tokens":100,"stream":{}"#, round % 2 == 0);
        let mut stream = server.connect().await;
        stream
            .write_all(post("/v1/chat/completions", &chat_body(&members)).as_bytes())
            .await
            .expect("the server reads");
        let mut seen = vec![0; (random >> 52) as usize];
        // Leaves after some part of the answer; it may be shorter.
        let _ = tokio::time::timeout(Duration::from_millis(random >> 61), stream.read(&mut seen)).await;
    }
    settled(&server).await;
    while server.service.metrics().snapshot().lanes.active > 0 {
        tokio::task::yield_now().await;
    }
    let total = server.service.metrics().snapshot().total();
    assert_eq!(total.finished + total.failed, total.queued);
    assert_eq!(
        server.chat(r#","seed":1,"max_tokens":20"#).await.json()["choices"][0]["message"]["content"],
        expected(1, 20)
    );
}

#[tokio::test]
async fn leaving_the_queue_costs_no_step() {
    let setup = Setup { steps: Gate::of(0), ..setup() };
    let server = start(&setup).await;
    let mut running = Vec::new();
    for _ in 0..LIMITS.lanes {
        let mut stream = server.connect().await;
        stream
            .write_all(post("/v1/chat/completions", &chat_body(r#","seed":1,"max_tokens":3"#)).as_bytes())
            .await
            .expect("the server reads");
        running.push(stream);
    }
    wait_until(|| server.service.metrics().snapshot().total().queued == 2).await;
    let mut queued = server.connect().await;
    queued
        .write_all(post("/v1/chat/completions", &chat_body(r#","stream":true"#)).as_bytes())
        .await
        .expect("the server reads");
    wait_until(|| server.service.metrics().snapshot().total().queued == 3).await;
    drop(queued);
    wait_until(|| server.service.wakes.load(SeqCst) == 1).await;
    setup.steps.open();
    for mut stream in running {
        assert_eq!(Reply::read(&mut stream).await.status, 200);
    }
    settled(&server).await;
    let total = server.service.metrics().snapshot().total();
    assert_eq!((total.finished, total.failed), (2, 1));
    assert_eq!(server.service.metrics().snapshot().prompt_tokens, 2 * PROMPT.len() as u64);
}

#[tokio::test]
async fn leaving_during_prefill_stops_it_between_two_steps() {
    let setup = Setup { steps: Gate::of(2), ..setup() };
    let server = start(&setup).await;
    let content = "x".repeat(LIMITS.max_rows * 20);
    let body = format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"{content}"}}]}}"#);
    let mut stream = server.connect().await;
    stream.write_all(post("/v1/chat/completions", &body).as_bytes()).await.expect("the server reads");
    wait_until(|| setup.steps.left() == Some(0)).await;
    drop(stream);
    wait_until(|| server.service.wakes.load(SeqCst) == 1).await;
    setup.steps.open();
    settled(&server).await;
    let snapshot = server.service.metrics().snapshot();
    assert_eq!(snapshot.total().failed, 1);
    assert!(snapshot.steps <= 4, "{} steps", snapshot.steps);
    assert_eq!(snapshot.completion_tokens, 0);
}

#[tokio::test]
async fn a_full_queue_refuses_and_recovers() {
    let setup = Setup { steps: Gate::of(0), queue_depth: 1, ..setup() };
    let server = start(&setup).await;
    let mut streams = Vec::new();
    for queued in 1..=LIMITS.lanes as u64 + 1 {
        let mut stream = server.connect().await;
        stream
            .write_all(post("/v1/chat/completions", &chat_body(r#","max_tokens":2"#)).as_bytes())
            .await
            .expect("the server reads");
        wait_until(|| server.service.metrics().snapshot().total().queued == queued).await;
        if queued == 1 {
            wait_until(|| server.service.metrics().snapshot().total().running() == 1).await;
        }
        streams.push(stream);
    }
    let refused = server.chat("").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    setup.steps.open();
    let mut statuses = Vec::new();
    for mut stream in streams {
        statuses.push(Reply::read(&mut stream).await.status);
    }
    assert!(statuses.starts_with(&[200, 200]), "{statuses:?}");
    settled(&server).await;
    assert_eq!(server.chat(r#","max_tokens":2"#).await.status, 200);
}

#[tokio::test]
async fn engine_failures_are_told_and_survived() {
    let setup = setup();
    let server = start(&setup).await;
    for (call, fault) in
        [("begin", Fault::Panic), ("collect", Fault::Panic), ("submit", Fault::Lost), ("collect", Fault::Lost)]
    {
        setup.faults.inject(call, fault);
        let reply = server.chat(r#","seed":1,"max_tokens":5"#).await;
        assert_eq!(reply.status, 500, "{call} {fault:?}: {}", reply.body);
        assert_eq!(reply.json()["error"]["type"], "server_error");
        let again = server.chat(r#","seed":1,"max_tokens":5"#).await;
        assert_eq!(again.json()["choices"][0]["message"]["content"], expected(1, 5), "{call} {fault:?}");
    }
}

#[tokio::test]
async fn health_tells_a_loading_and_a_stuck_engine() {
    let setup = Setup { steps: Gate::of(0), loads: Gate::of(0), stuck_after_ms: 200, ..setup() };
    let server = start(&setup).await;
    let mut stream = server.connect().await;
    stream
        .write_all(post("/v1/chat/completions", &chat_body(r#","max_tokens":2"#)).as_bytes())
        .await
        .expect("the server reads");
    let code = async || server.get("/health").await.json()["error"]["code"].as_str().map(str::to_owned);
    let until = async |expected: Option<&str>| {
        while code().await.as_deref() != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until(Some("loading"))).await.expect("it loads");
    setup.loads.open();
    tokio::time::timeout(Duration::from_secs(20), until(Some("engine_stuck"))).await.expect("no step ends");
    setup.steps.open();
    assert_eq!(Reply::read(&mut stream).await.status, 200);
    settled(&server).await;
    tokio::time::timeout(Duration::from_secs(20), until(None)).await.expect("it works again");
}

/// Keeps the batches.
struct Recorded(std::sync::mpsc::Sender<serde_json::Value>);

impl laneway_api::SpanSink for Recorded {
    fn export(&mut self, batch: &str) -> Result<(), String> {
        self.0.send(serde_json::from_str(batch).unwrap()).map_err(|error| error.to_string())
    }
}

/// S30, S35: spans continue the caller's trace, say how much and how long, and nothing of what was said.
#[tokio::test]
async fn spans_of_requests_and_turns_reach_a_collector() {
    let (sender, batches) = std::sync::mpsc::channel();
    let level = laneway_api::TelemetryLevel::Debug;
    let mut setup = setup();
    setup.options.telemetry = Some(laneway_api::Telemetry::start(level, Box::new(Recorded(sender))).unwrap());
    let server = start(&setup).await;
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let lines = format!("content-type: application/json\r\ntraceparent: 00-{trace}-{parent}-01\r\n");
    let body = chat_body(r#","seed":3,"max_tokens":4"#);
    assert_eq!(server.post_with("/v1/chat/completions", &lines, body.as_bytes()).await.status, 200);
    let mut spans = Vec::new();
    while spans.len() < 5 {
        let batch = batches.recv_timeout(Duration::from_secs(20)).unwrap();
        spans.extend(batch["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    let named = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap();
    let (request, turn) = (named("/v1/chat/completions"), named("turn"));
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&trace.into(), &parent.into()));
    assert_eq!(turn["parentSpanId"], request["spanId"]);
    for phase in ["queue", "prefill", "decode"] {
        assert_eq!((&named(phase)["parentSpanId"], &named(phase)["traceId"]), (&turn["spanId"], &trace.into()));
    }
    let text = serde_json::Value::from(spans.clone()).to_string();
    assert!(text.contains(r#""outcome""#) && !text.contains("assistant") && !text.contains("w1"), "{text}");
    assert!(server.get("/metrics").await.body.contains("laneway_spans_dropped_total 0"));
}
