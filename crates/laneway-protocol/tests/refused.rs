//! Bodies that are refused, with the field each error names.

use laneway_protocol::{ApiError, ChatTurn, CompletionTurn};

fn refusal<T>(result: Result<T, ApiError>, body: &str) -> ApiError {
    match result {
        Ok(_) => panic!("accepted: {body}"),
        Err(error) => error,
    }
}

fn check_chat(body: &str, param: Option<&str>, says: &str) {
    check(refusal(ChatTurn::from_json(body.as_bytes()), body), body, param, says);
}

fn check_completion(body: &str, param: Option<&str>, says: &str) {
    check(refusal(CompletionTurn::from_json(body.as_bytes()), body), body, param, says);
}

fn check(error: ApiError, body: &str, param: Option<&str>, says: &str) {
    assert_eq!(error.status, 400, "{body}");
    assert_eq!(error.kind, "invalid_request_error", "{body}");
    assert_eq!(error.param.as_deref(), param, "{body}: {error}");
    assert!(error.message.contains(says), "{body}: {error}");
    assert!(error.message.len() < 400, "{body}: message of {} bytes", error.message.len());
}

/// A chat that is valid but for the given members.
fn chat_with(members: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{members}}}"#)
}

fn completion_with(members: &str) -> String {
    format!(r#"{{"model":"m","prompt":"hi",{members}}}"#)
}

#[test]
fn salts_are_bounded() {
    check_chat(&chat_with(r#""cache_salt":"""#), Some("cache_salt"), "must not be empty");
    let long = "x".repeat(1024);
    check_completion(&completion_with(&format!(r#""cache_salt":"{long}""#)), Some("cache_salt"), "shorter than 1024");
    check_chat(&chat_with(r#""cache_salt":7"#), Some("cache_salt"), "");
}

#[test]
fn bodies_that_are_no_json_object_are_refused() {
    for (body, says) in [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1,2]", "not usable"),
        (r#"["m",[{"role":"user","content":"hi"}]]"#, "not usable"),
        ("\"hello\"", "not usable"),
        ("null", "not usable"),
        ("{}extra", "not valid JSON"),
        ("\u{feff}{}", "not valid JSON"),
    ] {
        check_chat(body, None, says);
    }
}

#[test]
fn bytes_that_are_no_utf8_are_refused() {
    let body = b"{\"model\":\"\xff\xfe\",\"messages\":[]}";
    let error = ChatTurn::from_json(body).expect_err("not UTF-8");
    assert_eq!((error.status, error.param.as_deref()), (400, Some("model")));
}

#[test]
fn deep_nesting_is_refused() {
    let body = format!(r#"{{"x":{}}}"#, "[".repeat(100_000));
    let error = refusal(ChatTurn::from_json(body.as_bytes()), "deep");
    assert_eq!(error.status, 400);
    let inside_known = chat_with(&format!(r#""tools":{}"#, "[".repeat(100_000)));
    assert_eq!(refusal(ChatTurn::from_json(inside_known.as_bytes()), "deep").status, 400);
}

#[test]
fn wrong_types_name_the_field() {
    for (members, param) in [
        (r#""temperature":"hot""#, "temperature"),
        (r#""temperature":[1]"#, "temperature"),
        (r#""temperature":true"#, "temperature"),
        (r#""max_tokens":"10""#, "max_tokens"),
        (r#""max_tokens":1.5"#, "max_tokens"),
        (r#""max_completion_tokens":{}"#, "max_completion_tokens"),
        (r#""top_k":2.5"#, "top_k"),
        (r#""stop":7"#, "stop"),
        (r#""stop":["a",7]"#, "stop[1]"),
        (r#""seed":"lucky""#, "seed"),
        (r#""stream":"yes""#, "stream"),
        (r#""stream_options":true"#, "stream_options"),
        (r#""stream_options":{"include_usage":1}"#, "stream_options.include_usage"),
        (r#""n":[]"#, "n"),
        (r#""logprobs":3"#, "logprobs"),
        (r#""top_logprobs":"many""#, "top_logprobs"),
    ] {
        check_chat(&chat_with(members), Some(param), param);
    }
    check_chat(r#"{"model":5,"messages":[]}"#, Some("model"), "string");
}

#[test]
fn absurd_numbers_name_the_field() {
    for (members, param) in [
        (r#""temperature":2.1"#, "temperature"),
        (r#""temperature":-0.1"#, "temperature"),
        (r#""temperature":1e999"#, "temperature"),
        (r#""temperature":NaN"#, "temperature"),
        (r#""temperature":Infinity"#, "temperature"),
        (r#""temperature":-Infinity"#, "temperature"),
        (r#""top_p":0"#, "top_p"),
        (r#""top_p":1e-300"#, "top_p"),
        (r#""top_p":1.01"#, "top_p"),
        (r#""top_k":-2"#, "top_k"),
        (r#""top_k":99999999999"#, "top_k"),
        (r#""min_p":-0.5"#, "min_p"),
        (r#""min_p":1.5"#, "min_p"),
        (r#""presence_penalty":2.5"#, "presence_penalty"),
        (r#""frequency_penalty":-3"#, "frequency_penalty"),
        (r#""repetition_penalty":0"#, "repetition_penalty"),
        (r#""repetition_penalty":1.3e-38"#, "repetition_penalty"),
        (r#""repetition_penalty":50"#, "repetition_penalty"),
        (r#""max_tokens":0"#, "max_tokens"),
        (r#""max_tokens":-1"#, "max_tokens"),
        (r#""max_tokens":99999999999999999999999999"#, "max_tokens"),
        (r#""max_tokens":1e30"#, "max_tokens"),
        (r#""max_tokens":1e999"#, "max_tokens"),
        (r#""max_completion_tokens":0"#, "max_completion_tokens"),
        (r#""seed":1e30"#, "seed"),
        (r#""n":0"#, "n"),
        (r#""n":9"#, "n"),
        (r#""n":1000000000"#, "n"),
        (r#""logprobs":true,"top_logprobs":21"#, "top_logprobs"),
        (r#""logprobs":true,"top_logprobs":-1"#, "top_logprobs"),
        (r#""top_logprobs":5"#, "top_logprobs"),
    ] {
        check_chat(&chat_with(members), Some(param), param);
    }
    for (members, param) in [
        (r#""logprobs":21"#, "logprobs"),
        (r#""logprobs":-1"#, "logprobs"),
        (r#""logprobs":1.5"#, "logprobs"),
        (r#""logprobs":true"#, "logprobs"),
        (r#""max_tokens":0"#, "max_tokens"),
    ] {
        check_completion(&completion_with(members), Some(param), param);
    }
}

#[test]
fn messages_must_hold_text_from_a_known_role() {
    for (messages, param, says) in [
        ("[]", "messages", "at least one"),
        ("null", "messages", "required"),
        ("{}", "messages", "a list"),
        ("[7]", "messages[0]", "an object"),
        (r#"["hi"]"#, "messages[0]", "an object"),
        (r#"[["user","hi"]]"#, "messages[0]", "an object"),
        (r#"[{"content":"hi"}]"#, "messages[0].role", "required"),
        (r#"[{"role":"wizard","content":"hi"}]"#, "messages[0].role", "must be"),
        (r#"[{"role":1,"content":"hi"}]"#, "messages[0].role", "string"),
        (r#"[{"role":"user"}]"#, "messages[0].content", "required"),
        (r#"[{"role":"user","content":null}]"#, "messages[0].content", "required"),
        (r#"[{"role":"user","content":42}]"#, "messages[0].content", "list of text parts"),
        (r#"[{"role":"user","content":[]}]"#, "messages[0].content", "at least one"),
        (r#"[{"role":"user","content":["hi"]}]"#, "messages[0].content[0]", "an object"),
        (r#"[{"role":"user","content":[{"text":"hi"}]}]"#, "messages[0].content[0].type", "required"),
        (r#"[{"role":"user","content":[{"type":"text"}]}]"#, "messages[0].content[0].text", "required"),
        (
            r#"[{"role":"user","content":"hi"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]}]"#,
            "messages[1].content[1].type",
            "this model reads text only",
        ),
        (r#"[{"role":"user","content":[{"type":"input_audio"}]}]"#, "messages[0].content[0].type", "text only"),
        (r#"[{"role":"assistant","tool_calls":[{}]}]"#, "messages[0].tool_calls", "not supported"),
    ] {
        check_chat(&format!(r#"{{"model":"m","messages":{messages}}}"#), Some(param), says);
    }
    check_chat(r#"{"model":"m"}"#, Some("messages"), "required");
    check_chat(r#"{"messages":[{"role":"user","content":"hi"}]}"#, Some("model"), "required");
    check_chat(r#"{"model":"","messages":[{"role":"user","content":"hi"}]}"#, Some("model"), "required");
}

#[test]
fn endless_lists_are_refused_while_they_are_read() {
    let messages = r#"{"role":"user","content":"x"},"#.repeat(9000);
    let body = format!(r#"{{"model":"m","messages":[{messages}"#);
    check_chat(&body, Some("messages"), "more than 8192 elements");
    let parts = r#"{"type":"text","text":""},"#.repeat(1025);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{parts}"#);
    check_chat(&body, Some("messages[0].content"), "more than 1024 elements");
}

#[test]
fn prompts_must_hold_something() {
    for (prompt, says) in [
        ("null", "required"),
        (r#""""#, "empty"),
        ("[]", "empty"),
        (r#"["a",""]"#, "empty"),
        ("[[1,2],[]]", "empty"),
        ("{}", "a string"),
        ("7", "a string"),
        (r#"["a",7]"#, "mixed"),
        (r#"[7,[7]]"#, "mixed"),
    ] {
        check_completion(&format!(r#"{{"model":"m","prompt":{prompt}}}"#), Some("prompt"), says);
    }
    check_completion(r#"{"model":"m","prompt":[1,-7]}"#, Some("prompt[1]"), "token id");
    check_completion(r#"{"model":"m","prompt":[4294967296]}"#, Some("prompt[0]"), "token id");
    check_completion(r#"{"model":"m","prompt":[[1.5]]}"#, Some("prompt[0][0]"), "");
}

#[test]
fn what_would_change_the_answer_is_refused_by_name() {
    for (members, param) in [
        (r#""tools":[{"type":"function"}]"#, "tools"),
        (r#""tools":[{"type":"function"}],"tool_choice":"auto""#, "tools"),
        (r#""tool_choice":"required""#, "tool_choice"),
        (r#""tool_choice":{"type":"function"}"#, "tool_choice"),
        (r#""functions":[{"name":"f"}]"#, "functions"),
        (r#""response_format":{"type":"json_object"}"#, "response_format"),
        (r#""response_format":{"type":"json_schema","json_schema":{}}"#, "response_format"),
        (r#""logit_bias":{"50256":-100}"#, "logit_bias"),
        (r#""modalities":["text","audio"]"#, "modalities"),
        (r#""audio":{"voice":"alloy"}"#, "audio"),
        (r#""best_of":2"#, "best_of"),
    ] {
        check_chat(&chat_with(members), Some(param), "not supported");
    }
    for (members, param) in
        [(r#""echo":true"#, "echo"), (r#""suffix":"end""#, "suffix"), (r#""best_of":5,"n":2"#, "best_of")]
    {
        check_completion(&completion_with(members), Some(param), "not supported");
    }
}

#[test]
fn stop_strings_and_answers_are_bounded() {
    let many = format!(r#""stop":[{}"x"]"#, r#""x","#.repeat(16));
    check_chat(&chat_with(&many), Some("stop"), "at most 16");
    let long = format!(r#""stop":"{}""#, "x".repeat(1025));
    check_chat(&chat_with(&long), Some("stop"), "1024 bytes");
    let prompts = format!(r#"{{"model":"m","n":8,"prompt":[{}"x"]}}"#, r#""x","#.repeat(4));
    check_completion(&prompts, Some("prompt"), "over 32 answers");
}

#[test]
fn an_error_never_quotes_a_huge_value() {
    let huge = "x".repeat(1 << 20);
    check_chat(&chat_with(&format!(r#""temperature":"{huge}""#)), Some("temperature"), "temperature");
    check_chat(
        &format!(r#"{{"model":"m","messages":[{{"role":"{huge}","content":""}}]}}"#),
        Some("messages[0].role"),
        "must be",
    );
    check_chat(
        &format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"{huge}"}}]}}]}}"#),
        Some("messages[0].content[0].type"),
        "text only",
    );
}
