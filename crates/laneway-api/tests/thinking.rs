//! Thoughts and drafts of `POST /v1/chat/completions`.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::deciding::{CANVAS, start};
use common::{Script, ScriptService, Server, Setup, model_with};
use laneway_api::{ApiOptions, ServeOptions};
use laneway_session::EngineLimits;
use laneway_session::canvas::CanvasLimits;
use laneway_text::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

const CHAT_TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/fixtures/diffusion_chat_tiny");

fn tokenizer() -> Tokenizer {
    let file = |name| std::fs::read_to_string(format!("{CHAT_TINY}/{name}")).unwrap();
    Tokenizer::from_tokenizer_json(&file("tokenizer.json"), Some(&file("tokenizer_config.json"))).unwrap()
}

/// A model that says this, whatever it is asked.
async fn saying(text: &str) -> Server {
    let tokenizer = tokenizer();
    let answer = tokenizer.encode(text, EncodeOptions { add_bos: false, parse_special: true });
    let service = Arc::new(ScriptService::new(Script { answers: vec![answer], ..Script::default() }));
    let mut model = model_with(service.clone(), tokenizer);
    model.denoising = CANVAS.canvas.map(|canvas| canvas.denoising);
    Server::over(model, service, ApiOptions::default(), ServeOptions::default()).await
}

const SAID: &str = "<|channel>thought\nLet me see STOP.\n<channel|>\nIt is 4.STOP<turn|>";

#[tokio::test]
async fn thoughts_are_told_apart_in_both_deliveries() {
    let server = saying(SAID).await;
    let whole = server.chat(r#","stop":"STOP""#).await.json();
    let message = json!({
        "role": "assistant", "content": "It is 4.", "reasoning_content": "Let me see STOP.\n", "refusal": null
    });
    assert_eq!(whole["choices"][0]["message"], message);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let events = server.chat(r#","stop":"STOP","stream":true"#).await.events();
    let joined = |field: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!((joined("content").as_str(), joined("reasoning_content").as_str()), ("It is 4.", "Let me see STOP.\n"));
    for event in &events {
        let delta = event["choices"][0]["delta"].as_object().unwrap();
        assert!(!(delta.contains_key("content") && delta.contains_key("reasoning_content")), "{event}");
    }
}

#[tokio::test]
async fn an_answer_without_thoughts_has_no_such_field() {
    for said in ["Hello.<turn|>", "<|channel>thought\n<channel|>Hello.<turn|>"] {
        let server = saying(said).await;
        let whole = server.chat("").await.json();
        assert_eq!(whole["choices"][0]["message"], json!({"role": "assistant", "content": "Hello.", "refusal": null}));
        let streamed = server.chat(r#","stream":true"#).await;
        assert!(!streamed.body.contains("reasoning_content"), "{}", streamed.body);
    }
}

#[tokio::test]
async fn text_completions_have_no_channels() {
    let server = saying(SAID).await;
    let reply = server.post("/v1/completions", r#"{"model":"tiny","prompt":"x","max_tokens":99}"#).await.json();
    assert_eq!(reply["choices"][0]["text"], "thought\nLet me see STOP.\n\nIt is 4.STOP");
}

#[tokio::test]
async fn the_template_is_told_whether_to_think() {
    let server = saying(SAID).await;
    let think = tokenizer().token_id("<|think|>").unwrap();
    for (members, thinks) in [
        ("", false),
        (r#","chat_template_kwargs":{"enable_thinking":true}"#, true),
        (r#","chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"high""#, false),
        (r#","reasoning_effort":"low""#, true),
        (r#","reasoning_effort":"none""#, false),
    ] {
        assert_eq!(server.chat(members).await.status, 200);
        let seen = server.service.seen.lock().unwrap().pop().unwrap();
        assert_eq!(seen.prompt.contains(&think), thinks, "{members}");
        let rendered = server.post("/v1/chat/completions/render", &common::chat_body(members)).await.json();
        assert_eq!(rendered, json!({"token_ids": seen.prompt}), "{members}");
    }
}

#[tokio::test]
async fn passes_and_drafts_reach_the_turn() {
    let server = saying("Hi<turn|>").await;
    let seen = async |members: &str| {
        assert_eq!(server.chat(members).await.status, 200, "{members}");
        let seen = server.service.seen.lock().unwrap().pop().unwrap();
        (seen.denoising, seen.wants_drafts)
    };
    assert_eq!(seen("").await, (None, false));
    let usual = CANVAS.canvas.unwrap().denoising;
    let seven = laneway_session::canvas::Denoising { max_steps: 7, ..usual };
    assert_eq!(seen(r#","x_laneway_steps":7,"stream":true,"x_laneway_drafts":true"#).await, (Some(seven), true));
    assert_eq!(server.chat(r#","x_laneway_drafts":true"#).await.status, 400);
    assert_eq!(server.chat(r#","x_laneway_steps":0"#).await.status, 400);
    let body = r#"{"model":"tiny","prompt":"x","stream":true,"x_laneway_drafts":true}"#;
    assert_eq!(server.post("/v1/completions", body).await.status, 200);
    assert!(!server.service.seen.lock().unwrap().pop().unwrap().wants_drafts);
    let plain = Server::start(Script::default()).await;
    assert_eq!(plain.chat(r#","x_laneway_steps":7"#).await.status, 200);
    assert_eq!(plain.service.seen.lock().unwrap()[0].denoising, None);
}

/// Six positions a canvas.
fn drafting() -> Setup {
    let canvas = CanvasLimits { length: 6, vocabulary: 64, ..CANVAS.canvas.unwrap() };
    Setup::new(EngineLimits { canvas: Some(canvas), ..CANVAS })
}

#[tokio::test]
async fn a_streamed_answer_with_drafts() {
    let server = start(&drafting()).await;
    let members = r#","seed":4,"max_tokens":9,"stream":true,"x_laneway_drafts":true,"x_laneway_steps":3"#;
    insta::assert_snapshot!(server.chat(members).await.stable());
}

/// A client that shows each draft until something else comes never shows a stale one.
#[tokio::test]
async fn drafts_precede_the_text_of_their_canvas() {
    let server = start(&drafting()).await;
    for seed in 0..6 {
        let members = format!(r#","seed":{seed},"n":2,"max_tokens":30,"stream":true"#);
        let plain = server.chat(&members).await;
        assert!(!plain.body.contains("x_laneway"), "{}", plain.body);
        let events = server.chat(&format!(r#"{members},"x_laneway_drafts":true"#)).await.events();
        let mut drafts = 0;
        for index in 0..2 {
            let text = |events: &[Value]| -> String {
                let choices = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
                choices.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
            };
            assert_eq!(text(&events), text(&plain.events()), "seed {seed}");
            let (mut step, mut is_over) = (0, false);
            for event in &events {
                let draft = &event["x_laneway_draft"];
                if draft["index"] == index {
                    assert_eq!(event["choices"], json!([]));
                    assert!(!is_over, "a draft after the end");
                    assert_eq!(draft["step"], step + 1, "{event}");
                    step += 1;
                    drafts += 1;
                } else if event["choices"][0]["index"] == index {
                    // The canvas is told: the next draft is of another.
                    step = 0;
                    is_over |= event["choices"][0]["finish_reason"].is_string();
                }
            }
            assert!(is_over);
        }
        assert!(drafts > 2, "{drafts} drafts");
    }
}
