//! The JSON of decisions, in both APIs' shapes.

use laneway_protocol::decisions::{DecisionsRequest, DecisionsResponse};
use laneway_protocol::systemone::{
    Answer, Answers, DecisionRequest, Distribution, ReadUsage, Reading, SystemOneResponse,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const USAGE: ReadUsage = ReadUsage { input_tokens: 120, output_tokens: 12, cached_tokens: 100, computed_tokens: 32 };

fn request(questions: Value) -> DecisionRequest {
    let body = json!({"state": "s", "questions": questions});
    DecisionRequest::from_json(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn reading(weights: &[f64]) -> Reading {
    Reading::new(Distribution::new(weights.to_vec()).expect("weights"))
}

#[test]
fn system_one_answers_have_the_official_fields() {
    let request = request(json!({
        "spam": {"type": "noul"},
        "팀": {"type": "choice", "criteria": {"Sales": null, "환불": "Payments", "Other": null}},
        "anger": {"type": "score", "criteria": ["Calm", {"level": ["Frustrated"]}, "Very angry"]},
    }));
    let readings = vec![reading(&[3.0, 1.0]), reading(&[0.125, 0.75, 0.125]), reading(&[0.0, 0.25, 0.75])];
    let answers = Answers::new(&request, readings).unwrap();
    insta::assert_json_snapshot!(SystemOneResponse::new("tiny", answers, USAGE));
}

#[test]
fn extras_are_told_when_asked_for_and_finite() {
    let request = request(json!({
        "a": {"type": "noul"}, "b": {"type": "choice", "criteria": {"x": null}}, "c": {"type": "noul"},
    }));
    let readings = vec![
        reading(&[1.0, 1.0]).with_entropy().with_samples(4).with_std_error(0.125),
        reading(&[1.0]).with_entropy(),
        reading(&[0.0, 0.0]).with_std_error(f64::NAN),
    ];
    let answers = Answers::new(&request, readings).unwrap();
    assert_eq!(
        serde_json::to_value(&answers).unwrap(),
        json!({
            "a": {"type": "noul", "noul": 0.5, "x_entropy": std::f64::consts::LN_2, "x_samples": 4, "x_std_error": 0.125},
            "b": {"type": "choice", "choice": "x", "probabilities": {"x": 1.0}, "confidence": 1.0, "x_entropy": 0.0},
            "c": {"type": "noul", "noul": 0.5},
        })
    );
}

#[test]
fn forced_answers_are_certain() {
    let request = request(json!({
        "one": {"type": "choice", "criteria": {"only": null}}, "level": {"type": "score", "criteria": ["l"]},
    }));
    let answers = Answers::new(&request, vec![reading(&[0.3]), reading(&[7.0])]).unwrap();
    assert_eq!(
        serde_json::to_value(&answers).unwrap(),
        json!({
            "one": {"type": "choice", "choice": "only", "probabilities": {"only": 1.0}, "confidence": 1.0},
            "level": {"type": "score", "score": 0.0, "legend": {"0": "l"}, "probabilities": {"0": 1.0}, "confidence": 1.0},
        })
    );
}

#[test]
fn readings_that_do_not_fit_the_questions_give_no_answers() {
    let request = request(json!({"a": {"type": "noul"}, "b": {"type": "score", "criteria": ["l", "m", "n"]}}));
    assert!(Answers::new(&request, vec![reading(&[1.0, 1.0])]).is_none());
    assert!(Answers::new(&request, vec![reading(&[1.0, 1.0]), reading(&[1.0, 1.0])]).is_none());
    assert!(Answers::new(&request, vec![reading(&[1.0]), reading(&[1.0, 1.0, 1.0])]).is_none());
    assert!(Answers::new(&request, vec![reading(&[1.0, 1.0]), reading(&[1.0, 1.0, 1.0])]).is_some());
}

#[test]
fn openai_answers_have_the_fields_of_its_client() {
    let body = json!({
        "model": "tiny", "input": "i",
        "questions": [
            {"type": "predicate", "instructions": "Spam?", "name": "spam"},
            {"type": "choice", "instructions": "Which?", "choices": [{"value": "true"}, {"value": true}, {"value": "환불"}]},
            {"type": "score", "instructions": "How?", "name": "anger", "levels": [
                {"label": "calm"}, {"label": "cross", "description": "Raises the voice"}]},
        ],
    });
    let DecisionsRequest { request, shape } = DecisionsRequest::from_json(body.to_string().as_bytes()).unwrap();
    let readings = vec![reading(&[3.0, 1.0]), reading(&[0.125, 0.75, 0.125]), reading(&[0.25, 0.75])];
    let answers = Answers::new(&request, readings).unwrap();
    insta::assert_json_snapshot!(DecisionsResponse::new("tiny", &shape, answers, USAGE));
}

proptest! {
    #[test]
    fn any_readings_give_answers_that_add_up(
        rows in prop::collection::vec(prop::collection::vec(prop_oneof![0.0..1.0, Just(0.0), Just(f64::MAX)], 2..=10), 1..8)
    ) {
        let questions: Map<_, _> = rows.iter().enumerate().map(|(index, row)| {
            let levels: Vec<String> = (0..row.len()).map(|level| format!("l{level}")).collect();
            let options: Map<_, _> = levels.iter().map(|level| (level.clone(), Value::Null)).collect();
            let question = match index % 2 {
                0 => json!({"type": "score", "criteria": levels}),
                _ => json!({"type": "choice", "criteria": options}),
            };
            (index.to_string(), question)
        }).collect();
        let request = request(Value::Object(questions));
        let answers = Answers::new(&request, rows.iter().map(|row| reading(row).with_entropy()).collect()).unwrap();
        let wire = serde_json::to_value(&answers).unwrap();
        for ((id, answer), row) in answers.iter().zip(&rows) {
            let wire = &wire[id];
            let probabilities = wire["probabilities"].as_object().unwrap();
            let listed: Vec<f64> = probabilities.values().map(|p| p.as_f64().unwrap()).collect();
            prop_assert_eq!(listed.len(), row.len());
            prop_assert!((listed.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!((0.0..=1.0).contains(&wire["confidence"].as_f64().unwrap()));
            prop_assert!(wire["x_entropy"].as_f64().unwrap() >= 0.0);
            match answer {
                Answer::Choice(_) => {
                    let chosen = probabilities[wire["choice"].as_str().unwrap()].as_f64().unwrap();
                    prop_assert!(listed.iter().all(|p| *p <= chosen));
                }
                _ => {
                    let expected: f64 = listed.iter().enumerate().map(|(level, p)| level as f64 * p).sum();
                    prop_assert!((wire["score"].as_f64().unwrap() - expected).abs() < 1e-9);
                    prop_assert_eq!(wire["legend"].as_object().unwrap().len(), row.len());
                }
            }
        }
    }
}
