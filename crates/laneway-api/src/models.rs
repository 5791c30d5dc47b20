use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use laneway_protocol::ApiError;
use laneway_protocol::models::{ModelCard, ModelInfo, ModelList};

use crate::refusal::Refusal;
use crate::state::{ApiState, Health, Phase};

/// The models that answer now.
pub(crate) async fn list(State(state): State<Arc<ApiState>>) -> Json<ModelList> {
    let ready = |model: &&Arc<_>| is_ready(&state, model);
    let infos: Vec<ModelInfo> = state.models.iter().filter(ready).map(|model| model.info.clone()).collect();
    Json(ModelList::new(&infos))
}

/// One model, by any of its names.
pub(crate) async fn one(
    State(state): State<Arc<ApiState>>,
    Path(name): Path<String>,
) -> Result<Json<ModelCard>, Refusal> {
    match state.find(&name) {
        Some(model) => Ok(Json(model.info.card())),
        None => Err(Refusal(ApiError::model_not_found(&name))),
    }
}

fn is_ready(state: &ApiState, model: &crate::TextModel) -> bool {
    state.phase() < Phase::Closing && model.service.health() == Health::Ready
}
