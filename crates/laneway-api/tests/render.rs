//! What routers ask for to know a prompt's tokens.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Script, Server, chat_body};
use laneway_api::{ApiOptions, ServeOptions};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions/render";
const TEXT: &str = "/v1/completions/render";

#[tokio::test]
async fn a_prompt_is_rendered_as_a_turn_would_begin() {
    let server = Server::start(Script::default()).await;
    for members in ["", r#","stream":true,"max_tokens":3"#] {
        let rendered = server.post(CHAT, &chat_body(members)).await;
        assert_eq!((rendered.status, rendered.header("content-type")), (200, Some("application/json")));
        assert_eq!(server.service.seen.lock().unwrap().len(), 0, "nothing is generated");
        assert_eq!(server.chat(members).await.status, 200);
        let seen = server.service.seen.lock().unwrap().pop().unwrap();
        assert_eq!(rendered.json(), json!({"token_ids": seen.prompt}));
    }
    for prompt in [r#""caf\u00e9""#, "[1,2,3]", r#"["one"]"#] {
        let body = format!(r#"{{"model":"tiny-alias","prompt":{prompt}}}"#);
        let rendered = server.post(TEXT, &body).await;
        assert_eq!(server.post("/v1/completions", &body).await.status, 200);
        let seen = server.service.seen.lock().unwrap().pop().unwrap();
        assert_eq!(rendered.json(), json!({"token_ids": seen.prompt}), "{prompt}");
    }
}

#[tokio::test]
async fn what_no_turn_takes_is_not_rendered() {
    let server = Server::start(Script::default()).await;
    for (path, body, status, param) in [
        (CHAT, r#"{"model":"tiny","messages":[]}"#, 400, Some("messages")),
        (CHAT, r#"{"model":"other","messages":[{"role":"user","content":"x"}]}"#, 404, Some("model")),
        (CHAT, r#"{"model":"tiny","messages":[{"role":"tool","content":"x"}]}"#, 400, Some("messages")),
        (CHAT, "{", 400, None),
        (TEXT, r#"{"model":"tiny","prompt":["a","b"]}"#, 400, Some("prompt")),
        (TEXT, r#"{"model":"tiny","prompt":[999]}"#, 400, Some("prompt")),
    ] {
        let reply = server.post(path, body).await;
        assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (status, param), "{}", reply.body);
    }
    assert_eq!(server.get(CHAT).await.status, 405);
    // A prompt of any length has tokens.
    let long = "x".repeat(10_000);
    let reply = server.post(TEXT, &format!(r#"{{"model":"tiny","prompt":"{long}"}}"#)).await;
    assert!(reply.json()["token_ids"].as_array().unwrap().len() >= 10_000);
}

#[tokio::test]
async fn rendering_needs_the_key() {
    let options = ApiOptions { api_key: Some("secret".into()), ..ApiOptions::default() };
    let server = Server::start_with(Script::default(), options, ServeOptions::default()).await;
    for path in [CHAT, TEXT] {
        assert_eq!(server.post(path, &chat_body("")).await.status, 401);
    }
    let lines = "content-type: application/json\r\nauthorization: Bearer secret\r\n";
    assert_eq!(server.post_with(CHAT, lines, chat_body("").as_bytes()).await.status, 200);
}
