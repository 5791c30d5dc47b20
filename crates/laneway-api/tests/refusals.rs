//! Requests that are refused, over a real socket.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{CONTEXT, Script, Server, chat_body, post};
use laneway_api::{ApiOptions, Health, Phase, ServeOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[track_caller]
fn check(reply: &common::Reply, status: u16, param: Option<&str>, code: Option<&str>) {
    let error = reply.json()["error"].clone();
    assert_eq!(reply.status, status, "{}", reply.body);
    assert_eq!(error["param"].as_str(), param, "{}", reply.body);
    assert_eq!(error["code"].as_str(), code, "{}", reply.body);
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", reply.body);
    assert!(error["type"].is_string(), "{}", reply.body);
    assert!(reply.header("x-request-id").is_some(), "{}", reply.head);
}

#[tokio::test]
async fn bad_bodies_name_the_field() {
    let server = Server::start(Script::default()).await;
    let message = r#"{"role":"user","content":"hi"}"#;
    for (body, param, code) in [
        ("{".to_owned(), None, None),
        ("hello".to_owned(), None, None),
        (r#"{"model":"tiny","messages":[]}"#.to_owned(), Some("messages"), None),
        (format!(r#"{{"messages":[{message}]}}"#), Some("model"), None),
        (chat_body(r#","temperature":NaN"#), Some("temperature"), None),
        (chat_body(r#","top_p":7"#), Some("top_p"), None),
        (chat_body(r#","n":1000"#), Some("n"), None),
        (chat_body(r#","tools":[{}]"#), Some("tools"), Some("unsupported_parameter")),
        (
            r#"{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url"}]}]}"#.to_owned(),
            Some("messages[0].content[0].type"),
            Some("unsupported_parameter"),
        ),
        (r#"{"model":"tiny","messages":[{"role":"tool","content":"x"}]}"#.to_owned(), Some("messages"), None),
    ] {
        check(&server.post("/v1/chat/completions", &body).await, 400, param, code);
    }
    assert_eq!(server.service.seen.lock().expect("unpoisoned").len(), 0);
}

#[tokio::test]
async fn an_unknown_model_is_not_found() {
    let server = Server::start(Script::default()).await;
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
    check(&server.post("/v1/chat/completions", body).await, 404, Some("model"), Some("model_not_found"));
    check(&server.get("/v1/models/gpt-4o").await, 404, Some("model"), Some("model_not_found"));
}

#[tokio::test]
async fn unknown_routes_and_methods_use_the_envelope() {
    let server = Server::start(Script::default()).await;
    check(&server.get("/v1/nothing").await, 404, None, Some("not_found"));
    check(&server.get("/../../etc/passwd").await, 404, None, Some("not_found"));
    let reply = server.get("/v1/chat/completions").await;
    check(&reply, 405, None, Some("method_not_allowed"));
    assert_eq!(reply.header("allow"), Some("post"));
    check(&server.get("/panic").await, 500, None, Some("internal_error"));
}

#[tokio::test]
async fn content_types_that_are_clearly_not_json_are_refused() {
    let server = Server::start(Script::default()).await;
    let body = chat_body("");
    for (line, status) in [
        ("content-type: text/plain\r\n", 415),
        ("content-type: multipart/form-data; boundary=x\r\n", 415),
        ("content-encoding: br\r\n", 415),
        ("", 200),
        ("content-type: application/json; charset=utf-8\r\n", 200),
    ] {
        let length = body.len();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{line}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        let reply = server.raw(request.as_bytes()).await;
        assert_eq!(reply.status, status, "{line}: {}", reply.body);
    }
}

#[tokio::test]
async fn a_prompt_over_the_context_is_refused_with_both_numbers() {
    let server = Server::start(Script::default()).await;
    let content = "x".repeat(CONTEXT);
    let body = format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"{content}"}}]}}"#);
    let reply = server.post("/v1/chat/completions", &body).await;
    check(&reply, 400, Some("messages"), Some("context_length_exceeded"));
    let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains("528") && message.contains("512"), "{message}");

    let body = format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "x".repeat(10_000));
    check(&server.post("/v1/completions", &body).await, 400, Some("prompt"), Some("context_length_exceeded"));
    assert_eq!(server.service.seen.lock().expect("unpoisoned").len(), 0);
}

#[tokio::test]
async fn ids_outside_the_vocabulary_are_refused() {
    let server = Server::start(Script::default()).await;
    let reply = server.post("/v1/completions", r#"{"model":"tiny","prompt":[1,267]}"#).await;
    check(&reply, 400, Some("prompt"), None);
}

#[tokio::test]
async fn a_large_body_is_refused_before_it_is_sent() {
    let server = Server::start(Script::default()).await;
    let mut stream = server.connect().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 8388608\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("the server reads");
    let mut start = [0; 12];
    let reading = stream.read_exact(&mut start);
    tokio::time::timeout(Duration::from_secs(5), reading)
        .await
        .expect("no byte of the body is awaited")
        .expect("readable");
    assert_eq!(&start, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_large_body_that_is_sent_first_still_gets_its_answer() {
    let server = Server::start(Script::default()).await;
    let body = format!(r#"{{"model":"tiny","x":"{}"}}"#, "x".repeat(8 << 20));
    check(&server.post("/v1/chat/completions", &body).await, 413, None, Some("request_too_large"));
}

#[tokio::test]
async fn a_large_body_of_unknown_length_is_refused() {
    let options = ApiOptions { body_limit_bytes: 100, ..ApiOptions::default() };
    let server = Server::start_with(Script::default(), options, ServeOptions::default()).await;
    let chunk = format!("64\r\n{}\r\n", "x".repeat(100));
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"
    );
    check(&server.raw(request.as_bytes()).await, 413, None, Some("request_too_large"));
}

#[tokio::test]
async fn slow_heads_and_bodies_are_given_up() {
    let options = ApiOptions { body_timeout: Duration::from_millis(50), ..ApiOptions::default() };
    let serving = ServeOptions { header_timeout: Duration::from_millis(50), ..ServeOptions::default() };
    let server = Server::start_with(Script::default(), options, serving).await;
    let mut stream = server.connect().await;
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nho").await.expect("the server reads");
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest))
        .await
        .expect("closed")
        .expect("readable");

    let slow = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    check(&server.raw(slow).await, 408, None, Some("request_timeout"));
}

#[tokio::test]
async fn the_key_is_demanded_under_v1_only() {
    let options = ApiOptions { api_key: Some("secret".into()), ..ApiOptions::default() };
    let server = Server::start_with(Script::default(), options, ServeOptions::default()).await;
    let with = async |line: &str| {
        let request = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{line}connection: close\r\n\r\n");
        server.raw(request.as_bytes()).await
    };
    for line in [
        "",
        "authorization: secret\r\n",
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer secre\r\n",
        "authorization: Basic secret\r\n",
        "authorization: Bearer \r\n",
    ] {
        let reply = with(line).await;
        check(&reply, 401, None, Some("invalid_api_key"));
        assert_eq!(reply.header("www-authenticate"), Some("bearer"));
    }
    assert_eq!(with("authorization: Bearer secret\r\n").await.status, 200);
    assert_eq!(with("authorization: bearer secret\r\n").await.status, 200);
    assert_eq!(server.get("/v1/unknown").await.status, 401);
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/metrics").await.status, 200);
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let server = Server::start(Script { capacity: 2, free_tokens: 0, ..Script::default() }).await;
    let reply = server.chat(r#","n":3"#).await;
    check(&reply, 429, None, Some("rate_limit_exceeded"));
    assert_eq!(reply.header("retry-after"), Some("1"));
    server.service.wait_for_cancelled(2).await;
    server.service.wait_for_running(0).await;
}

#[tokio::test]
async fn health_follows_the_engine_and_the_phase() {
    let server = Server::start(Script::default()).await;
    assert_eq!(server.get("/health").await.status, 200);
    for (health, code) in [
        (Health::Loading, "loading"),
        (Health::Failed("no memory".into()), "engine_failed"),
        (Health::Stuck { since_ms: 60_000 }, "engine_stuck"),
    ] {
        *server.service.health.lock().expect("unpoisoned") = health;
        check(&server.get("/health").await, 503, None, Some(code));
        assert_eq!(server.get("/v1/models").await.json()["data"], serde_json::json!([]));
    }
    *server.service.health.lock().expect("unpoisoned") = Health::Ready;
    assert_eq!(server.get("/v1/models").await.json()["data"][0]["id"], "tiny");
    server.state.enter(Phase::Draining);
    check(&server.get("/health").await, 503, None, Some("draining"));
    assert_eq!(server.chat("").await.status, 200);
    server.state.enter(Phase::Closing);
    check(&server.chat("").await, 503, None, Some("shutting_down"));
}

#[tokio::test]
async fn request_ids_are_kept_if_valid() {
    let server = Server::start(Script::default()).await;
    let with = async |id: &str| {
        let request = format!("GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: {id}\r\nconnection: close\r\n\r\n");
        server.raw(request.as_bytes()).await.header("x-request-id").map(str::to_owned)
    };
    assert_eq!(with("req-7_a.b").await.as_deref(), Some("req-7_a.b"));
    for bad in ["", "has space", "<script>", &"x".repeat(129)] {
        let id = with(bad).await.expect("an id");
        assert_eq!(id.len(), 36, "{id}");
    }
}

#[tokio::test]
async fn origins_are_allowed_only_by_name() {
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\norigin: https://app.example\r\naccess-control-request-method: POST\r\naccess-control-request-headers: authorization,x-typesafe-sdk\r\nconnection: close\r\n\r\n";
    let closed = Server::start(Script::default()).await;
    assert_eq!(closed.raw(preflight.as_bytes()).await.header("access-control-allow-origin"), None);

    let options = ApiOptions {
        cors_origins: vec!["https://app.example".into()],
        api_key: Some("secret".into()),
        ..ApiOptions::default()
    };
    let open = Server::start_with(Script::default(), options, ServeOptions::default()).await;
    let reply = open.raw(preflight.as_bytes()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization,x-typesafe-sdk"));
    let other = open.raw(preflight.replace("app.example", "evil.example").as_bytes()).await;
    assert_eq!(other.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn nothing_of_a_hostile_head_reaches_a_route() {
    let server = Server::start(Script::default()).await;
    let many: String = (0..200).map(|index| format!("x-{index}: y\r\n")).collect();
    for request in [
        "garbage\r\n\r\n".to_owned(),
        format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n"),
        format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(1 << 20)),
        post("/v1/completions", "{}").replace("content-length: 2", "content-length: -2"),
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}".to_owned(),
    ] {
        let mut stream = server.connect().await;
        // The server may have closed before all was sent.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert_eq!(server.get("/health").await.status, 200);
}
