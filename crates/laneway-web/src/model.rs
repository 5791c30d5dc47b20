use crate::driver::Driver;
use crate::error::WebError;
use crate::promise::promise;
use crate::timings;
use js_sys::{Object, Promise, Reflect, Uint32Array};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

/// A model on the browser's graphics device; one call at a time.
#[wasm_bindgen]
pub struct Model {
    /// Empty while a call runs.
    driver: Rc<RefCell<Option<Driver>>>,
}

#[wasm_bindgen]
impl Model {
    /// Reads the bytes of a GGUF file and puts its weights on the device.
    ///
    /// `context_length` is the number of positions, prompt and answer together; 4096 or the model's own limit if absent.
    #[wasm_bindgen(unchecked_return_type = "Promise<Model>")]
    pub fn load(bytes: Vec<u8>, context_length: Option<u32>) -> Promise {
        promise(async move {
            let driver = Driver::open(bytes, context_length.map(|n| n as usize)).await?;
            Ok(Self { driver: Rc::new(RefCell::new(Some(driver))) }.into())
        })
    }

    /// Continues the prompt greedily by `count` tokens, or fewer where the context ends; resolves to their ids.
    #[wasm_bindgen(unchecked_return_type = "Promise<Uint32Array>")]
    pub fn generate(&self, prompt: Vec<u32>, count: u32) -> Promise {
        self.call(async move |driver| {
            let ids = driver.generate(prompt, count as usize).await?;
            Ok(Uint32Array::from(ids.as_slice()).into())
        })
    }

    /// Runs `count` decode steps twice, waiting for each and with one in flight, and resolves to what they took.
    #[wasm_bindgen(js_name = stepTimings, unchecked_return_type = "Promise<Record<string, number>>")]
    pub fn step_timings(&self, count: u32) -> Promise {
        self.call(async move |driver| {
            let timings = timings::measure(driver, count as usize).await?;
            Ok(object(&[
                ("plan_us", timings.plan_us.into()),
                ("submit_us", timings.submit_us.into()),
                ("wait_ms", timings.wait_ms.into()),
                ("per_token_ms", timings.per_token_ms.into()),
                ("dispatches", (timings.dispatches as f64).into()),
            ]))
        })
    }

    /// Loses the device on purpose, for tests of recovery; every later call rejects.
    #[wasm_bindgen(js_name = loseDevice, unchecked_return_type = "Promise<void>")]
    pub fn lose_device(&self) -> Promise {
        self.call(async move |driver| {
            driver.borrow_engine()?.lose_device();
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Resolves to the device's name and API, bytes of weights, the size of the vocabulary and of the context.
    #[wasm_bindgen(unchecked_return_type = "Promise<Record<string, string | number>>")]
    pub fn describe(&self) -> Promise {
        self.call(async move |driver| {
            let facts = driver.facts();
            Ok(object(&[
                ("device", facts.device.name.as_str().into()),
                ("api", facts.device.api.as_str().into()),
                ("weight_bytes", (facts.weight_bytes as f64).into()),
                ("vocab", (facts.vocab as f64).into()),
                ("context_length", (facts.context_length as f64).into()),
            ]))
        })
    }
}

impl Model {
    fn call(&self, work: impl AsyncFnOnce(&mut Driver) -> Result<JsValue, WebError> + 'static) -> Promise {
        let home = self.driver.clone();
        promise(async move {
            let mut driver = home.take().ok_or(WebError::Busy)?;
            let result = work(&mut driver).await;
            home.replace(Some(driver));
            result
        })
    }
}

pub fn object(fields: &[(&str, JsValue)]) -> JsValue {
    let object = Object::new();
    for (name, value) in fields {
        Reflect::set(&object, &(*name).into(), value).expect("a new object takes any field");
    }
    object.into()
}
