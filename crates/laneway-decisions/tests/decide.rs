//! A request answered around a function that runs a read.

#![allow(clippy::unwrap_used)]

mod lab;

use std::cell::RefCell;
use std::future::{Future, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use lab::{CANVAS_WORDS, byte_level, hashed, limits, reader, readings, request, run};
use laneway_decisions::{
    DecideError, PartLogits, PlanError, ReadError, ReadPart, Reader, ReaderOptions, Readout, decide,
};
use laneway_protocol::systemone::{Answers, DecisionRequest};
use serde_json::json;

const CONTEXT: usize = 8192;

fn canvas() -> Reader {
    let options = ReaderOptions { isolated: true, ..ReaderOptions::default() };
    reader(byte_level(&CANVAS_WORDS), Readout::Canvas(limits(64, 300)), options)
}

fn asked() -> DecisionRequest {
    request(json!({"state": "s", "questions": {
        "a": {"type": "noul", "instructions": "A?"}, "b": {"type": "score", "criteria": ["low", "high"]}}}))
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits"),
    }
}

fn model(part: ReadPart) -> PartLogits {
    run(&[part], &hashed).remove(0)
}

#[test]
fn a_decision_is_a_plan_read_to_its_end() {
    let (reader, request) = (canvas(), asked());
    let decided = now(decide(&reader, &request, CONTEXT, async |part| Ok::<_, String>(model(part)))).unwrap();
    let plan = reader.plan(&request, CONTEXT).unwrap();
    assert_eq!(decided, Answers::new(&request, readings(&plan, &hashed)).unwrap());
}

#[test]
fn reads_are_all_asked_for_before_the_first_is_awaited() {
    let (reader, request) = (canvas(), asked());
    let events = RefCell::new(Vec::new());
    let unsure = |part: ReadPart| {
        events.borrow_mut().push("asked");
        let logits = run(&[part], &|_: &[u32], _: &laneway_session::Branch, _, _| 0.0).remove(0);
        let events = &events;
        async move {
            events.borrow_mut().push("awaited");
            Ok::<_, String>(logits)
        }
    };
    now(decide(&reader, &request, CONTEXT, unsure)).unwrap();
    let round = ["asked", "asked", "awaited", "awaited"];
    assert_eq!(events.into_inner(), [round, round].concat());
}

#[test]
fn whatever_fails_is_told() {
    let (reader, request) = (canvas(), asked());
    let failed = now(decide(&reader, &request, CONTEXT, |_| ready(Err("the engine is gone"))));
    assert_eq!(failed, Err(DecideError::Read("the engine is gone")));
    assert_eq!(failed.unwrap_err().to_string(), "a read failed: the engine is gone");
    let short = now(decide(&reader, &request, CONTEXT, |_| ready(Ok::<_, String>(Vec::new()))));
    assert_eq!(short, Err(DecideError::Logits(ReadError::Mismatch)));
    let long = now(decide(&reader, &request, 9, |part| ready(Ok::<_, String>(model(part)))));
    assert!(matches!(long, Err(DecideError::Plan(PlanError::TooLong { context: 9, .. }))));
}
