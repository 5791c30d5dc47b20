use axum::Json;
use axum::response::{IntoResponse, Response};
use laneway_protocol::ApiError;
use serde::Serialize;

use crate::turns::TokenPrompt;

/// What routers that weigh prompts by their tokens read.
#[derive(Serialize)]
struct Rendered {
    token_ids: Vec<u32>,
}

/// The token ids that a turn would begin with.
pub(crate) fn rendered(prompts: Vec<TokenPrompt>) -> Result<Response, ApiError> {
    match <[TokenPrompt; 1]>::try_from(prompts) {
        Ok([TokenPrompt { ids, .. }]) => Ok(Json(Rendered { token_ids: ids }).into_response()),
        Err(prompts) => {
            let message = format!("{} prompts were sent; only one is rendered at a time", prompts.len());
            Err(ApiError::field("prompt", message))
        }
    }
}
