use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use laneway_protocol::ApiError;
use serde::Serialize;

use crate::refusal::Refusal;
use crate::state::{ApiState, Health, Phase};

#[derive(Serialize)]
pub(crate) struct Healthy {
    status: &'static str,
}

/// 200 while every model answers, else 503 with the reason.
pub(crate) async fn answer(State(state): State<Arc<ApiState>>) -> Result<Json<Healthy>, Refusal> {
    if state.phase() != Phase::Serving {
        return Err(unavailable("draining", "the server is draining"));
    }
    for model in &state.models {
        let id = &model.info.id;
        match model.service.health() {
            Health::Ready => {}
            Health::Loading => return Err(unavailable("loading", format!("{id} is being loaded"))),
            Health::Failed(reason) => {
                return Err(unavailable("engine_failed", format!("{id}: {reason}")));
            }
            Health::Stuck { since_ms } => {
                return Err(unavailable("engine_stuck", format!("{id} has made no progress for {since_ms} ms")));
            }
        }
    }
    Ok(Json(Healthy { status: "ok" }))
}

fn unavailable(code: &'static str, message: impl Into<String>) -> Refusal {
    Refusal(ApiError::unavailable(code, message))
}
