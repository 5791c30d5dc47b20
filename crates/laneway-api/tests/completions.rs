//! `POST /v1/completions`, whole and streamed.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Script, Server};

async fn complete(server: &Server, prompt: &str, members: &str) -> common::Reply {
    let body = format!(r#"{{"model":"tiny","prompt":{prompt}{members}}}"#);
    server.post("/v1/completions", &body).await
}

#[tokio::test]
async fn a_whole_completion() {
    let server = Server::start(Script::default()).await;
    let reply = complete(&server, r#""hi""#, r#","seed":1,"logprobs":2"#).await;
    assert_eq!(reply.status, 200);
    insta::assert_snapshot!(reply.stable());
}

#[tokio::test]
async fn a_streamed_completion() {
    let server = Server::start(Script::default()).await;
    let members = r#","seed":1,"logprobs":0,"stream":true,"stream_options":{"include_usage":true}"#;
    insta::assert_snapshot!(complete(&server, r#""hi""#, members).await.stable());
}

#[tokio::test]
async fn several_prompts_yield_choices_in_order() {
    let server = Server::start(Script::default()).await;
    let reply = complete(&server, r#"["a","bb"]"#, r#","seed":0,"n":2"#).await.json();
    let texts: Vec<_> = reply["choices"].as_array().expect("a list").iter().map(|c| c["text"].clone()).collect();
    assert_eq!(texts, [" Hello! How are you?", " tea?", " Hello! How are you?", " tea?"]);
    assert_eq!(reply["usage"]["prompt_tokens"], 3);
    let prompts: Vec<usize> =
        server.service.seen.lock().expect("unpoisoned").iter().map(|seen| seen.prompt.len()).collect();
    assert_eq!(prompts, [1, 1, 2, 2]);
}

#[tokio::test]
async fn ids_are_taken_as_they_are() {
    let server = Server::start(Script::default()).await;
    assert_eq!(complete(&server, "[5,6,7]", "").await.status, 200);
    assert_eq!(server.service.seen.lock().expect("unpoisoned")[0].prompt, [5, 6, 7]);
}

#[tokio::test]
async fn special_tokens_in_a_prompt_are_recognised() {
    let server = Server::start(Script::default()).await;
    complete(&server, r#""a<|im_end|>""#, "").await;
    assert_eq!(server.service.seen.lock().expect("unpoisoned")[0].prompt, [u32::from(b'a'), common::end()]);
}

#[tokio::test]
async fn the_default_limit_is_sixteen_tokens() {
    let server = Server::start(Script::default()).await;
    complete(&server, r#""a""#, "").await;
    assert_eq!(server.service.seen.lock().expect("unpoisoned")[0].max_tokens, Some(16));
}
