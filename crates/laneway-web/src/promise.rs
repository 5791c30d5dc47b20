//! Promises that settle even when Rust panics: wasm has no unwinding, so a panic ends the task without an answer.

use crate::error::WebError;
use js_sys::{Function, Promise};
use std::cell::RefCell;
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::spawn_local;

thread_local! {
    static CALLS: RefCell<Calls> = RefCell::default();
}

/// Calls that have not been answered.
#[derive(Default)]
struct Calls {
    next: u64,
    open: Vec<(u64, Function)>,
    panicked: Option<String>,
}

/// From now on a panic rejects all open promises with its message.
pub fn reject_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        console_error_panic_hook::hook(info);
        fail_all(&info.to_string());
    }));
}

/// A promise of `work`'s result.
pub fn promise(work: impl Future<Output = Result<JsValue, WebError>> + 'static) -> Promise {
    let mut work = Some(work);
    Promise::new(&mut |resolve, reject| {
        // The executor is called once.
        let Some(work) = work.take() else { return };
        match enter(&reject) {
            Ok(call) => spawn_local(async move {
                let result = work.await;
                leave(call);
                settle(result, &resolve, &reject);
            }),
            Err(error) => settle(Err(error), &resolve, &reject),
        }
    })
}

fn settle(result: Result<JsValue, WebError>, resolve: &Function, reject: &Function) {
    let (function, value) = match result {
        Ok(value) => (resolve, value),
        Err(error) => (reject, error.into()),
    };
    // The functions of a promise do not throw.
    let _ = function.call1(&JsValue::UNDEFINED, &value);
}

fn enter(reject: &Function) -> Result<u64, WebError> {
    CALLS.with_borrow_mut(|calls| {
        if let Some(reason) = &calls.panicked {
            return Err(WebError::Panicked(reason.clone()));
        }
        calls.next += 1;
        calls.open.push((calls.next, reject.clone()));
        Ok(calls.next)
    })
}

fn leave(call: u64) {
    CALLS.with_borrow_mut(|calls| calls.open.retain(|(number, _)| *number != call));
}

fn fail_all(reason: &str) {
    let open = CALLS.with_borrow_mut(|calls| {
        calls.panicked.get_or_insert(reason.to_owned());
        std::mem::take(&mut calls.open)
    });
    for (_, reject) in open {
        let _ = reject.call1(&JsValue::UNDEFINED, &WebError::Panicked(reason.to_owned()).into());
    }
}
