use crate::clock::precise_ms;
use crate::error::WebError;
use crate::model::object;
use crate::promise::promise;
use burn::tensor::Tensor;
use js_sys::Promise;
use laneway_kernels::{AdapterChoice, Gpu};
use wasm_bindgen::prelude::wasm_bindgen;

/// Runs `count` small tensor operations through burn, one after another, and resolves to host and total time of each.
#[wasm_bindgen(js_name = burnLaunch, unchecked_return_type = "Promise<Record<string, number>>")]
pub fn burn_launch(count: u32) -> Promise {
    promise(async move {
        let gpu = Gpu::open(&AdapterChoice::Any).await.map_err(|e| WebError::Measure(e.to_string()))?;
        let mut values = Tensor::<1>::zeros([64], gpu.tensors());
        // The first read waits for kernels to be compiled.
        values = values + 1.0;
        read(values.clone()).await?;
        let began = precise_ms();
        for _ in 0..count {
            values = values + 1.0;
        }
        let launched = precise_ms();
        let sum = read(values).await?;
        let ended = precise_ms();
        let launches = f64::from(count);
        Ok(object(&[
            ("launch_us", (1e3 * (launched - began) / launches).into()),
            ("total_us", (1e3 * (ended - began) / launches).into()),
            ("launches", launches.into()),
            ("value", f64::from(sum).into()),
        ]))
    })
}

async fn read(values: Tensor<1>) -> Result<f32, WebError> {
    let data = values.into_data_async().await.map_err(|e| WebError::Measure(format!("{e:?}")))?;
    let first = data.iter::<f32>().next();
    first.ok_or_else(|| WebError::Measure("the tensor is empty".into()))
}
