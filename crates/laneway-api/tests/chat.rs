//! `POST /v1/chat/completions`, whole and streamed.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Script, Server, end, word};

#[tokio::test]
async fn a_whole_answer() {
    let server = Server::start(Script::default()).await;
    let reply = server.chat(r#","seed":0"#).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.json()["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{}", reply.body);
    insta::assert_snapshot!(reply.stable());
}

#[tokio::test]
async fn a_streamed_answer() {
    let server = Server::start(Script::default()).await;
    let reply = server.chat(r#","seed":0,"stream":true"#).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    insta::assert_snapshot!(reply.stable());
}

#[tokio::test]
async fn a_streamed_answer_with_usage_and_logprobs() {
    let server = Server::start(Script::default()).await;
    let members = r#","seed":1,"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2"#;
    insta::assert_snapshot!(server.chat(members).await.stable());
}

#[tokio::test]
async fn logprobs_leave_out_the_end_of_the_turn() {
    let server = Server::start(Script::default()).await;
    let reply = server.chat(r#","seed":1,"logprobs":true"#).await.json();
    let content = reply["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    let tokens: Vec<_> = content.iter().map(|token| token["token"].as_str().expect("a string")).collect();
    assert_eq!(tokens, [" tea", "?"]);
    assert_eq!(content[0]["bytes"], serde_json::json!([32, 116, 101, 97]));
    assert_eq!(content[0]["top_logprobs"], serde_json::json!([]));
}

#[tokio::test]
async fn several_answers_have_seeds_of_their_own() {
    let server = Server::start(Script::default()).await;
    let reply = server.chat(r#","seed":0,"n":3"#).await.json();
    let texts: Vec<_> =
        reply["choices"].as_array().expect("a list").iter().map(|c| c["message"]["content"].clone()).collect();
    assert_eq!(texts, [" Hello! How are you?", " tea?", " Hello! How are you?"]);
    assert_eq!(reply["usage"]["prompt_tokens"], 18);
    assert_eq!(reply["usage"]["completion_tokens"], 7 + 3 + 7);
    assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

#[tokio::test]
async fn streamed_choices_each_open_and_finish_once() {
    let server = Server::start(Script::default()).await;
    let events = server.chat(r#","seed":0,"n":2,"stream":true"#).await.events();
    for index in 0..2 {
        let of_choice = || events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        assert_eq!(of_choice().next().expect("an event")["delta"]["role"], "assistant");
        assert_eq!(of_choice().filter(|choice| choice["finish_reason"] == "stop").count(), 1);
        assert_eq!(of_choice().next_back().expect("an event")["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn a_token_limit_finishes_with_length() {
    let server = Server::start(Script::default()).await;
    let reply = server.chat(r#","seed":0,"max_tokens":2"#).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], " Hello!");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn a_stop_string_across_tokens_is_cut_off() {
    let server = Server::start(Script::default()).await;
    let reply = server.chat(r#","seed":0,"stop":["nothing","w ar"]"#).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], " Hello! Ho");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    let streamed = server.chat(r#","seed":0,"stop":"w ar","stream":true"#).await.events();
    let text: String = streamed.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, " Hello! Ho");
}

#[tokio::test]
async fn characters_are_sent_whole() {
    let smile = [0xF0, 0x9F, 0x99, 0x82];
    let answer = [&[word(" caf"), 0xC3, 0xA9][..], &smile, &[end()]].concat();
    let server = Server::start(Script { answers: vec![answer], ..Script::default() }).await;
    let events = server.chat(r#","stream":true,"logprobs":true"#).await.events();
    let texts: Vec<_> = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(texts, ["", " caf", "é", "🙂"]);
    let bytes = events[3]["choices"][0]["logprobs"]["content"].as_array().expect("a list").len();
    assert_eq!(bytes, 4);
}

#[tokio::test]
async fn the_template_and_the_sampling_reach_the_service() {
    let server = Server::start(Script::default()).await;
    server.chat(r#","temperature":0.5,"top_k":7,"seed":9,"max_completion_tokens":4,"top_p":0.9,"min_p":0.1"#).await;
    let seen = server.service.seen.lock().expect("unpoisoned")[0].clone();
    let prompt: Vec<u8> = seen.prompt.iter().map(|id| *id as u8).collect();
    assert_eq!(String::from_utf8_lossy(&prompt), "user:hi\nassistant:");
    assert_eq!(seen.max_tokens, Some(4));
    assert_eq!((seen.sampling.temperature, seen.sampling.top_k, seen.sampling.seed), (0.5, 7, 9));
    assert_eq!((seen.sampling.top_p, seen.sampling.min_p), (0.9, 0.1));
}

#[tokio::test]
async fn unseeded_answers_get_a_random_seed() {
    let server = Server::start(Script::default()).await;
    server.chat("").await;
    server.chat("").await;
    let seen = server.service.seen.lock().expect("unpoisoned");
    assert_ne!(seen[0].sampling.seed, seen[1].sampling.seed);
}

#[tokio::test]
async fn a_failing_engine_is_an_error_in_both_deliveries() {
    let server = Server::start(Script { fails_after: Some(2), ..Script::default() }).await;
    let whole = server.chat(r#","seed":0"#).await;
    assert_eq!((whole.status, whole.json()["error"]["code"].as_str()), (500, Some("internal_error")));
    insta::assert_snapshot!(server.chat(r#","seed":0,"stream":true"#).await.stable());
}

#[tokio::test]
async fn a_model_answers_to_all_its_names_with_its_own() {
    let server = Server::start(Script::default()).await;
    for name in ["tiny-alias", "hf:some/tiny/model.gguf"] {
        let body = format!(r#"{{"model":"{name}","messages":[{{"role":"user","content":"hi"}}]}}"#);
        assert_eq!(server.post("/v1/chat/completions", &body).await.json()["model"], "tiny");
    }
}
