//! `POST /v1/systemone` and `POST /v1/decisions`, from a socket to an engine without weights.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::Ordering::SeqCst;

use common::deciding::{CANVAS, CAUSAL, body, check_conserved, expected, start};
use common::{Gate, Reply, Setup, post, wait_until};
use laneway_api::TurnService;
use laneway_session::EngineLimits;
use serde_json::{Value, json};

const PATH: &str = "/v1/systemone";

#[tokio::test]
async fn all_kinds_are_answered_in_order_under_the_callers_ids() {
    for limits in [CAUSAL, CANVAS] {
        let server = start(&Setup::new(limits)).await;
        let body = body("I was charged twice.");
        for path in [PATH, "/systemone"] {
            let reply = server.post(path, &body.to_string()).await;
            assert_eq!(reply.status, 200, "{}", reply.body);
            assert_eq!(reply.header("content-type"), Some("application/json"));
            let answer = reply.json();
            assert_eq!(answer["model"], "tiny");
            assert_eq!(answer["answers"], expected(&limits, &body), "{}", reply.body);
            let ids: Vec<_> = answer["answers"].as_object().unwrap().keys().cloned().collect();
            let asked: Vec<_> = body["questions"].as_object().unwrap().keys().cloned().collect();
            assert_eq!(ids, asked);
            assert_eq!(answer["answers"]["a"]["probabilities"].as_object().unwrap().len(), 3);
            assert_eq!(answer["answers"]["0"]["legend"], json!({"0": "low", "1": {"level": "mid"}, "2": "high"}));
            assert_eq!(answer["answers"][" "]["confidence"], 1.0);
            assert_eq!(answer["usage"]["output_tokens"], 0);
            assert!(answer["usage"]["input_tokens"].as_u64().unwrap() > 50, "{}", reply.body);
        }
        check_conserved(&server).await;
    }
}

#[tokio::test]
async fn aliases_and_no_name_mean_the_model_that_decides() {
    let server = start(&Setup::new(CAUSAL)).await;
    for name in [
        json!("jev-latest"),
        json!("jev-preview"),
        json!("openjev-latest"),
        json!("tiny"),
        json!("tiny-alias"),
        json!(null),
    ] {
        let mut body = body("x");
        body["model"] = name.clone();
        let reply = server.post(PATH, &body.to_string()).await;
        assert_eq!((reply.status, reply.json()["model"].as_str()), (200, Some("tiny")), "{name}");
    }
    let mut body = body("x");
    body.as_object_mut().unwrap().remove("model");
    assert_eq!(server.post(PATH, &body.to_string()).await.status, 200);
}

#[tokio::test]
async fn states_of_every_kind_are_read() {
    let server = start(&Setup::new(CAUSAL)).await;
    for state in [json!(""), json!("日本\u{0}\n"), json!({"b": 1, "a": [null]}), json!([]), json!([{"role": "user"}])]
    {
        let body = body(state);
        let reply = server.post(PATH, &body.to_string()).await;
        assert_eq!(reply.json()["answers"], expected(&CAUSAL, &body), "{}", reply.body);
    }
}

#[tokio::test]
async fn openais_api_gives_the_same_probabilities_as_lists() {
    let server = start(&Setup::new(CAUSAL)).await;
    let asked = json!({
        "model": "tiny",
        "input": "I was charged twice.",
        "questions": [
            {"type": "predicate", "name": "money", "instructions": "Is it about money?"},
            {"type": "choice", "instructions": "What?", "choices": [{"value": "refund"}, {"value": true}]},
            {"type": "score", "instructions": "How urgent?", "levels": [{"label": "low"}, {"label": "high"}]},
        ],
    });
    let reply = server.post("/v1/decisions", &asked.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(reply.header("server-timing").is_some());
    let answer = reply.json();
    assert_eq!(answer["model"], "tiny");
    assert_eq!(answer["answers"].as_array().unwrap().len(), 3);
    let same = json!({"state": "I was charged twice.", "questions": {"q": {"type": "noul", "instructions": "Is it about money?"}}});
    assert_eq!(answer["answers"][0]["name"], "money");
    assert_eq!(answer["answers"][0]["probability"], expected(&CAUSAL, &same)["q"]["noul"]);
    assert_eq!(answer["answers"][1]["probabilities"][1]["value"], true);
    let usage = &answer["usage"];
    assert_eq!(usage["total_tokens"], usage["input_tokens"]);
}

#[tokio::test]
async fn a_repeated_request_has_the_same_answers_and_ids() {
    let server = start(&Setup::new(CANVAS)).await;
    let body = body("the same").to_string();
    let first = server.post(PATH, &body).await;
    let again = server.post(PATH, &body).await;
    assert_eq!(first.json()["answers"], again.json()["answers"]);
    assert!(again.json()["usage"]["x_cached_tokens"].as_u64().unwrap() > 0, "{}", again.body);
    assert_ne!(first.header("x-request-id"), again.header("x-request-id"));
}

#[tokio::test]
async fn answers_say_which_request_and_how_long() {
    let server = start(&Setup::new(CAUSAL)).await;
    let lines = "content-type: application/json\r\nx-request-id: mine-7\r\n";
    let reply = server.post_with(PATH, lines, body("x").to_string().as_bytes()).await;
    assert_eq!((reply.header("x-request-id"), reply.header("x-typesafe-request-id")), (Some("mine-7"), Some("mine-7")));
    let timing = reply.header("server-timing").unwrap();
    let names: Vec<_> = timing.split(", ").filter_map(|part| part.split_once(";dur=")).collect();
    assert_eq!(names.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["queue", "model", "total"]);
    let ms: Vec<f64> = names.iter().map(|(_, ms)| ms.parse().unwrap()).collect();
    assert!(ms[0] + ms[1] <= ms[2] + 0.2, "{timing}");
    let refused = server.post(PATH, "{").await;
    assert_eq!(refused.header("x-request-id"), refused.header("x-typesafe-request-id"));
    assert!(refused.header("x-request-id").is_some());
    assert_eq!(server.chat(r#","max_tokens":1"#).await.header("x-typesafe-request-id"), None);
}

/// Every client gets what its own state says, or is told to come back.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_reads_on_one_lane_are_not_mixed() {
    for limits in [CAUSAL, CANVAS] {
        for (queue_depth, least) in [(64, 32), (4, 1)] {
            let setup = Setup { queue_depth, ..Setup::new(EngineLimits { lanes: 1, ..limits }) };
            let server = start(&setup).await;
            let bodies: Vec<Value> = (0..32).map(|n| body(format!("state number {n}"))).collect();
            let replies = futures::future::join_all(
                bodies.iter().map(|body| async { server.post(PATH, &body.to_string()).await }),
            )
            .await;
            let mut answered = 0;
            for (body, reply) in bodies.iter().zip(&replies) {
                if reply.status == 529 {
                    assert_eq!(reply.json()["detail"]["error_type"], "overloaded_error");
                    continue;
                }
                answered += 1;
                assert_eq!(reply.json()["answers"], expected(&setup.limits, body), "{}", reply.body);
            }
            assert!(answered >= least, "{answered} answers");
            check_conserved(&server).await;
        }
    }
}

#[tokio::test]
async fn turns_and_reads_share_the_lanes() {
    let server = start(&Setup::new(EngineLimits { lanes: 1, ..CAUSAL })).await;
    let body = body("between turns");
    let text = body.to_string();
    let read = || server.post(PATH, &text);
    let chat = || server.chat(r#","seed":1,"max_tokens":9"#);
    let (alone, first, second, third, fourth) = (chat().await, chat(), read(), chat(), read());
    let (first, second, third, fourth) = futures::join!(first, second, third, fourth);
    let content = |reply: &Reply| reply.json()["choices"][0]["message"]["content"].clone();
    assert_eq!((content(&first), content(&third)), (content(&alone), content(&alone)));
    for reply in [second, fourth] {
        assert_eq!(reply.json()["answers"], expected(&CAUSAL, &body));
    }
}

/// More reads than the queue holds are queued as there is room.
#[tokio::test]
async fn a_request_of_many_reads_needs_no_long_queue() {
    let mut body = body("x");
    let alone = |n| (format!("q{n}"), json!({"type": "noul", "instructions": format!("Is it {n}?"), "alone": true}));
    body["questions"] = (0..40).map(alone).collect::<serde_json::Map<_, _>>().into();
    body["x_permutations"] = 2.into();
    for queue_depth in [1, 3] {
        let server = start(&Setup { queue_depth, ..Setup::new(CANVAS) }).await;
        let reply = server.post(PATH, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["answers"], expected(&CANVAS, &body));
        check_conserved(&server).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_reads_along() {
    for limits in [CAUSAL, CANVAS] {
        let setup = Setup { steps: Gate::of(1), ..Setup::new(EngineLimits { lanes: 1, ..limits }) };
        let server = start(&setup).await;
        let mut streams = Vec::new();
        for n in 0..3_u64 {
            streams.push(server.send(&post(PATH, &body(format!("state {n}")).to_string())).await);
            wait_until(|| server.service.metrics().snapshot().total().queued == n + 1).await;
        }
        wait_until(|| setup.steps.left() == Some(0)).await;
        drop(streams);
        wait_until(|| server.service.wakes.load(SeqCst) == 3).await;
        setup.steps.open();
        check_conserved(&server).await;
        let snapshot = server.service.metrics().snapshot();
        assert_eq!((snapshot.total().failed, snapshot.reads), (3, 0));
        assert!(snapshot.steps <= 3, "{} steps", snapshot.steps);
        let body = body("after them");
        assert_eq!(server.post(PATH, &body.to_string()).await.json()["answers"], expected(&setup.limits, &body));
    }
}

#[tokio::test]
async fn clients_that_leave_at_random_leave_nothing_behind() {
    use tokio::io::AsyncReadExt;
    let server = start(&Setup::new(CANVAS)).await;
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..60 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut stream = server.send(&post(PATH, &body(format!("state {}", round % 7)).to_string())).await;
        let mut seen = [0; 64];
        // Leaves at some point; the answer may have come.
        let wait = std::time::Duration::from_millis(random >> 60);
        let _ = tokio::time::timeout(wait, stream.read(&mut seen)).await;
    }
    let body = body("the last");
    assert_eq!(server.post(PATH, &body.to_string()).await.json()["answers"], expected(&CANVAS, &body));
    check_conserved(&server).await;
}

#[tokio::test]
async fn reads_are_counted_and_health_does_not_mind_them() {
    let setup = Setup { steps: Gate::of(1), ..Setup::new(CAUSAL) };
    let server = start(&setup).await;
    let mut stream = server.send(&post(PATH, &body("x").to_string())).await;
    wait_until(|| setup.steps.left() == Some(0)).await;
    assert_eq!(server.get("/health").await.status, 200);
    setup.steps.open();
    assert_eq!(Reply::read(&mut stream).await.status, 200);
    assert_eq!(server.post(PATH, "[]").await.status, 422);
    check_conserved(&server).await;
    let metrics = server.get("/metrics").await.body;
    for line in [
        r#"laneway_reads_total{model_name="tiny",engine="0"} 1"#,
        r#"laneway_read_time_seconds_count{model_name="tiny",engine="0"} 1"#,
        r#"laneway_read_queue_time_seconds_count{model_name="tiny",engine="0"} 1"#,
        r#"laneway_turns_total{model_name="tiny",source="http",stage="finished"} 1"#,
        r#"laneway_http_requests_total{route="/v1/systemone",status="200"} 1"#,
        r#"laneway_http_requests_total{route="/v1/systemone",status="422"} 1"#,
        r#"vllm:e2e_request_latency_seconds_count{model_name="tiny",engine="0"} 0"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in\n{metrics}");
    }
}
