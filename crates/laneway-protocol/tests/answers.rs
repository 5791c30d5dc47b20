//! The JSON of answers.

use laneway_protocol::chat::{ChatLogprobs, ScoredToken, TokenLogprob};
use laneway_protocol::completion::CompletionLogprobs;
use laneway_protocol::models::{ModelInfo, ModelList};
use laneway_protocol::{ApiError, Usage};

fn scored() -> TokenLogprob {
    TokenLogprob {
        token: ScoredToken::new(b" caf\xc3".to_vec(), -0.5),
        top_logprobs: vec![
            ScoredToken::new(b" tea".to_vec(), -1.25),
            ScoredToken::new(b"x".to_vec(), f32::NEG_INFINITY),
        ],
    }
}

#[test]
fn a_model_list_serves_openai_and_system_one() {
    let model = ModelInfo {
        id: "smollm2-135m-instruct".into(),
        description: "SmolLM2 135M Instruct, Q8_0".into(),
        created: 1_730_419_200,
        context_length: 8192,
    };
    insta::assert_json_snapshot!(ModelList::new(&[model]));
}

#[test]
fn chat_logprobs_carry_exact_bytes_and_finite_numbers() {
    insta::assert_json_snapshot!(ChatLogprobs { content: vec![scored()], refusal: None });
}

#[test]
fn completion_logprobs_are_parallel_lists() {
    let plain = TokenLogprob { top_logprobs: Vec::new(), ..scored() };
    insta::assert_json_snapshot!(CompletionLogprobs::new(&[scored(), plain], 3));
}

#[test]
fn usage_adds_up() {
    insta::assert_json_snapshot!(Usage::new(12, 8, 5));
}

#[test]
fn errors_share_one_envelope() {
    insta::assert_json_snapshot!(ApiError::context_length("messages", 9000, 8192).envelope());
    insta::assert_json_snapshot!(ApiError::busy(1).envelope());
}
