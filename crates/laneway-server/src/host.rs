//! The engine behind `serve` and `chat`: a worker thread that opens it from files.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::executor::block_on;
use laneway_api::Worker;
use laneway_engine::{DeviceSummary, EngineSettings, ModelEngine};
use laneway_session::{Cancel, Engine, EngineLimits, Request, ServiceConfig};

use crate::load::{self, TextSide};
use crate::output;
use crate::settings::ModelSettings;

/// Which engine a turn needs; the one that is open is kept while this is equal.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineKey {
    path: PathBuf,
    settings: EngineSettings,
}

/// What was opened.
pub struct Opened {
    pub device: DeviceSummary,
    pub limits: EngineLimits,
    pub weight_bytes: u64,
    pub elapsed: Duration,
}

/// A worker that has not opened anything yet, and where it tells what it opens.
pub struct Host {
    pub worker: Worker<EngineKey>,
    pub request: Request<EngineKey>,
    pub opened: Receiver<Opened>,
}

impl Host {
    /// Starts the thread; the model is kept for as long as the process lives.
    pub fn start(settings: &ModelSettings, text: &TextSide, config: ServiceConfig) -> Result<Self> {
        let (sender, opened) = channel();
        let opener = move |key: &EngineKey, cancel: &Cancel| {
            let start = Instant::now();
            let mut engine = open(key, cancel).map_err(|error| output::one_line(&error))?;
            let opening = start.elapsed();
            let warm_up = block_on(engine.warm_up()).map_err(|error| format!("the first step failed: {error}"))?;
            let warm_up_ms = (start.elapsed() - opening).as_millis() as u64;
            tracing::info!(?warm_up, warm_up_ms, "the engine is warm");
            // Nobody may be listening any more.
            drop(sender.send(Opened {
                device: engine.device().clone(),
                limits: engine.limits(),
                weight_bytes: engine.weight_bytes(),
                elapsed: start.elapsed(),
            }));
            Ok(engine)
        };
        let worker = Worker::spawn("engine", config, opener)?;
        let settings = ModelSettings { lanes: Some(text.lanes), ..settings.clone() };
        let pool_positions = settings.pool_positions(text.lanes);
        let settings = EngineSettings { pool_positions, ..engine_settings(&settings, text.context_length) };
        let request = Request { settings: EngineKey { path: text.path.clone(), settings }, idle_timeout_ms: None };
        Ok(Self { worker, request, opened })
    }
}

/// A service that keeps its model, behind a queue of this depth.
pub fn service(queue_depth: usize) -> ServiceConfig {
    ServiceConfig { queue_depth, idle_timeout_ms: u64::MAX, ..ServiceConfig::default() }
}

/// The engine's part of the settings.
pub fn engine_settings(settings: &ModelSettings, context_length: usize) -> EngineSettings {
    EngineSettings {
        device: settings.device.clone(),
        lanes: settings.lanes.unwrap_or(1),
        context_length: Some(context_length),
        pool_positions: None,
        threads: settings.threads,
        stages: settings.stages.clone(),
        kv_type: settings.kv_type,
    }
}

fn open(key: &EngineKey, cancel: &Cancel) -> Result<ModelEngine> {
    let weights = load::open(&key.path)?;
    if cancel.is_cancelled() {
        anyhow::bail!("loading was cancelled");
    }
    Ok(block_on(ModelEngine::open(&weights, &key.settings))?)
}
