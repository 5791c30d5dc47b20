//! System One bodies that are refused: status, place and kind of every error.

use laneway_protocol::systemone::{DecisionError, DecisionRequest, Detail, MAX_QUESTIONS};
use laneway_protocol::{Loc, MAX_SHAPE_ERRORS};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn refusal(body: &[u8]) -> DecisionError {
    match DecisionRequest::from_json(body) {
        Ok(_) => panic!("accepted: {}", String::from_utf8_lossy(body)),
        Err(error) => error,
    }
}

/// The body is refused with 422 and exactly these errors, as (path after `body`, type).
fn check(body: &Value, expected: &[(&str, &str)]) {
    let error = refusal(body.to_string().as_bytes());
    assert_eq!(error.status, 422, "{body}: {error}");
    let Detail::Shape(errors) = &error.detail else { panic!("{body}: {error}") };
    let found: Vec<(String, &str)> = errors
        .iter()
        .map(|error| {
            assert_eq!(error.loc[0], Loc::Field("body".into()));
            let steps: Vec<String> = error.loc[1..]
                .iter()
                .map(|step| match step {
                    Loc::Field(name) => name.clone(),
                    Loc::Index(index) => index.to_string(),
                })
                .collect();
            (steps.join("/"), error.kind)
        })
        .collect();
    let found: Vec<(&str, &str)> = found.iter().map(|(path, kind)| (path.as_str(), *kind)).collect();
    assert_eq!(found, expected, "{body}");
}

fn with(members: Value) -> Value {
    let mut body = json!({"model": "jev-latest", "state": "s", "questions": {"q": {"type": "noul"}}});
    for (name, member) in members.as_object().expect("an object") {
        body[name] = member.clone();
    }
    body
}

fn asking(question: Value) -> Value {
    with(json!({"questions": {"q": question}}))
}

fn check_usage(body: &Value, says: &str) {
    let error = refusal(body.to_string().as_bytes());
    assert_eq!(error.status, 400, "{error}");
    let Detail::Typed { error_type: "api_usage_error", message } = &error.detail else { panic!("{error:?}") };
    assert!(message.contains(says), "{message}");
}

fn check_sentence(body: &Value, says: &str) {
    let error = refusal(body.to_string().as_bytes());
    assert_eq!(error.status, 400, "{error}");
    let Detail::Sentence(message) = &error.detail else { panic!("{error:?}") };
    assert!(message.contains(says), "{message}");
}

#[test]
fn required_fields_are_named() {
    check(&json!({}), &[("state", "missing"), ("questions", "missing")]);
    check(&json!({"state": "s"}), &[("questions", "missing")]);
    check(&json!({"questions": {"q": {"type": "noul"}}}), &[("state", "missing")]);
}

#[test]
fn wrong_types_are_named() {
    for body in [json!([]), json!("s"), json!(null), json!(3)] {
        check(&body, &[("", "dict_type")]);
    }
    for state in [json!(null), json!(1), json!(true)] {
        check(&with(json!({"state": state})), &[("state", "union_type")]);
    }
    check(&with(json!({"model": 5})), &[("model", "string_type")]);
    check(&with(json!({"model": ""})), &[("model", "string_too_short")]);
    check(&with(json!({"questions": []})), &[("questions", "dict_type")]);
    check(&with(json!({"questions": null})), &[("questions", "dict_type")]);
    check(&with(json!({"questions": {}})), &[("questions", "too_short")]);
    check(&with(json!({"questions": {"": {"type": "noul"}}})), &[("questions/", "string_too_short")]);
}

#[test]
fn wrong_questions_are_named() {
    for (question, expected) in [
        (json!("noul"), ("questions/q", "dict_type")),
        (json!({"instructions": "Refund?"}), ("questions/q", "union_tag_not_found")),
        (json!({"type": 7}), ("questions/q/type", "string_type")),
        (json!({"type": "noul", "instructions": 1}), ("questions/q/noul/instructions", "union_type")),
        (json!({"type": "noul", "alone": 1}), ("questions/q/noul/alone", "bool_type")),
        (json!({"type": "noul", "criteria": []}), ("questions/q/noul/criteria", "dict_type")),
        (json!({"type": "noul", "criteria": {"true": true}}), ("questions/q/noul/criteria/true", "union_type")),
        (json!({"type": "choice"}), ("questions/q/choice/criteria", "missing")),
        (json!({"type": "choice", "criteria": null}), ("questions/q/choice/criteria", "dict_type")),
        (json!({"type": "choice", "criteria": ["a", "b"]}), ("questions/q/choice/criteria", "dict_type")),
        (json!({"type": "choice", "criteria": {}}), ("questions/q/choice/criteria", "too_short")),
        (json!({"type": "choice", "criteria": {"a": 1}}), ("questions/q/choice/criteria/a", "union_type")),
        (json!({"type": "choice", "criteria": {"": null}}), ("questions/q/choice/criteria/", "string_too_short")),
        (json!({"type": "score"}), ("questions/q/score/criteria", "missing")),
        (json!({"type": "score", "criteria": {"0": "Calm"}}), ("questions/q/score/criteria", "list_type")),
        (json!({"type": "score", "criteria": []}), ("questions/q/score/criteria", "too_short")),
        (json!({"type": "score", "criteria": ["a", null]}), ("questions/q/score/criteria/1", "union_type")),
        (json!({"type": "score", "criteria": [1.5, "a"]}), ("questions/q/score/criteria/0", "union_type")),
    ] {
        check(&asking(question), &[expected]);
    }
}

#[test]
fn knobs_out_of_range_are_named() {
    for (members, path, kind) in [
        (json!({"steps": 0}), "steps", "greater_than_equal"),
        (json!({"steps": 9}), "steps", "less_than_equal"),
        (json!({"steps": 1.5}), "steps", "int_from_float"),
        (json!({"steps": "2"}), "steps", "int_type"),
        (json!({"samples": 0}), "samples", "greater_than_equal"),
        (json!({"samples": 33}), "samples", "less_than_equal"),
        (json!({"samples": "many"}), "samples", "int_type"),
        (json!({"think": -1}), "think", "greater_than_equal"),
        (json!({"think": 4097}), "think", "less_than_equal"),
        (json!({"sequential": 1}), "sequential", "bool_type"),
        (json!({"sequential": "true"}), "sequential", "bool_type"),
        (json!({"x_permutations": 0}), "x_permutations", "greater_than_equal"),
        (json!({"x_permutations": 9}), "x_permutations", "less_than_equal"),
        (json!({"x_prior_correction": "yes"}), "x_prior_correction", "bool_type"),
    ] {
        check(&with(members), &[(path, kind)]);
    }
}

#[test]
fn all_errors_of_a_body_are_told_at_once() {
    let body = json!({
        "model": 1, "state": 2, "steps": 99, "images": {},
        "questions": {"a": {"type": "choice", "criteria": {"x": 1, "y": 2}}, "b": {}, "c": {"type": "box"}},
    });
    check(
        &body,
        &[
            ("model", "string_type"),
            ("state", "union_type"),
            ("questions/a/choice/criteria/x", "union_type"),
            ("questions/a/choice/criteria/y", "union_type"),
            ("questions/b", "union_tag_not_found"),
            ("steps", "less_than_equal"),
            ("images", "list_type"),
        ],
    );
}

#[test]
fn a_flood_of_errors_is_cut_short() {
    let questions: Map<_, _> = (0..5000).map(|index| (format!("{index}"), Value::Null)).collect();
    let error = refusal(with(json!({"questions": questions})).to_string().as_bytes());
    let Detail::Shape(errors) = &error.detail else { panic!("{error}") };
    assert_eq!(errors.len(), MAX_SHAPE_ERRORS);
    assert_eq!(errors.last().unwrap().kind, "too_many_errors");
}

#[test]
fn validation_errors_look_as_fastapi_writes_them() {
    let body = with(json!({"steps": 12, "questions": {"urgency": {"type": "score"}, "team": {"x": 1}}}));
    insta::assert_json_snapshot!(refusal(body.to_string().as_bytes()).body());
    insta::assert_json_snapshot!(refusal(br#"{"model": "jev-latest", "state": "x", "questions": {"#).body());
}

#[test]
fn bytes_that_are_no_json_are_422_at_their_offset() {
    for (body, offset) in
        [(&b""[..], 0), (b"{", 1), (b"{\"state\": nope}", 11), (b"{}{}", 2), (b"\xef\xbb\xbf{}", 0), (b"NaN", 0)]
    {
        let error = refusal(body);
        let Detail::Shape(errors) = &error.detail else { panic!("{error}") };
        assert_eq!((error.status, errors.len(), errors[0].kind), (422, 1, "json_invalid"));
        assert_eq!(errors[0].loc, [Loc::Field("body".into()), Loc::Index(offset)], "{body:?}");
    }
    assert_eq!(refusal(b"{\"state\": \"\xff\xfe\", \"questions\": {}}").status, 422);
    assert_eq!(refusal(br#"{"state": "\ud800", "questions": {}}"#).status, 422);
    assert_eq!(refusal(br#"{"state": [1e999], "questions": {}}"#).status, 422);
}

#[test]
fn deep_and_wide_bombs_are_422() {
    for open in ["[", "{\"a\":"] {
        let bomb = format!("{{\"state\":{}", open.repeat(1_000_000));
        let closed = format!("{{\"state\":{}1{}", "[".repeat(500_000), "]".repeat(500_000));
        for body in [bomb, closed] {
            assert_eq!(refusal(body.as_bytes()).status, 422);
        }
    }
    let wide = format!("{{\"state\":[{}0]}}", "0,".repeat(2_000_000));
    let error = refusal(wide.as_bytes());
    let Detail::Shape(errors) = &error.detail else { panic!("{error}") };
    assert_eq!((error.status, errors[0].kind), (422, "too_long"));
}

#[test]
fn unknown_question_types_are_named() {
    check_usage(&asking(json!({"type": "box", "instructions": "The dog"})), "asks for a box");
    for kind in ["boolean", "span", "", "Noul"] {
        let error = refusal(asking(json!({"type": kind, "instructions": "The dog"})).to_string().as_bytes());
        let Detail::Shape(errors) = &error.detail else { panic!("{error:?}") };
        assert_eq!((error.status, errors[0].kind), (422, "literal_error"), "{kind}");
        assert!(errors[0].msg.contains(kind), "{}", errors[0].msg);
    }
    let long = refusal(asking(json!({"type": "x".repeat(100_000)})).to_string().as_bytes());
    assert!(long.to_string().len() < 400);
}

#[test]
fn too_many_options_and_levels_are_shape_errors() {
    let options: Map<_, _> = (0..256).map(|index| (format!("o{index}"), Value::Null)).collect();
    for (question, most) in [
        (json!({"type": "choice", "criteria": options}), 255),
        (json!({"type": "score", "criteria": vec!["l"; 11]}), 10),
    ] {
        let error = refusal(asking(question).to_string().as_bytes());
        let Detail::Shape(errors) = &error.detail else { panic!("{error:?}") };
        assert_eq!((error.status, errors.len(), errors[0].kind), (422, 1, "too_long"));
        assert!(errors[0].msg.contains(&format!("at most {most}")), "{}", errors[0].msg);
    }
}

#[test]
fn too_many_questions_are_a_sentence() {
    let questions: Map<_, _> =
        (0..=MAX_QUESTIONS).map(|index| (format!("q{index}"), json!({"type": "noul"}))).collect();
    check_sentence(&with(json!({"questions": questions})), "257 questions were asked; at most 256");
}

#[test]
fn well_formed_images_are_refused_as_what_the_model_cannot_read() {
    let asset = json!({"type": "image", "format": "png", "data_base64": "aGk="});
    for (field, members) in [
        ("assets", json!({"state": "look: <image:1>", "assets": {"<image:1>": asset}})),
        ("assets", json!({"state": [{"a": "<i>"}], "assets": {"<i>": {"part": "asset-0"}}})),
        (
            "assets",
            json!({"questions": {"q": {"type": "noul", "instructions": ["<i>"]}},
                "assets": {"<i>": {"format": "jpeg", "data_base64": "aA=="}}}),
        ),
        ("assets", json!({"questions": {"q": {"type": "score", "criteria": ["a <i>"]}}, "assets": {"<i>": asset}})),
        ("images", json!({"images": ["data:image/png;base64,aGk="]})),
        ("images", json!({"images": ["aGk="]})),
        ("images", json!({"images": [{"content_type": "image/webp", "base64": "aGk="}]})),
    ] {
        let body = with(members);
        check_sentence(&body, "reads text only");
        assert!(refusal(body.to_string().as_bytes()).to_string().starts_with(field));
    }
}

#[test]
fn misshapen_images_are_422() {
    let ok = json!({"type": "image", "format": "png", "data_base64": "aGk="});
    for (members, expected) in [
        (json!({"assets": {}}), vec![("assets", "too_short")]),
        (json!({"assets": []}), vec![("assets", "dict_type")]),
        (json!({"assets": {"<i>": ok}}), vec![("assets/<i>", "value_error")]),
        (json!({"assets": {"": ok}}), vec![("assets/", "string_too_short")]),
        (json!({"assets": {"s": "aGk="}}), vec![("assets/s", "dict_type")]),
        (json!({"assets": {"s": {}}}), vec![("assets/s/format", "missing"), ("assets/s/data_base64", "missing")]),
        (
            json!({"assets": {"s": {"type": "audio", "format": "png", "data_base64": "aGk="}}}),
            vec![("assets/s/type", "literal_error")],
        ),
        (
            json!({"assets": {"s": {"format": "gif", "data_base64": "aGk="}}}),
            vec![("assets/s/format", "literal_error")],
        ),
        (
            json!({"assets": {"s": {"format": "png", "data_base64": "not base64!"}}}),
            vec![("assets/s/data_base64", "value_error")],
        ),
        (
            json!({"assets": {"s": {"format": "png", "data_base64": [104, 105]}}}),
            vec![("assets/s/data_base64", "string_type")],
        ),
        (json!({"images": "aGk="}), vec![("images", "list_type")]),
        (json!({"images": [5]}), vec![("images/0", "union_type")]),
        (json!({"images": ["https://example.org/a.png"]}), vec![("images/0", "value_error")]),
        (json!({"images": ["data:image/png,abcd"]}), vec![("images/0", "value_error")]),
        (json!({"images": ["aGk=", {"content_type": "image/png"}]}), vec![("images/1/base64", "missing")]),
        (json!({"images": vec!["aGk="; 9]}), vec![("images", "too_long")]),
    ] {
        check(&with(members), &expected);
    }
}

#[test]
fn errors_of_every_kind_have_their_status_and_body() {
    let typed = |error: &DecisionError| match &error.detail {
        Detail::Typed { error_type, .. } => *error_type,
        other => panic!("{other:?}"),
    };
    for (error, status, error_type) in [
        (DecisionError::unknown_model("m"), 400, "api_usage_error"),
        (DecisionError::no_decision_model("m"), 400, "api_usage_error"),
        (DecisionError::context_length(9000, 8192), 400, "api_usage_error"),
        (DecisionError::question("q", "no labels"), 400, "api_usage_error"),
        (DecisionError::usage("x"), 400, "api_usage_error"),
        (DecisionError::wrong_key(), 401, "authentication_error"),
        (DecisionError::no_key(), 403, "authentication_error"),
        (DecisionError::origin_not_allowed("http://x"), 403, "permission_error"),
        (DecisionError::route_not_found("/x"), 404, "not_found"),
        (DecisionError::method_not_allowed("GET", "/x"), 405, "method_not_allowed"),
        (DecisionError::body_timeout(30), 408, "request_timeout"),
        (DecisionError::body_too_large(10), 413, "api_usage_error"),
        (DecisionError::media_type("x"), 415, "api_usage_error"),
        (DecisionError::rate_limited(250), 429, "rate_limit_error"),
        (DecisionError::internal("x"), 500, "internal_error"),
        (DecisionError::unavailable("x"), 503, "service_unavailable_error"),
        (DecisionError::timeout("x"), 504, "timeout_error"),
        (DecisionError::overloaded("x", 250), 529, "overloaded_error"),
    ] {
        assert_eq!((error.status, typed(&error)), (status, error_type));
        assert_eq!(error.retry_after_ms.is_some(), matches!(status, 429 | 503 | 529), "{status}");
        let body = serde_json::to_value(error.body()).unwrap();
        assert_eq!(body["detail"]["error_type"], error_type);
        assert_eq!(body["detail"]["message"], error.to_string());
    }
    assert!(DecisionError::unsupported("think", "it only reads").to_string().contains("`think`"));
    insta::assert_json_snapshot!(DecisionError::no_key().body());
    insta::assert_json_snapshot!(DecisionError::sentence("question `q` has 11 levels; at most 10 are allowed").body());
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "state",
        "questions",
        "type",
        "noul",
        "choice",
        "score",
        "box",
        "criteria",
        "instructions",
        "true",
        "assets",
        "images",
        "model",
        "steps",
        "samples",
        "auto",
        "think",
        "alone",
        "base64",
        "aGk=",
        "",
        "é🙂",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..40i64).prop_map(Value::from),
        words.clone().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
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

/// A body that is right but for a few places.
fn nearly_right() -> impl Strategy<Value = Value> {
    let question = (prop::sample::select(vec!["noul", "choice", "score", "box"]), any_json(), any_json()).prop_map(
        |(kind, criteria, instructions)| json!({"type": kind, "criteria": criteria, "instructions": instructions}),
    );
    let mostly_absent = || prop_oneof![4 => Just(Value::Null), 1 => any_json()];
    (any_json(), prop::collection::vec((".{0,3}", question), 0..4), mostly_absent(), mostly_absent()).prop_map(
        |(state, questions, knob, images)| {
            let questions: Map<_, _> = questions.into_iter().collect();
            json!({"state": state, "questions": questions, "samples": knob, "images": images})
        },
    )
}

/// A request that keeps its promises, or a client's error with a body.
fn holds(bytes: &[u8]) {
    match DecisionRequest::from_json(bytes) {
        Ok(request) => {
            assert!(!request.questions.is_empty() && request.questions.len() <= MAX_QUESTIONS);
            for question in &request.questions {
                assert!(!question.id.is_empty());
                assert!((1..=255).contains(&question.kind.outcomes()));
            }
            request.seed();
            request.state.text();
        }
        Err(error) => {
            assert!((400..500).contains(&error.status));
            let body = serde_json::to_value(error.body()).expect("a body");
            assert!(!body["detail"].is_null() && body["detail"] != json!([]));
            assert!(!error.to_string().is_empty());
        }
    }
}

proptest! {
    #[test]
    fn any_json_is_a_request_or_a_clients_error(body in prop_oneof![any_json(), nearly_right()]) {
        holds(body.to_string().as_bytes());
    }

    #[test]
    fn any_bytes_are_a_request_or_a_clients_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        holds(&bytes);
    }

    #[test]
    fn a_cut_or_spoilt_body_is_a_request_or_a_clients_error(cut in 0..200usize, at in 0..200usize, byte: u8) {
        let mut body = json!({"model": "m", "state": {"é": [1, "환"]}, "questions": {
            "q": {"type": "choice", "criteria": {"a": null, "b": ["x"]}}, "r": {"type": "score", "criteria": ["l"]}
        }}).to_string().into_bytes();
        if let Some(spoilt) = body.get_mut(at) {
            *spoilt = byte;
        }
        body.truncate(cut);
        holds(&body);
    }
}
