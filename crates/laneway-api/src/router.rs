use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Router, http};
use laneway_protocol::ApiError;
use tower_http::catch_panic::CatchPanicLayer;

use crate::refusal::Refusal;
use crate::state::ApiState;
use crate::systemone::DecisionRefusal;
use crate::{admin, auth, chat, completions, cors, health, metrics, models, request, systemone};

/// The API over `state`, with the routes of `pages` beside it; `pages` has no fallback of its own.
pub fn router(state: Arc<ApiState>, pages: Router) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(chat::answer))
        .route("/v1/chat/completions/render", post(chat::render))
        .route("/v1/completions", post(completions::answer))
        .route("/v1/completions/render", post(completions::render))
        .route("/v1/systemone", post(systemone::answer))
        .route("/systemone", post(systemone::answer))
        .route("/v1/decisions", post(systemone::decisions))
        .route("/debug/systemone", get(systemone::render))
        .route("/admin/lanes", get(admin::lanes))
        .route("/admin/sessions", get(admin::list).delete(admin::clear))
        .route("/admin/sessions/import", post(admin::import))
        .route("/admin/sessions/{id}", get(admin::probe))
        .route("/admin/sessions/{id}/save", post(admin::save))
        .route("/admin/sessions/{id}/export", get(admin::export))
        .route("/admin/checkpoints", get(admin::stored))
        .route("/admin/checkpoints/{id}", delete(admin::forget))
        .route("/admin/checkpoints/{id}/restore", post(admin::restore))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/health", get(health::answer))
        .route("/metrics", get(metrics::answer))
        .with_state(state.clone())
        .merge(pages)
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_route)
        .layer(CatchPanicLayer::custom(request::panicked))
        .layer(from_fn_with_state(state.clone(), auth::check));
    let routes = match cors::layer(&state.options.cors_origins) {
        Some(cors) => routes.layer(cors),
        None => routes,
    };
    routes.layer(map_response(forbid_sniffing)).layer(from_fn_with_state(state, request::trace))
}

async fn unknown_route(request: Request) -> Refusal {
    Refusal(ApiError::route_not_found(request.uri().path()))
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let error = ApiError::method_not_allowed(request.method().as_str(), path);
    if systemone::is_path(path) { DecisionRefusal::from(error).into_response() } else { Refusal(error).into_response() }
}

async fn forbid_sniffing(mut response: Response) -> Response {
    response.headers_mut().insert(http::header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    response
}
