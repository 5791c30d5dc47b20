use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen]
extern "C" {
    /// Milliseconds since the worker began.
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    pub fn precise_ms() -> f64;
}

/// The clock as the service counts it.
pub fn now_ms() -> u64 {
    precise_ms() as u64
}
