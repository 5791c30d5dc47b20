//! Decisions that are refused or fail, in the shapes that System One's and OpenAI's clients read.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::deciding::{CANVAS, CAUSAL, body, check_conserved, expected, start};
use common::{Gate, Reply, Script, Server, Setup, Watched, post, wait_until};
use laneway_api::{ApiOptions, Phase, ServeOptions, TurnService};
use laneway_session::EngineLimits;
use laneway_session::fake::Fault;
use serde_json::{Value, json};

const PATH: &str = "/v1/systemone";

#[track_caller]
fn check(reply: &Reply, status: u16, error_type: &str) -> String {
    let detail = reply.json()["detail"].clone();
    assert_eq!((reply.status, detail["error_type"].as_str()), (status, Some(error_type)), "{}", reply.body);
    assert!(reply.header("x-typesafe-request-id").is_some(), "{}", reply.head);
    detail["message"].as_str().expect("a message").to_owned()
}

fn openai() -> Value {
    json!({"model": "tiny", "input": "x", "questions": [{"type": "predicate", "instructions": "Is it?"}]})
}

#[tokio::test]
async fn wrong_shapes_list_every_place() {
    let server = start(&Setup::new(CAUSAL)).await;
    for (sent, loc) in [
        (r#"{"state":"x"}"#, json!(["body", "questions"])),
        (r#"{"questions":{"q":{"type":"noul"}}}"#, json!(["body", "state"])),
        (r#"{"state":null,"questions":{"q":{"type":"noul"}}}"#, json!(["body", "state"])),
        (r#"{"state":"x","questions":{}}"#, json!(["body", "questions"])),
        (
            r#"{"state":"x","questions":{"q":{"type":"score","criteria":{"a":1}}}}"#,
            json!(["body", "questions", "q", "score", "criteria"]),
        ),
        (r#"{"state":"x","questions":{"q":{"type":"noul"}},"steps":99}"#, json!(["body", "steps"])),
        ("[1]", json!(["body"])),
        ("{", json!(["body", 1])),
        ("", json!(["body", 0])),
    ] {
        let reply = server.post(PATH, sent).await;
        assert_eq!((reply.status, &reply.json()["detail"][0]["loc"]), (422, &loc), "{sent}: {}", reply.body);
        let first = &reply.json()["detail"][0];
        assert!(first["msg"].is_string() && first["type"].is_string(), "{}", reply.body);
    }
    let options: serde_json::Map<_, _> = (0..256).map(|n| (format!("o{n}"), Value::Null)).collect();
    let many = json!({"state": "x", "questions": {"q": {"type": "choice", "criteria": options}}});
    assert!((400..500).contains(&server.post(PATH, &many.to_string()).await.status));
    assert_eq!(server.service.metrics().snapshot().total().queued, 0);
}

#[tokio::test]
async fn models_that_do_not_decide_say_why() {
    let server = Server::start(Script::default()).await;
    let message = check(&server.post(PATH, &body("x").to_string()).await, 400, "api_usage_error");
    assert!(message.contains("tiny") && message.contains("it only plays a script"), "{message}");
    let mut unknown = body("x");
    unknown["model"] = "gpt-4o".into();
    let message = check(&server.post(PATH, &unknown.to_string()).await, 400, "api_usage_error");
    assert!(message.contains("gpt-4o"), "{message}");

    let reply = server.post("/v1/decisions", &openai().to_string()).await;
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (400, Some("invalid_request_error")));
    let mut unknown = openai();
    unknown["model"] = "gpt-6-luna".into();
    let reply = server.post("/v1/decisions", &unknown.to_string()).await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
    unknown.as_object_mut().unwrap().remove("model");
    let reply = server.post("/v1/decisions", &unknown.to_string()).await;
    assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some("model")), "{}", reply.body);
}

#[tokio::test]
async fn what_the_model_cannot_do_is_refused() {
    let server = start(&Setup::new(CAUSAL)).await;
    for knob in ["steps", "samples", "think"] {
        let mut body = body("x");
        body[knob] = 2.into();
        let message = check(&server.post(PATH, &body.to_string()).await, 400, "api_usage_error");
        assert!(message.contains(knob), "{message}");
    }
    let options: serde_json::Map<_, _> = (0..200).map(|n| (format!("o{n}"), Value::Null)).collect();
    let many = json!({"state": "x", "questions": {"mine": {"type": "choice", "criteria": options}}});
    let reply = start(&Setup::new(CANVAS)).await.post(PATH, &many.to_string()).await;
    let message = check(&reply, 400, "api_usage_error");
    assert!(message.contains("mine") && message.contains("200"), "{message}");
}

#[tokio::test]
async fn a_state_over_the_context_is_refused_with_both_numbers() {
    for limits in [CAUSAL, CANVAS] {
        let server = start(&Setup::new(limits)).await;
        let sent = body("x".repeat(5000));
        let message = check(&server.post(PATH, &sent.to_string()).await, 400, "api_usage_error");
        let numbers: Vec<usize> =
            message.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        assert!(numbers.len() == 2 && numbers[0] > 5000 && numbers[1] == 4096, "{message}");
        assert_eq!(server.service.metrics().snapshot().total().queued, 0);

        let mut asked = openai();
        asked["input"] = "x".repeat(5000).into();
        let reply = server.post("/v1/decisions", &asked.to_string()).await;
        assert_eq!(reply.status, 400);
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains("4096"), "{}", reply.body);
    }
}

#[tokio::test]
async fn the_key_is_demanded_on_every_path() {
    let options =
        ApiOptions { api_key: Some("secret".into()), admin_key: Some("root".into()), ..ApiOptions::default() };
    let server = start(&Setup { options, ..Setup::new(CAUSAL) }).await;
    let json = "content-type: application/json\r\n";
    let sent = body("x").to_string();
    for path in [PATH, "/systemone"] {
        for key in ["", "authorization: Bearer wrong\r\n", "authorization: Bearer root\r\n", "authorization: é\r\n"] {
            let reply = server.post_with(path, &format!("{json}{key}"), sent.as_bytes()).await;
            check(&reply, 401, "authentication_error");
            assert_eq!(reply.header("www-authenticate"), Some("bearer"));
        }
        let lines = format!("{json}authorization: Bearer secret\r\n");
        assert_eq!(server.post_with(path, &lines, sent.as_bytes()).await.status, 200);
    }
    let reply = server.post("/v1/decisions", &openai().to_string()).await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    let open = start(&Setup::new(CAUSAL)).await;
    let lines = format!("{json}authorization: Bearer whatever\r\n");
    assert_eq!(open.post_with(PATH, &lines, sent.as_bytes()).await.status, 200);
}

#[tokio::test]
async fn methods_paths_and_sizes_have_system_ones_shape() {
    let options = ApiOptions { body_limit_bytes: 2000, ..ApiOptions::default() };
    let server = start(&Setup { options, ..Setup::new(CAUSAL) }).await;
    for path in [PATH, "/systemone"] {
        let reply = server.get(path).await;
        check(&reply, 405, "method_not_allowed");
        assert_eq!(reply.header("allow"), Some("post"));
        check(&server.post(path, &body("x".repeat(5000)).to_string()).await, 413, "api_usage_error");
        let reply = server.post_with(path, "content-type: text/plain\r\n", body("x").to_string().as_bytes()).await;
        check(&reply, 415, "api_usage_error");
    }
    for path in ["/v1/systemone/", "/v1/systemone/x"] {
        let reply = server.post(path, "{}").await;
        assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (404, Some("not_found")));
    }
    let reply = server.get("/v1/decisions").await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (405, Some("method_not_allowed")));
}

/// One read at work that waits for the gate, and one in the queue of one.
async fn full(setup: &Setup) -> (Server<Watched>, Vec<tokio::net::TcpStream>) {
    let server = start(setup).await;
    let mut streams = Vec::new();
    for n in 0..2_u64 {
        streams.push(server.send(&post(PATH, &body(format!("state {n}")).to_string())).await);
        wait_until(|| server.service.metrics().snapshot().total().queued == n + 1).await;
        wait_until(|| server.service.metrics().snapshot().total().running() == 1).await;
    }
    (server, streams)
}

fn narrow() -> Setup {
    Setup { steps: Gate::of(0), queue_depth: 1, ..Setup::new(EngineLimits { lanes: 1, ..CAUSAL }) }
}

#[tokio::test]
async fn a_full_queue_is_overload_here_and_too_many_there() {
    let setup = narrow();
    let (server, streams) = full(&setup).await;
    let reply = server.post(PATH, &body("one more").to_string()).await;
    check(&reply, 529, "overloaded_error");
    assert_eq!((reply.header("retry-after"), reply.header("retry-after-ms")), (Some("1"), Some("1000")));
    let reply = server.post("/v1/decisions", &openai().to_string()).await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (429, Some("rate_limit_exceeded")));
    assert_eq!(reply.header("retry-after"), Some("1"));
    setup.steps.open();
    for (n, mut stream) in streams.into_iter().enumerate() {
        let reply = Reply::read(&mut stream).await;
        assert_eq!(reply.json()["answers"], expected(&setup.limits, &body(format!("state {n}"))));
    }
    check_conserved(&server).await;
}

#[tokio::test]
async fn a_closing_server_takes_no_more_and_a_stopping_one_ends_what_it_has() {
    let setup = narrow();
    let (server, streams) = full(&setup).await;
    server.state.enter(Phase::Closing);
    let reply = server.post(PATH, &body("late").to_string()).await;
    check(&reply, 503, "service_unavailable_error");
    assert!(reply.header("retry-after").is_some());
    let reply = server.post("/v1/decisions", &openai().to_string()).await;
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (503, Some("service_unavailable_error")));
    server.state.enter(Phase::Stopping);
    for mut stream in streams {
        check(&Reply::read(&mut stream).await, 503, "service_unavailable_error");
    }
    setup.steps.open();
    check_conserved(&server).await;
    assert_eq!(server.service.metrics().snapshot().total().failed, 2);
}

#[tokio::test]
async fn shutting_down_lets_reads_finish() {
    let setup = Setup { steps: Gate::of(0), ..Setup::new(CAUSAL) };
    let mut server = start(&setup).await;
    let mut stream = server.send(&post(PATH, &body("x").to_string())).await;
    wait_until(|| server.service.metrics().snapshot().total().running() == 1).await;
    server.shut_down();
    wait_until(|| server.state.phase() == Phase::Closing).await;
    setup.steps.open();
    assert_eq!(Reply::read(&mut stream).await.json()["answers"], expected(&CAUSAL, &body("x")));
    server.ended.await.unwrap();
}

#[tokio::test]
async fn engine_failures_are_500_and_survived() {
    for limits in [CAUSAL, CANVAS] {
        let setup = Setup::new(limits);
        let server = start(&setup).await;
        let sent = body("x").to_string();
        for (call, fault) in [("collect", Fault::Panic), ("submit", Fault::Lost), ("collect", Fault::Step)] {
            setup.faults.inject(call, fault);
            check(&server.post(PATH, &sent).await, 500, "internal_error");
            assert_eq!(server.post(PATH, &sent).await.status, 200, "{call} {fault:?}");
        }
        setup.faults.blind(true);
        let reply = server.post(PATH, &sent).await;
        check(&reply, 500, "internal_error");
        assert!(!reply.body.contains("NaN") && !reply.body.contains("answers"), "{}", reply.body);
        let reply = server.post("/v1/decisions", &openai().to_string()).await;
        assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (500, Some("server_error")));
        setup.faults.blind(false);
        assert_eq!(server.post(PATH, &sent).await.json()["answers"], expected(&limits, &body("x")));
        check_conserved(&server).await;
    }
}

#[tokio::test]
async fn a_late_answer_is_a_timeout() {
    let options = ApiOptions { turn_timeout: Some(Duration::from_millis(30)), ..ApiOptions::default() };
    let setup = Setup { options, serving: ServeOptions::default(), ..narrow() };
    let (server, streams) = full(&setup).await;
    // The engine is stuck all the while.
    for mut stream in streams {
        check(&Reply::read(&mut stream).await, 504, "timeout_error");
    }
    setup.steps.open();
    check_conserved(&server).await;
}

#[tokio::test]
async fn the_debug_page_needs_the_admin_key() {
    let asked: String = body("the state of debugging").to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
    let path = format!("/debug/systemone?request={asked}");
    let get = async |server: &Server<Watched>, path: &str, line: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{line}connection: close\r\n\r\n");
        server.raw(request.as_bytes()).await
    };
    let closed = ApiOptions { api_key: Some("secret".into()), ..ApiOptions::default() };
    let closed = start(&Setup { options: closed, ..Setup::new(CAUSAL) }).await;
    for line in ["", "authorization: Bearer secret\r\n", "authorization: Bearer \r\n"] {
        check(&get(&closed, &path, line).await, 404, "not_found");
    }
    for limits in [CAUSAL, CANVAS] {
        let options =
            ApiOptions { api_key: Some("secret".into()), admin_key: Some("root".into()), ..ApiOptions::default() };
        let server = start(&Setup { options, ..Setup::new(limits) }).await;
        for line in ["", "authorization: Bearer secret\r\n", "authorization: Bearer roo\r\n"] {
            check(&get(&server, &path, line).await, 401, "authentication_error");
        }
        let admin = "authorization: Bearer root\r\n";
        let reply = get(&server, &path, admin).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/plain; charset=utf-8")));
        assert!(reply.body.contains("the state of debugging") && reply.body.contains("=== prompt"), "{}", reply.body);
        assert!(reply.body.contains(if limits.canvas.is_some() { "Canvas" } else { "Causal" }), "{}", reply.body);
        // Ids stay out of what a model sees.
        assert!(!reply.body.contains("z last"), "{}", reply.body);
        for (query, status) in
            [("", 400), ("?request=", 422), ("?request=%7B%7D", 422), ("?request=%FF", 422), ("?other=1", 400)]
        {
            let reply = get(&server, &format!("/debug/systemone{query}"), admin).await;
            assert_eq!(reply.status, status, "{query}: {}", reply.body);
        }
        // As long as a path may be, and longer.
        let long = format!("/debug/systemone?request={}", "x".repeat(60_000));
        assert_eq!(get(&server, &long, admin).await.status, 422);
        assert_eq!(get(&server, &format!("{long}{}", "x".repeat(10_000)), admin).await.status, 414);
        assert_eq!(server.service.metrics().snapshot().total().queued, 0);
    }
}
