//! Broken and malicious vocabularies give errors or odd ids, never a panic.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

use laneway_text::{
    ChatMessage, ChatTemplate, Detokenizer, EncodeOptions, RenderOptions, TextError, Tokenizer, TokenizerSource,
};
use proptest::prelude::*;

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        "[abĠ▁ \\né<|>]{0,3}",
        (0u8..=255).prop_map(|b| format!("<0x{b:02X}>")),
        prop::sample::select(vec!["<|turn>", "<start_of_turn>", "<eos>", "</s>", "<|im_start|>"])
            .prop_map(String::from),
    ]
}

fn source() -> impl Strategy<Value = TokenizerSource> {
    let model = prop::sample::select(vec!["gpt2", "llama", "gemma4"]);
    let pre = prop::sample::select(vec![None, Some("smollm"), Some("llama-bpe"), Some("qwen2")]);
    let merges = prop::collection::vec("[abĠ▁é]{1,2} [abĠ▁é]{1,2}", 0..12);
    let id = || prop::option::of(0u32..8);
    let flags = any::<(bool, bool)>();
    let tokens = prop::collection::vec((piece(), any::<f32>(), 0i32..8), 1..24);
    (model, pre, tokens, merges, (id(), id(), id()), flags).prop_map(
        |(model, pre, tokens, merges, (bos, eos, unk), (add_bos, add_space_prefix))| TokenizerSource {
            model: model.into(),
            pre: pre.map(String::from),
            scores: Some(tokens.iter().map(|t| t.1).collect()),
            token_types: Some(tokens.iter().map(|t| t.2).collect()),
            tokens: tokens.into_iter().map(|t| t.0).collect(),
            merges,
            bos,
            eos,
            unk,
            add_bos,
            add_space_prefix,
            ..Default::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_vocabulary_is_refused_or_works(
        source in source(),
        text in "[ab é\\n<|>12\\PC]{0,24}",
        parse_special in any::<bool>(),
    ) {
        let known = source.tokens.len() as u32;
        if let Ok(tokenizer) = Tokenizer::new(source) {
            let options = EncodeOptions { add_bos: true, parse_special };
            let ids = tokenizer.encode(&text, options);
            prop_assert!(ids.iter().all(|&id| id < known));
            let mut detokenizer = Detokenizer::new(true);
            let mut streamed: String =
                ids.iter().filter_map(|&id| detokenizer.push(&tokenizer, id)).collect();
            streamed.extend(detokenizer.finish());
            prop_assert_eq!(streamed, tokenizer.decode(&ids, true));
            if let Ok(template) = ChatTemplate::of_tokenizer(&tokenizer) {
                let messages = [ChatMessage::new("user", text)];
                tokenizer.encode_chat(&template, &messages, &RenderOptions::default()).unwrap();
            }
        }
    }

    #[test]
    fn any_json_is_refused_or_works(text in "[{}\\[\\]\":,a-z0-9]{0,40}") {
        let _ = Tokenizer::from_tokenizer_json(&text, Some(&text));
    }
}

fn minimal(model: &str) -> TokenizerSource {
    TokenizerSource {
        model: model.into(),
        tokens: vec!["a".into(), "b".into()],
        scores: Some(vec![0.0; 2]),
        ..Default::default()
    }
}

fn refusal(source: TokenizerSource) -> TextError {
    Tokenizer::new(source).err().expect("the source is refused")
}

#[test]
fn contradictions_are_refused() {
    assert_eq!(refusal(minimal("bert")), TextError::UnsupportedModel("bert".into()));
    let unknown_pre = TokenizerSource { pre: Some("tekken".into()), ..minimal("gpt2") };
    assert!(refusal(unknown_pre).to_string().contains("supported: default, gpt-2"));
    let no_scores = TokenizerSource { scores: None, ..minimal("llama") };
    assert!(refusal(no_scores).to_string().contains("2 tokens but 0 scores"));
    let far_bos = TokenizerSource { bos: Some(2), ..minimal("gpt2") };
    assert!(refusal(far_bos).to_string().contains("bos token id 2"));
    let empty = TokenizerSource { tokens: vec![], scores: None, ..minimal("gpt2") };
    assert!(refusal(empty).to_string().contains("no tokens"));
    let broken_merge = TokenizerSource { merges: vec!["ab".into()], ..minimal("gemma4") };
    assert!(refusal(broken_merge).to_string().contains("merge 0"));
}

#[test]
fn only_the_end_of_sequence_makes_a_closing_tag_end_a_generation() {
    let mut source = minimal("llama");
    source.tokens = vec!["</s>".into(), "<|eot_id|>".into()];
    assert_eq!(Tokenizer::new(source.clone()).unwrap().end_of_generation(), [1]);
    source.eos = Some(0);
    assert_eq!(Tokenizer::new(source).unwrap().end_of_generation(), [0, 1]);
}

#[test]
fn text_without_tokens_never_becomes_a_control_token() {
    let mut source = minimal("llama");
    source.token_types = Some(vec![1, 3]);
    source.unk = Some(1);
    let encode = |source: &TokenizerSource| {
        let tokenizer = Tokenizer::new(source.clone()).unwrap();
        tokenizer.encode("aéa", EncodeOptions::default())
    };
    assert_eq!(encode(&source), [0, 0]);
    source.token_types = Some(vec![1, 2]);
    assert_eq!(encode(&source), [0, 1, 1, 0]);
}

#[test]
fn ids_outside_the_vocabulary_have_no_text() {
    let tokenizer = Tokenizer::new(minimal("llama")).unwrap();
    assert_eq!(tokenizer.decode(&[0, 2, u32::MAX, 1], false), "ab");
    assert_eq!(tokenizer.token_piece(2), None);
    assert!(!tokenizer.is_special(2));
}
