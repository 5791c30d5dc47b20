//! Bodies of OpenAI's decisions API.

use laneway_protocol::ApiError;
use laneway_protocol::decisions::{DecisionsRequest, MAX_QUESTIONS};
use laneway_protocol::systemone::{DecisionRequest, QuestionKind, ReadOptions, Samples};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn read(body: &Value) -> DecisionRequest {
    let read = DecisionsRequest::from_json(body.to_string().as_bytes());
    read.unwrap_or_else(|error| panic!("{body}: {error}")).request
}

fn refusal(body: &Value) -> ApiError {
    match DecisionsRequest::from_json(body.to_string().as_bytes()) {
        Ok(_) => panic!("accepted: {body}"),
        Err(error) => error,
    }
}

fn check(body: &Value, param: Option<&str>, says: &str) {
    let error = refusal(body);
    assert_eq!((error.status, error.kind), (400, "invalid_request_error"), "{body}");
    assert_eq!(error.param.as_deref(), param, "{body}: {error}");
    assert!(error.message.contains(says), "{body}: {error}");
    assert!(error.message.len() < 600);
}

fn with(members: Value) -> Value {
    let mut body =
        json!({"model": "m", "input": "i", "questions": [{"type": "predicate", "instructions": "Is it so?"}]});
    for (name, member) in members.as_object().expect("an object") {
        body[name] = member.clone();
    }
    body
}

fn asking(question: Value) -> Value {
    with(json!({"questions": [question]}))
}

fn given(input: Value) -> Value {
    with(json!({"input": input}))
}

#[test]
fn questions_become_those_of_system_one_in_order() {
    let request = read(&with(json!({"questions": [
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high", "description": "8 of 10"}]},
        {"type": "predicate", "instructions": [{"type": "input_text", "text": "Is it "}, {"type": "input_text", "text": "so?"}]},
        {"type": "choice", "instructions": "Which?", "name": "pick", "choices": [
            {"value": "true", "description": "the word"}, {"value": true}, {"value": false}]},
    ]})));
    let instructions: Vec<_> =
        request.questions.iter().map(|question| question.instructions.as_ref().unwrap().text().into_owned()).collect();
    assert_eq!(instructions, ["How?", "Is it so?", "Which?"]);
    let QuestionKind::Score(levels) = &request.questions[0].kind else { panic!("a score") };
    assert_eq!(levels.iter().map(|level| level.text()).collect::<Vec<_>>(), ["low", "high: 8 of 10"]);
    assert_eq!(request.questions[1].kind, QuestionKind::Noul { yes: None, no: None });
    let QuestionKind::Choice(options) = &request.questions[2].kind else { panic!("a choice") };
    assert_eq!(options.iter().map(|option| option.name.as_str()).collect::<Vec<_>>(), ["true", "true", "false"]);
    assert_eq!(options[0].description.as_ref().unwrap().text(), "the word");
}

#[test]
fn the_same_question_has_the_same_seed_in_both_apis() {
    let system_one = json!({"state": "i", "questions": {"any": {"type": "noul", "instructions": "Is it so?"}}});
    let system_one = DecisionRequest::from_json(system_one.to_string().as_bytes()).unwrap();
    assert_eq!(read(&with(json!({}))).seed(), system_one.seed());
}

#[test]
fn the_state_is_a_lone_users_message_or_the_whole_conversation() {
    for (input, text) in [
        (json!("plain"), "plain"),
        (json!([{"role": "user", "content": "hi"}]), "hi"),
        (
            json!([{"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "a ", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "input_text", "text": "b"}]}]),
            "a b",
        ),
        (json!([{"role": "user", "content": [{"type": "input_json", "data": {"k": [1, "é"]}}]}]), r#"{"k": [1, "é"]}"#),
        (
            json!([{"role": "user", "content": [
                {"type": "input_text", "text": "see"}, {"type": "input_json", "data": [{"k": null}]}]}]),
            r#"["see", [{"k": null}]]"#,
        ),
        (json!([{"role": "system", "content": "Be strict."}]), r#"[{"role": "system", "content": "Be strict."}]"#),
        (
            json!([
                {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
                {"role": "assistant", "phase": "commentary", "content": [
                    {"type": "output_text", "text": "o"}, {"type": "refusal", "refusal": "r"}]},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "sunny"}]},
                {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}", "status": "completed"},
                {"type": "custom_tool_call", "call_id": "2", "name": "sh", "input": "ls"},
                {"type": "custom_tool_call_output", "call_id": "2", "output": "a.txt"},
            ]),
            concat!(
                r#"[{"role": "developer", "content": "d"}, {"role": "assistant", "content": "or"}, "#,
                r#"{"type": "function_call_output", "call_id": "1", "output": "sunny"}, "#,
                r#"{"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"}, "#,
                r#"{"type": "custom_tool_call", "call_id": "2", "name": "sh", "input": "ls"}, "#,
                r#"{"type": "custom_tool_call_output", "call_id": "2", "output": "a.txt"}]"#
            ),
        ),
    ] {
        assert_eq!(read(&given(input.clone())).state.text(), text, "{input}");
    }
}

#[test]
fn options_of_the_client_are_accepted_and_knobs_are_read() {
    let request = read(&with(json!({
        "prompt_cache_key": "k", "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}, "safety_identifier": null,
        "unknown": 1, "samples": 8, "x_permutations": 2,
    })));
    let expected = ReadOptions { samples: Samples::Fixed(8), permutations: 2, ..ReadOptions::default() };
    assert_eq!(request.options, expected);
    assert_eq!(request.model.as_deref(), Some("m"));
}

#[test]
fn as_many_questions_choices_and_levels_as_allowed_are_accepted() {
    let predicate = json!({"type": "predicate", "instructions": "i"});
    assert_eq!(read(&with(json!({"questions": vec![predicate; MAX_QUESTIONS]}))).questions.len(), MAX_QUESTIONS);
    let choices: Vec<Value> = (0..255).map(|index| json!({"value": index.to_string()})).collect();
    read(&asking(json!({"type": "choice", "instructions": "i", "choices": choices})));
    read(&asking(json!({"type": "score", "instructions": "i", "levels": vec![json!({"label": "l"}); 10]})));
}

#[test]
fn bodies_that_are_no_object_are_refused() {
    for body in [json!([]), json!(1), json!(null)] {
        check(&body, None, "not usable");
    }
    for body in [&b"{"[..], b"", b"{\"model\": \"\xff\"}", b"{}x"] {
        let error = DecisionsRequest::from_json(body).unwrap_err();
        assert_eq!((error.status, error.param), (400, None));
        assert!(error.message.contains("not valid JSON"));
    }
    let deep = format!("{{\"input\":{}", "[".repeat(1_000_000));
    assert_eq!(DecisionsRequest::from_json(deep.as_bytes()).unwrap_err().status, 400);
}

#[test]
fn fields_at_fault_are_named() {
    let choices = |choices: Value| asking(json!({"type": "choice", "instructions": "i", "choices": choices}));
    let levels = |levels: Value| asking(json!({"type": "score", "instructions": "i", "levels": levels}));
    let many_choices: Vec<Value> = (0..256).map(|index| json!({"value": index.to_string()})).collect();
    for (body, param, says) in [
        (with(json!({"model": null})), "model", "is required"),
        (with(json!({"model": ""})), "model", "at least 1 character"),
        (with(json!({"model": 1})), "model", "string"),
        (with(json!({"input": null})), "input", "is required"),
        (with(json!({"input": 5})), "input", "string or a list"),
        (with(json!({"questions": null})), "questions", "is required"),
        (with(json!({"questions": {}})), "questions", "list"),
        (with(json!({"questions": []})), "questions", "at least 1"),
        (with(json!({"questions": vec![json!({}); 401]})), "questions", "at most 400"),
        (with(json!({"questions": ["x"]})), "questions[0]", "dictionary"),
        (asking(json!({"instructions": "i"})), "questions[0].type", "is required"),
        (asking(json!({"type": "noul", "instructions": "i"})), "questions[0].type", "'predicate'"),
        (asking(json!({"type": "predicate"})), "questions[0].instructions", "is required"),
        (asking(json!({"type": "predicate", "instructions": ""})), "questions[0].instructions", "at least 1"),
        (asking(json!({"type": "predicate", "instructions": []})), "questions[0].instructions", "at least 1"),
        (asking(json!({"type": "predicate", "instructions": {}})), "questions[0].instructions", "string or a list"),
        (asking(json!({"type": "predicate", "instructions": "i", "name": 1})), "questions[0].name", "string"),
        (asking(json!({"type": "choice", "instructions": "i"})), "questions[0].choices", "is required"),
        (choices(json!({"a": "b"})), "questions[0].choices", "list"),
        (choices(json!([{"value": "a"}])), "questions[0].choices", "at least 2"),
        (choices(json!(many_choices)), "questions[0].choices", "at most 255"),
        (choices(json!(["a", "b"])), "questions[0].choices[0]", "dictionary"),
        (choices(json!([{"value": "a"}, {}])), "questions[0].choices[1].value", "is required"),
        (choices(json!([{"value": 1}, {"value": 2}])), "questions[0].choices[0].value", "a string or a boolean"),
        (choices(json!([{"value": true}, {"value": true}])), "questions[0].choices[1].value", "differ"),
        (
            choices(json!([{"value": "a", "description": []}, {"value": "b"}])),
            "questions[0].choices[0].description",
            "string",
        ),
        (levels(json!([{"label": "a"}])), "questions[0].levels", "at least 2"),
        (levels(json!(vec![json!({"label": "l"}); 11])), "questions[0].levels", "at most 10"),
        (levels(json!([{"label": "a"}, {"label": 2}])), "questions[0].levels[1].label", "string"),
        (levels(json!([{"label": "a"}, {}])), "questions[0].levels[1].label", "is required"),
        (with(json!({"steps": 9})), "steps", "less than or equal to 8"),
        (with(json!({"prompt_cache_key": 1})), "prompt_cache_key", "string"),
        (with(json!({"safety_identifier": {}})), "safety_identifier", "string"),
    ] {
        check(&body, Some(param), says);
    }
}

#[test]
fn wrong_input_is_named() {
    let call = json!({"type": "function_call", "call_id": "1", "name": "n", "arguments": "{}"});
    let user = |part: Value| json!([{"role": "user", "content": [part]}]);
    let mut deep = json!({});
    for _ in 0..32 {
        deep = json!({ "a": deep });
    }
    for (input, param, says) in [
        (json!([]), "input", "at least 1"),
        (json!(["hi"]), "input[0]", "dictionary"),
        (json!([{"content": "hi"}]), "input[0].role", "is required"),
        (json!([{"role": "tool", "content": "hi"}]), "input[0].role", "'assistant'"),
        (json!([{"role": "user"}]), "input[0].content", "is required"),
        (json!([{"role": "user", "content": []}]), "input[0].content", "at least 1"),
        (json!([{"type": "reasoning"}]), "input[0].type", "'function_call_output'"),
        (user(json!({"text": "hi"})), "input[0].content[0].type", "is required"),
        (user(json!({"type": "text", "text": "hi"})), "input[0].content[0].type", "'input_text'"),
        (user(json!({"type": "input_text"})), "input[0].content[0].text", "is required"),
        (user(json!({"type": "input_json", "data": 5})), "input[0].content[0].data", "an object or a list"),
        (user(json!({"type": "input_json", "data": [1]})), "input[0].content[0].data", "an object or a list"),
        (user(json!({"type": "input_json", "data": deep})), "input[0].content[0].data", "32 levels deep, not 33"),
        (
            user(json!({"type": "input_json", "data": {"a": vec![0; 10_000]}})),
            "input[0].content[0].data",
            "10000 values",
        ),
        (
            user(json!({"type": "input_json", "data": {"a": "x".repeat(256 << 10)}})),
            "input[0].content[0].data",
            "262144 bytes",
        ),
        (
            json!([{"role": "system", "content": [{"type": "input_json", "data": {}}]}]),
            "input[0].content[0].type",
            "'input_text'",
        ),
        (json!([{"type": "function_call", "call_id": "1", "name": "n"}]), "input[0].arguments", "is required"),
        (
            json!([call, {"type": "function_call_output", "call_id": "2", "output": "o"}]),
            "input[1].call_id",
            "id of a function_call",
        ),
        (
            json!([call, {"type": "custom_tool_call_output", "call_id": "1", "output": "o"}]),
            "input[1].call_id",
            "id of a custom_tool_call",
        ),
        (
            json!([call, {"type": "function_call_output", "call_id": "1", "output": {}}]),
            "input[1].output",
            "a string or a list",
        ),
    ] {
        check(&given(input), Some(param), says);
    }
}

#[test]
fn images_are_unsupported_where_all_else_is_right() {
    let image = json!({"type": "input_image", "image_url": "data:image/png;base64,aGk="});
    let body = given(json!([{"role": "user", "content": [{"type": "input_text", "text": "x"}, image]}]));
    check(&body, Some("input[0].content[1].type"), "reads text only");
    assert_eq!(refusal(&body).code, Some("unsupported_parameter"));
    let question = asking(json!({"type": "predicate", "instructions": [image]}));
    check(&question, Some("questions[0].instructions[0].type"), "reads text only");
    check(
        &given(json!([{"role": "user", "content": [{"type": "input_image"}]}])),
        Some("input[0].content[0].image_url"),
        "is required",
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "type",
        "message",
        "role",
        "user",
        "system",
        "content",
        "input_text",
        "input_json",
        "input_image",
        "text",
        "data",
        "function_call",
        "function_call_output",
        "call_id",
        "output",
        "predicate",
        "choice",
        "score",
        "choices",
        "levels",
        "value",
        "label",
        "instructions",
        "name",
        "é🙂",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((words.clone(), inner), 0..6).prop_map(|members| {
                members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>().into()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_a_request_or_a_clients_error(input in any_json(), questions in any_json(), bytes: Vec<u8>) {
        for body in [json!({"model": "m", "input": input, "questions": questions}), given(input), questions] {
            match DecisionsRequest::from_json(body.to_string().as_bytes()) {
                Ok(read) => {
                    prop_assert!(!read.request.questions.is_empty());
                    read.request.seed();
                    read.request.state.text();
                }
                Err(error) => prop_assert_eq!(error.status, 400),
            }
        }
        prop_assert!(DecisionsRequest::from_json(&bytes).is_err());
    }
}
