//! System One bodies that are accepted, and what becomes of them.

use laneway_protocol::systemone::{
    Answers, DecisionRequest, Distribution, MAX_QUESTIONS, QuestionKind, ReadOptions, ReadUsage, Reading, Samples,
    State, SystemOneResponse,
};
use serde_json::{Value, json};

fn read(body: &Value) -> DecisionRequest {
    DecisionRequest::from_json(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn with_question(question: Value) -> DecisionRequest {
    read(&json!({"model": "jev-latest", "state": "s", "questions": {"q": question}}))
}

fn kind(question: Value) -> QuestionKind {
    with_question(question).questions.remove(0).kind
}

fn with_state(state: Value) -> State {
    read(&json!({"state": state, "questions": {"q": {"type": "noul"}}})).state
}

#[test]
fn a_state_is_a_string_an_object_or_an_array_and_may_be_empty() {
    for (state, text) in [
        (json!(" as it is \n"), " as it is \n"),
        (json!(""), ""),
        (json!({}), "{}"),
        (json!([]), "[]"),
        (json!({"b": [1, null], "a": {"é": "환불 😡"}}), r#"{"b": [1, null], "a": {"é": "환불 😡"}}"#),
        (json!([{"role": "user", "content": "hi"}]), r#"[{"role": "user", "content": "hi"}]"#),
    ] {
        assert_eq!(with_state(state.clone()).text(), text, "{state}");
    }
}

#[test]
fn a_huge_state_is_kept_whole() {
    let text = "word ".repeat(2_000_000);
    let state = with_state(json!(text));
    assert_eq!(state.len_bytes(), text.len());
    assert_eq!(state, State::Text(text));
}

#[test]
fn the_length_of_a_state_is_known_without_writing_it() {
    let state = with_state(json!({"subject": "Duplicate charge", "items": [{"n": 10}, true, null]}));
    assert!(state.len_bytes().abs_diff(state.text().len()) < 20);
}

#[test]
fn the_model_may_be_left_out() {
    let question = json!({"q": {"type": "noul"}});
    assert_eq!(read(&json!({"state": "s", "questions": question})).model, None);
    assert_eq!(read(&json!({"model": null, "state": "s", "questions": question})).model, None);
    assert_eq!(
        read(&json!({"model": "jev-latest", "state": "s", "questions": question})).model.as_deref(),
        Some("jev-latest")
    );
}

#[test]
fn any_string_is_an_id_and_comes_back_unchanged() {
    let ids = ["refund", "Q 🙂", "x_y.z-1", "한국어", " ", "a\"b\\c\n", "e\u{301}", "é", "__proto__", "0", "Σ/π?#"];
    let questions: serde_json::Map<_, _> = ids.iter().map(|id| (id.to_string(), json!({"type": "noul"}))).collect();
    let request = read(&json!({"state": "s", "questions": questions}));
    let readings = ids.iter().map(|_| Reading::new(Distribution::new(vec![1.0, 0.0]).unwrap())).collect();
    let answers = Answers::new(&request, readings).unwrap();
    let text = serde_json::to_string(&SystemOneResponse::new("m", answers, ReadUsage::default())).unwrap();
    let body: Value = serde_json::from_str(&text).unwrap();
    let returned: Vec<&str> = body["answers"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(returned, ids);
}

#[test]
fn a_repeated_key_keeps_its_first_place_and_takes_the_last_value() {
    let body = br#"{"state":1,"questions":{
        "a":{"type":"noul"},"b":{"type":"choice","criteria":{"x":"1","y":"2","x":"3"}},"a":{"type":"score","criteria":["l"]}
    },"state":"last"}"#;
    let request = DecisionRequest::from_json(body).unwrap();
    assert_eq!(request.state.text(), "last");
    let ids: Vec<&str> = request.questions.iter().map(|question| question.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert!(matches!(request.questions[0].kind, QuestionKind::Score(_)));
    let QuestionKind::Choice(options) = &request.questions[1].kind else { panic!("a choice") };
    let options: Vec<_> =
        options.iter().map(|option| (option.name.as_str(), option.description.as_ref().unwrap().text())).collect();
    assert_eq!(options, [("x", "3".into()), ("y", "2".into())]);
}

#[test]
fn a_noul_may_have_both_sides_one_or_none() {
    for (question, expected) in [
        (json!({"type": "noul"}), (None, None)),
        (json!({"type": "noul", "instructions": "i", "criteria": null}), (None, None)),
        (json!({"type": "noul", "criteria": {}}), (None, None)),
        (json!({"type": "noul", "criteria": {"true": "y", "false": {"k": 1}}}), (Some("y"), Some(r#"{"k": 1}"#))),
        (json!({"type": "noul", "criteria": {"true": "y"}}), (Some("y"), None)),
        (json!({"type": "noul", "criteria": {"false": ["n"], "true": null}}), (None, Some(r#"["n"]"#))),
    ] {
        let QuestionKind::Noul { yes, no } = kind(question.clone()) else { panic!("a noul") };
        let read = (yes.as_ref().map(|it| it.text()), no.as_ref().map(|it| it.text()));
        assert_eq!((read.0.as_deref(), read.1.as_deref()), expected, "{question}");
    }
}

#[test]
fn a_choice_has_1_to_255_options_in_the_order_of_the_request() {
    for count in [1, 2, 26, 64, 128, 255] {
        let names: Vec<String> = (0..count).map(|index| format!("option {}", (index * 97) % 256)).collect();
        let criteria: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), Value::Null)).collect();
        let QuestionKind::Choice(options) = kind(json!({"type": "choice", "criteria": criteria})) else {
            panic!("a choice")
        };
        assert!(options.iter().all(|option| option.description.is_none()));
        assert_eq!(options.into_iter().map(|option| option.name).collect::<Vec<_>>(), names);
    }
}

#[test]
fn a_score_has_1_to_10_levels() {
    for count in 1..=10 {
        let levels: Vec<String> = (0..count).map(|index| format!("level {index}")).collect();
        let kind = kind(json!({"type": "score", "criteria": levels}));
        assert_eq!(kind.outcomes(), count);
    }
}

#[test]
fn instructions_and_descriptions_may_be_structured() {
    let structured = json!({"task": "Identify", "notes": ["a", {"b": 1.5}], "ko": "환불"});
    let request = with_question(json!({
        "type": "choice", "instructions": structured, "criteria": {"a": structured, "b": ["x"], "c": null},
    }));
    let instructions = request.questions[0].instructions.as_ref().unwrap();
    assert_eq!(*instructions.value(), structured);
    assert_eq!(instructions.text(), r#"{"task": "Identify", "notes": ["a", {"b": 1.5}], "ko": "환불"}"#);
    let QuestionKind::Choice(options) = &request.questions[0].kind else { panic!("a choice") };
    assert_eq!(options[0].description.as_ref().unwrap().value(), &structured);
    assert_eq!(options[1].description.as_ref().unwrap().text(), r#"["x"]"#);
}

#[test]
fn unknown_fields_are_ignored() {
    let request = read(&json!({
        "state": "s", "questions": {"q": {"type": "noul", "depends_on": 3}}, "keep_alive": "5m", "seed": 7,
        "temperature": {}, "x_trace_id": [1], "images": [], "assets": null,
    }));
    assert_eq!(request.options, ReadOptions::default());
}

#[test]
fn knobs_are_read_and_null_is_their_default() {
    let read_options = |knobs: Value| {
        let mut body = json!({"state": "s", "questions": {"q": {"type": "noul"}}});
        body.as_object_mut().unwrap().extend(knobs.as_object().unwrap().clone());
        read(&body).options
    };
    let least = json!({"steps": 1, "samples": 1, "think": 0, "sequential": false, "x_permutations": 1,
        "x_prior_correction": false});
    assert_eq!(read_options(least), ReadOptions { samples: Samples::Fixed(1), ..ReadOptions::default() });
    let most = json!({"steps": 8, "samples": 32.0, "think": 4096, "sequential": true, "x_permutations": 8,
        "x_prior_correction": true});
    let expected = ReadOptions {
        steps: 8,
        samples: Samples::Fixed(32),
        think: 4096,
        sequential: true,
        permutations: 8,
        prior_correction: true,
    };
    assert_eq!(read_options(most), expected);
    let nulls = json!({"steps": null, "samples": null, "think": null, "sequential": null, "x_permutations": null,
        "x_prior_correction": null});
    assert_eq!(read_options(nulls), ReadOptions::default());
    assert_eq!(read_options(json!({"samples": "auto"})), ReadOptions::default());
}

#[test]
fn a_question_may_ask_to_be_read_alone() {
    assert!(with_question(json!({"type": "noul", "alone": true})).questions[0].alone);
    assert!(!with_question(json!({"type": "noul", "alone": null})).questions[0].alone);
}

#[test]
fn as_many_questions_as_allowed_are_accepted() {
    let questions: serde_json::Map<_, _> =
        (0..MAX_QUESTIONS).map(|index| (format!("q{index}"), json!({"type": "noul"}))).collect();
    assert_eq!(read(&json!({"state": "s", "questions": questions})).questions.len(), MAX_QUESTIONS);
}

fn seed(body: &str) -> u64 {
    DecisionRequest::from_json(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}")).seed()
}

#[test]
fn the_seed_is_that_of_the_canonical_request() {
    let body = r#"{"state":{"b":1,"a":[{"d":2,"c":"é"}]},"questions":{"q":{"type":"noul","instructions":"i"}}}"#;
    // By Python's hashlib, over
    // [{"a":[{"c":"é","d":2}],"b":1},[{"criteria":{"false":null,"true":null},"instructions":"i","type":"noul"}]]
    assert_eq!(seed(body), 0x3066_e440_5600_aa82);
}

#[test]
fn the_seed_ignores_ids_key_order_knobs_and_the_model() {
    let base = seed(
        r#"{"state":{"a":1,"b":{"c":2,"d":3}},"questions":{
            "x":{"type":"choice","criteria":{"A":{"p":1,"q":2},"B":null}},"y":{"type":"score","criteria":["l","m"]}}}"#,
    );
    for same in [
        r#"{"state":{"b":{"d":3,"c":2},"a":1},"questions":{
            "x":{"type":"choice","criteria":{"A":{"p":1,"q":2},"B":null}},"y":{"type":"score","criteria":["l","m"]}}}"#,
        r#"{"model":"m","steps":2,"other":1,"state":{"a":1,"b":{"c":2,"d":3}},"questions":{
            "zz":{"criteria":{"B":null,"A":{"q":2,"p":1}},"type":"choice"},"🙂":{"type":"score","criteria":["l","m"]}}}"#,
    ] {
        assert_eq!(seed(same), base, "{same}");
    }
}

#[test]
fn the_seed_depends_on_the_state_and_the_questions_in_order() {
    let bodies = [
        r#"{"state":"s","questions":{"x":{"type":"noul"},"y":{"type":"score","criteria":["l","m"]}}}"#,
        r#"{"state":"t","questions":{"x":{"type":"noul"},"y":{"type":"score","criteria":["l","m"]}}}"#,
        r#"{"state":["s"],"questions":{"x":{"type":"noul"},"y":{"type":"score","criteria":["l","m"]}}}"#,
        r#"{"state":"s","questions":{"y":{"type":"score","criteria":["l","m"]},"x":{"type":"noul"}}}"#,
        r#"{"state":"s","questions":{"x":{"type":"noul"},"y":{"type":"score","criteria":["m","l"]}}}"#,
        r#"{"state":"s","questions":{"x":{"type":"noul","instructions":"i"},"y":{"type":"score","criteria":["l","m"]}}}"#,
        r#"{"state":"s","questions":{"x":{"type":"noul","criteria":{"true":"i"}},"y":{"type":"score","criteria":["l","m"]}}}"#,
        r#"{"state":"s","questions":{"x":{"type":"noul"}}}"#,
    ];
    let mut seeds: Vec<u64> = bodies.iter().map(|body| seed(body)).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), bodies.len());
}
