use laneway_text::{EncodeOptions, TokenizerSource};

use super::*;

const CHAT_TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/fixtures/diffusion_chat_tiny");

/// Channels with names.
fn named() -> Arc<Tokenizer> {
    let file = |name| std::fs::read_to_string(format!("{CHAT_TINY}/{name}")).unwrap();
    Tokenizer::from_tokenizer_json(&file("tokenizer.json"), Some(&file("tokenizer_config.json"))).unwrap().into()
}

/// Every byte a token, and tags around thoughts that are shown text to whoever knows no channels.
fn tagged() -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>")).collect();
    tokens.extend(["▁", "<think>", "</think>", "<eos>"].map(String::from));
    let mut token_types = vec![6; 256];
    token_types.extend([1, 4, 4, 3]);
    let source = TokenizerSource {
        model: "llama".into(),
        scores: Some(vec![0.0; tokens.len()]),
        eos: Some(259),
        tokens,
        token_types: Some(token_types),
        ..Default::default()
    };
    Tokenizer::new(source).unwrap().into()
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_bos: false, parse_special: true })
}

/// The ids of a text whose words are cut after every `cut` characters, so that tokens end anywhere.
fn cut(tokenizer: &Tokenizer, text: &str, cut: usize) -> Vec<u32> {
    let mut all = Vec::new();
    let mut rest = text;
    let marks = ["<|channel>", "<channel|>", "<think>", "</think>"];
    while !rest.is_empty() {
        let mark = marks.iter().find(|mark| rest.starts_with(**mark)).map(|mark| mark.len());
        let end = mark.unwrap_or_else(|| {
            let next = marks.iter().filter_map(|mark| rest.find(mark)).min().unwrap_or(rest.len());
            rest.char_indices().nth(cut).map_or(rest.len(), |(at, _)| at).min(next)
        });
        all.extend(ids(tokenizer, &rest[..end]));
        rest = &rest[end..];
    }
    all
}

/// Thought and answer as the session passes them on, and whether the answer ended by itself.
fn told(mut decoder: TextDecoder, ids: &[u32]) -> (String, String, Option<StopReason>) {
    let (mut thought, mut answer, mut reasoning, mut stop) = (String::new(), String::new(), false, None);
    for id in ids {
        let decoded = decoder.token(*id);
        (reasoning, stop) = (decoded.reasoning, decoded.stop);
        if stop != Some(StopReason::Eos) {
            if reasoning { &mut thought } else { &mut answer }.push_str(&decoded.text);
        }
        if stop.is_some() {
            break;
        }
    }
    if stop != Some(StopReason::StopString) {
        if reasoning { &mut thought } else { &mut answer }.push_str(&decoder.finish());
    }
    (thought, answer, stop)
}

fn decoder(tokenizer: &Arc<Tokenizer>, stops: &[&str]) -> TextDecoder {
    let stops = stops.iter().map(|stop| stop.to_string()).collect();
    TextDecoder::new(tokenizer.clone(), Detokenizer::new(true), stops).with_channels()
}

#[track_caller]
fn check(tokenizer: &Arc<Tokenizer>, stops: &[&str], text: &str, thought: &str, answer: &str) {
    for size in [1, 2, 3, 5, 8, 100] {
        let told = told(decoder(tokenizer, stops), &cut(tokenizer, text, size));
        assert_eq!((told.0.as_str(), told.1.as_str()), (thought, answer), "{text:?} cut at {size}");
    }
}

#[test]
fn a_named_channel_holds_the_thought() {
    let tokenizer = named();
    for (text, thought, answer) in [
        ("Hello\n", "", "Hello\n"),
        ("<|channel>thought\nI think é🙂.\n<channel|>\n\nHello\n\nyou", "I think é🙂.\n", "Hello\n\nyou"),
        ("<|channel>thought\n<channel|>Hi", "", "Hi"),
        ("<|channel> thought \n\nA<channel|>mid<|channel>thought\nB<channel|>\nend", "AB", "midend"),
        ("<|channel>thought\nA<|channel>final\nB<channel|>", "A", "B"),
        ("<|channel>thought\nnever closed", "never closed", ""),
        ("said<channel|>\n more", "", "said more"),
    ] {
        check(&tokenizer, &[], text, thought, answer);
    }
}

#[test]
fn other_channels_are_part_of_the_answer() {
    let tokenizer = named();
    check(&tokenizer, &[], "<|channel>final\nHi<channel|> there", "", "Hi there");
    check(&tokenizer, &[], "<|channel>thoughts\nHi", "", "Hi");
    // A name alone says nothing.
    check(&tokenizer, &[], "<|channel>thought", "", "");
    check(&tokenizer, &[], "<|channel>final<channel|>Hi", "", "Hi");
    // What is too long for a name is not held back for ever.
    let text = "no name at all ".repeat(9);
    check(&tokenizer, &[], &format!("<|channel>{text}"), "", &text);
}

#[test]
fn tags_hold_the_thought() {
    let tokenizer = tagged();
    check(&tokenizer, &[], "<think>\nHm é🙂.\n</think>\n\nHello\n", "Hm é🙂.\n", "Hello\n");
    check(&tokenizer, &[], "<think>\n\n</think>\n\nHello", "", "Hello");
    check(&tokenizer, &[], "<think>A</think>b<think>C", "AC", "b");
    let plain = TextDecoder::new(tokenizer.clone(), Detokenizer::new(true), Vec::new());
    let text = "<think>A</think>b";
    assert_eq!(told(plain, &ids(&tokenizer, text)).1, text);
}

#[test]
fn stop_strings_end_only_the_answer() {
    for (tokenizer, opens, closes) in
        [(named(), "<|channel>thought\n", "<channel|>"), (tagged(), "<think>", "</think>")]
    {
        let text = format!("{opens}STOP it{closes}go STOP on");
        check(&tokenizer, &["STOP"], &text, "STOP it", "go ");
        // What may begin a stop string is shown when a channel opens: the stop string does not go on behind it.
        check(&tokenizer, &["abc"], &format!("xab{opens}T{closes}c"), "T", "xabc");
        check(&tokenizer, &["abc"], &format!("{opens}ab{closes}c"), "ab", "c");
        check(&tokenizer, &["abc"], "xab", "", "xab");
        // The beginning of the longer one hid the shorter one.
        let hidden = format!("zabc{opens}T");
        check(&tokenizer, &["abcX", "bc"], &hidden, "", "za");
        let told = told(decoder(&tokenizer, &["abcX", "bc"]), &ids(&tokenizer, &hidden));
        assert_eq!(told.2, Some(StopReason::StopString));
    }
}

#[test]
fn the_end_inside_a_thought_belongs_to_it() {
    for (tokenizer, opens, closes) in
        [(named(), "<|channel>thought\n", "<channel|>"), (tagged(), "<think>", "</think>")]
    {
        let end = tokenizer.end_of_generation()[0];
        let broken = |text: &str| {
            let mut all = ids(&tokenizer, text);
            let last = *ids(&tokenizer, "🙂").first().unwrap();
            all.extend([last, end]);
            all
        };
        assert!(ids(&tokenizer, "🙂").len() > 1);
        let eos = Some(StopReason::Eos);
        let in_thought = told(decoder(&tokenizer, &["T"]), &broken(&format!("{opens}T")));
        assert_eq!(in_thought, ("T\u{FFFD}".into(), "".into(), eos));
        let in_answer = told(decoder(&tokenizer, &[]), &broken(&format!("{opens}T{closes}A")));
        assert_eq!(in_answer, ("T".into(), "A\u{FFFD}".into(), eos));
        // A character that a switch breaks off stays where it began.
        let mut switched = broken(&format!("{opens}T"));
        switched.pop();
        switched.extend(ids(&tokenizer, &format!("{closes}A")));
        assert_eq!(told(decoder(&tokenizer, &[]), &switched), ("T\u{FFFD}".into(), "A".into(), None));
    }
}

/// Some templates begin the thought in the prompt.
#[test]
fn a_thought_may_begin_in_the_prompt() {
    let after = |tokenizer: &Arc<Tokenizer>, prompt: &str, text: &str| {
        let prompt = ids(tokenizer, prompt);
        let (thought, answer, _) = told(decoder(tokenizer, &[]).after(&prompt), &ids(tokenizer, text));
        (thought, answer)
    };
    let split = |thought: &str, answer: &str| (thought.to_owned(), answer.to_owned());
    let tags = tagged();
    for prompt in ["user\nassistant\n<think>", "<think>\n", "</think><think>\n\n"] {
        assert_eq!(after(&tags, prompt, "A</think>\nb"), split("A", "b"), "{prompt:?}");
    }
    for prompt in ["", "x", "<think>\n\n</think>\n\n", "<think> why?\nassistant", "<think>\n<eos>"] {
        assert_eq!(after(&tags, prompt, "A"), split("", "A"), "{prompt:?}");
    }
    let channels = named();
    for prompt in ["<|turn>model\n<|channel>thought\n", "<|channel>thought\n\n"] {
        assert_eq!(after(&channels, prompt, "A<channel|>b"), split("A", "b"), "{prompt:?}");
    }
    assert_eq!(after(&channels, "<|channel>", "thought\nA<channel|>b"), split("A", "b"));
    assert_eq!(after(&channels, "<|channel>tho", "ught\nA<channel|>b"), split("A", "b"));
    for prompt in ["<|channel>thought\n<channel|>", "<|channel>final\n", "<|channel>thought\n<turn|>", "<|turn>model\n"]
    {
        assert_eq!(after(&channels, prompt, "A"), split("", "A"), "{prompt:?}");
    }
}
