//! Bodies that are accepted, and what they mean.

use laneway_protocol::{ChatTurn, CompletionTurn, Delivery, Message, Prompt, Role, SamplingOptions};

fn chat(members: &str) -> ChatTurn {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{members}}}"#);
    ChatTurn::from_json(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn completion(prompt: &str, members: &str) -> CompletionTurn {
    let body = format!(r#"{{"model":"m","prompt":{prompt}{members}}}"#);
    CompletionTurn::from_json(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

#[test]
fn a_bare_chat_leaves_every_choice_to_the_server() {
    let turn = chat("");
    assert_eq!(turn.model, "m");
    assert_eq!(turn.messages, [Message { role: Role::User, content: "hi".into() }]);
    assert_eq!(turn.settings.sampling, SamplingOptions::default());
    assert_eq!(turn.settings.max_tokens, None);
    assert_eq!(turn.settings.stop, [""; 0]);
    assert_eq!(turn.settings.choices, 1);
    assert_eq!(turn.settings.top_logprobs, None);
    assert_eq!(turn.settings.delivery, Delivery::Whole);
}

#[test]
fn state_is_kept_and_shared_unless_the_caller_says_otherwise() {
    let usual = chat("").settings;
    assert_eq!((usual.one_shot, usual.cache_salt), (false, None));
    let own = completion(r#""hi""#, r#","cache_salt":"tenant 7","x_laneway_one_shot":true"#).settings;
    assert_eq!((own.one_shot, own.cache_salt.as_deref()), (true, Some("tenant 7")));
}

#[test]
fn every_parameter_arrives() {
    let settings = chat(
        r#","temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"presence_penalty":-1,"frequency_penalty":1.5,
        "repetition_penalty":1.1,"seed":-7,"max_tokens":12,"stop":["a","b","a",""],"n":2,"logprobs":true,
        "top_logprobs":3,"stream":true,"stream_options":{"include_usage":true}"#,
    )
    .settings;
    let expected = SamplingOptions {
        temperature: Some(0.5),
        top_p: Some(0.9),
        top_k: Some(40),
        min_p: Some(0.05),
        presence_penalty: Some(-1.0),
        frequency_penalty: Some(1.5),
        repetition_penalty: Some(1.1),
        seed: Some(-7_i64 as u64),
    };
    assert_eq!(settings.sampling, expected);
    assert_eq!(settings.max_tokens, Some(12));
    assert_eq!(settings.stop, ["a", "b"]);
    assert_eq!(settings.choices, 2);
    assert_eq!(settings.top_logprobs, Some(3));
    assert_eq!(settings.delivery, Delivery::Stream { include_usage: true });
}

#[test]
fn nulls_and_unknown_fields_change_nothing() {
    let members = [
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "n",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "response_format",
        "logit_bias",
    ];
    let nulls: String = members.iter().map(|name| format!(r#","{name}":null"#)).collect();
    let unknown =
        r#","user":"u-1","store":true,"metadata":{"a":"b"},"zzz":[[1,{"deep":null}]],"kv_transfer_params":{}"#;
    assert_eq!(chat(&nulls), chat(""));
    assert_eq!(chat(unknown), chat(""));
}

#[test]
fn harmless_forms_of_unsupported_fields_are_accepted() {
    for members in [
        r#","tools":[]"#,
        r#","tools":[{"type":"function"}],"tool_choice":"none""#,
        r#","tool_choice":"auto""#,
        r#","response_format":{"type":"text"}"#,
        r#","logit_bias":{}"#,
        r#","modalities":["text"]"#,
        r#","best_of":1"#,
        r#","echo":false,"suffix":"""#,
        r#","stop":"""#,
    ] {
        assert_eq!(chat(members), chat(""), "{members}");
    }
}

#[test]
fn whole_floats_count_as_integers() {
    assert_eq!(chat(r#","max_tokens":10.0"#).settings.max_tokens, Some(10));
    assert_eq!(chat(r#","top_k":-1"#).settings.sampling.top_k, Some(0));
}

#[test]
fn the_newer_token_limit_wins() {
    assert_eq!(chat(r#","max_tokens":10,"max_completion_tokens":20"#).settings.max_tokens, Some(20));
}

#[test]
fn seeds_span_both_integer_types() {
    assert_eq!(chat(&format!(r#","seed":{}"#, i64::MIN)).settings.sampling.seed, Some(1 << 63));
    assert_eq!(chat(&format!(r#","seed":{}"#, u64::MAX)).settings.sampling.seed, Some(u64::MAX));
}

#[test]
fn content_may_be_parts_or_absent_for_the_assistant() {
    let body = r#"{"model":"m","messages":[
        {"role":"developer","content":"be brief"},
        {"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"}],"name":"x"},
        {"role":"assistant","content":null},
        {"role":"assistant"},
        {"role":"tool","content":"42","tool_call_id":"t"}]}"#;
    let turn = ChatTurn::from_json(body.as_bytes()).expect("valid");
    let said: Vec<_> = turn.messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
    assert_eq!(said, [("system", "be brief"), ("user", "ab"), ("assistant", ""), ("assistant", ""), ("tool", "42")]);
}

#[test]
fn prompts_come_as_text_or_ids_one_or_many() {
    for (prompt, expected) in [
        (r#""a""#, vec![Prompt::Text("a".into())]),
        (r#"["a","b"]"#, vec![Prompt::Text("a".into()), Prompt::Text("b".into())]),
        ("[1,2,3]", vec![Prompt::Ids(vec![1, 2, 3])]),
        ("[[1],[2,3]]", vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]),
    ] {
        assert_eq!(completion(prompt, "").prompts, expected, "{prompt}");
    }
}

#[test]
fn a_completion_counts_its_rivals_in_logprobs() {
    assert_eq!(completion(r#""a""#, r#","logprobs":5"#).settings.top_logprobs, Some(5));
    assert_eq!(completion(r#""a""#, r#","logprobs":0"#).settings.top_logprobs, Some(0));
    assert_eq!(completion(r#""a""#, "").settings.top_logprobs, None);
}

#[test]
fn thoughts_drafts_and_passes_are_asked_for() {
    let settings = chat("").settings;
    assert_eq!((settings.thinking, settings.drafts, settings.denoising_steps), (false, false, None));
    let asked = r#", "chat_template_kwargs": {"enable_thinking": true}, "x_laneway_steps": 12, "stream": true, "x_laneway_drafts": true"#;
    let settings = chat(asked).settings;
    assert_eq!((settings.thinking, settings.drafts, settings.denoising_steps), (true, true, Some(12)));
    assert!(chat(r#", "reasoning_effort": "low""#).settings.thinking);
    assert!(!chat(r#", "reasoning_effort": "none""#).settings.thinking);
    assert!(
        !chat(r#", "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}"#).settings.thinking
    );
}
