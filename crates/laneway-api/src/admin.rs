//! What operators may look at and move: lanes, sessions and checkpoints.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_checkpoint::{Checkpoint, CheckpointId, Descriptor, Digest, Refusal as Unstored};
use laneway_protocol::ApiError;
use laneway_session::{Session, TransferError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body;
use crate::refusal::Refusal;
use crate::sessions::{SessionError, Sessions, StoreCodec};
use crate::state::{ApiState, TextModel};

/// Largest checkpoint that is taken from a request.
const IMPORT_LIMIT_BYTES: usize = 1 << 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    model: Option<String>,
    codec: Option<String>,
    namespace: Option<u64>,
    tokens: Option<bool>,
}

type Asked = Result<Query<Options>, axum::extract::rejection::QueryRejection>;

/// `GET /admin/lanes`: what every lane does.
pub(crate) async fn lanes(State(state): State<Arc<ApiState>>, options: Asked) -> Result<Json<Value>, Refusal> {
    let model = model(&state, &asked(options)?)?;
    let snapshot = model.service.metrics().snapshot();
    let rows = model.service.metrics().lanes();
    let each =
        rows.iter().enumerate().map(|(lane, row)| json!({"lane": lane, "active": row.active, "tokens": row.tokens}));
    let lanes = snapshot.lanes;
    Ok(Json(json!({
        "object": "list",
        "data": each.collect::<Vec<_>>(),
        "active": lanes.active,
        "idle": lanes.idle,
        "free": lanes.free,
        "high_water": lanes.high_water,
        "reset": lanes.reset,
        "discarded": lanes.discarded,
        "pages": {
            "total": lanes.pages_total,
            "used": lanes.pages_used,
            "cached": lanes.pages_cached,
            "evicted": lanes.evicted,
            "positions": model.page_positions,
        },
    })))
}

/// `GET /admin/sessions`: what the prefix cache holds.
pub(crate) async fn list(State(state): State<Arc<ApiState>>, options: Asked) -> Result<Json<Value>, Refusal> {
    let options = asked(options)?;
    let listed = sessions(&*model(&state, &options)?)?.list().await.map_err(refused)?;
    let each = listed.iter().map(|(id, session)| shown(*id, session, options.tokens.unwrap_or(false)));
    Ok(Json(json!({"object": "list", "data": each.collect::<Vec<_>>()})))
}

/// `DELETE /admin/sessions`: empties the prefix cache of all that nothing uses.
pub(crate) async fn clear(State(state): State<Arc<ApiState>>, options: Asked) -> Result<Json<Value>, Refusal> {
    let model = model(&state, &asked(options)?)?;
    sessions(&model)?.clear().await;
    Ok(Json(json!({"pages_used": model.service.metrics().snapshot().lanes.pages_used})))
}

/// `GET /admin/sessions/{id}`: what an export of it would consist of.
pub(crate) async fn probe(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    options: Asked,
) -> Result<Json<Value>, Refusal> {
    let options = asked(options)?;
    let (model, id) = (model(&state, &options)?, parsed(&id, "session")?);
    let session = sessions(&model)?.find(id).await.map_err(refused)?;
    let mut body = shown(id, &session, options.tokens.unwrap_or(false));
    body["pages"] = sessions(&model)?.probe(&session).iter().map(described).collect();
    Ok(Json(body))
}

/// `GET /admin/sessions/{id}/export`: the session as bytes.
pub(crate) async fn export(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    options: Asked,
) -> Result<Response, Refusal> {
    let options = asked(options)?;
    let codec = match options.codec.as_deref() {
        None => sessions(&*model(&state, &options)?)?.codec(),
        Some("exact") => StoreCodec::Exact,
        Some("cachegen") => StoreCodec::CacheGen,
        Some(other) => {
            return Err(Refusal(ApiError::field("codec", format!("there is no codec {other:?}: exact or cachegen"))));
        }
    };
    let (model, id) = (model(&state, &options)?, parsed(&id, "session")?);
    let session = sessions(&model)?.find(id).await.map_err(refused)?;
    let checkpoint = sessions(&model)?.export(session, codec).await.map_err(refused)?;
    let bytes = tokio::task::spawn_blocking(move || checkpoint.encode());
    let bytes = bytes.await.map_err(|_| ApiError::internal("the session could not be written"))?;
    let bytes = bytes.map_err(|error| refused(error.into()))?;
    let name = format!("attachment; filename=\"{}.laneway\"", &id.0.to_string()[..16]);
    let headers = [(header::CONTENT_TYPE, "application/octet-stream".to_owned()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, bytes).into_response())
}

/// `POST /admin/sessions/import`: takes what an export gave.
pub(crate) async fn import(
    State(state): State<Arc<ApiState>>,
    options: Asked,
    request: Request,
) -> Result<Response, Refusal> {
    let options = asked(options)?;
    let model = model(&state, &options)?;
    let bytes = body::read_raw(request, IMPORT_LIMIT_BYTES).await?;
    let decoded = tokio::task::spawn_blocking(move || Checkpoint::decode(&bytes)).await;
    let checkpoint = decoded.map_err(|_| ApiError::internal("the session could not be read"))?;
    let checkpoint = checkpoint.map_err(|error| refused(error.into()))?;
    let namespace = options.namespace.unwrap_or(0);
    let given = checkpoint.tokens.len();
    let kept = sessions(&model)?.import(namespace, checkpoint).await.map_err(refused)?;
    Ok((StatusCode::CREATED, Json(json!({"tokens": kept, "given": given}))).into_response())
}

/// `POST /admin/sessions/{id}/save`: stores a session as a whole.
pub(crate) async fn save(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    options: Asked,
) -> Result<Json<Value>, Refusal> {
    let (model, id) = (model(&state, &asked(options)?)?, parsed(&id, "session")?);
    let session = sessions(&model)?.find(id).await.map_err(refused)?;
    let tokens = session.tokens.len();
    let saved = sessions(&model)?.save(session).await.map_err(refused)?;
    Ok(Json(json!({"id": saved.0.to_string(), "tokens": tokens})))
}

/// `GET /admin/checkpoints`: what is stored.
pub(crate) async fn stored(State(state): State<Arc<ApiState>>, options: Asked) -> Result<Json<Value>, Refusal> {
    let listed = sessions(&*model(&state, &asked(options)?)?)?.stored().await.map_err(refused)?;
    let each = listed.iter().map(|listing| {
        json!({
            "id": listing.id.0.to_string(),
            "tokens": listing.tokens,
            "bytes": listing.bytes,
            "hits": listing.usage.hits,
            "created_ms": listing.usage.created_ms,
            "last_used_ms": listing.usage.last_used_ms,
        })
    });
    Ok(Json(json!({"object": "list", "data": each.collect::<Vec<_>>()})))
}

/// `POST /admin/checkpoints/{id}/restore`: gives the engine what is stored.
pub(crate) async fn restore(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    options: Asked,
) -> Result<Json<Value>, Refusal> {
    let options = asked(options)?;
    let (model, id) = (model(&state, &options)?, parsed(&id, "checkpoint")?);
    let kept = sessions(&model)?.restore(options.namespace.unwrap_or(0), id).await.map_err(refused)?;
    Ok(Json(json!({"tokens": kept})))
}

/// `DELETE /admin/checkpoints/{id}`.
pub(crate) async fn forget(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    options: Asked,
) -> Result<Json<Value>, Refusal> {
    let (model, id) = (model(&state, &asked(options)?)?, parsed(&id, "checkpoint")?);
    sessions(&model)?.forget(id).await.map_err(refused)?;
    Ok(Json(json!({"id": id.0.to_string(), "deleted": true})))
}

fn asked(options: Asked) -> Result<Options, Refusal> {
    options.map(|Query(options)| options).map_err(|error| Refusal(ApiError::invalid(error.body_text())))
}

fn model(state: &ApiState, options: &Options) -> Result<Arc<TextModel>, Refusal> {
    let found = match &options.model {
        Some(name) => state.find(name).ok_or_else(|| ApiError::model_not_found(name))?,
        None => state.models.first().ok_or_else(|| ApiError::model_not_found(""))?,
    };
    Ok(found.clone())
}

fn sessions(model: &TextModel) -> Result<&Sessions, Refusal> {
    let none = || ApiError::unsupported("model", format!("the sessions of {} cannot be moved", model.info.id));
    Ok(model.sessions.as_deref().ok_or_else(none)?)
}

fn parsed(id: &str, what: &'static str) -> Result<CheckpointId, Refusal> {
    Digest::from_hex(id).map(CheckpointId).ok_or_else(|| refused(SessionError::Unknown(what)))
}

fn shown(id: CheckpointId, session: &Session, with_tokens: bool) -> Value {
    let mut shown = json!({
        "id": id.0.to_string(),
        "namespace": session.namespace.to_string(),
        "tokens": session.tokens.len(),
        "active": session.active,
        "hits": session.hits,
    });
    if with_tokens {
        shown["token_ids"] = json!(session.tokens);
    }
    shown
}

fn described(page: &Descriptor) -> Value {
    json!({
        "layers": [page.layers.start, page.layers.end],
        "tokens": [page.tokens.start, page.tokens.end],
        "type": format!("{:?}", page.k_type).to_lowercase(),
        "bytes": page.payload_bytes,
    })
}

fn refused(error: SessionError) -> Refusal {
    let text = error.to_string();
    let with_status = |status: u16, code: &'static str, text: String| {
        let mut error = ApiError::invalid(text);
        (error.status, error.code) = (status, Some(code));
        error
    };
    Refusal(match error {
        SessionError::Unknown(_) => with_status(404, "not_found", text),
        SessionError::NoStore => with_status(409, "no_store", text),
        SessionError::Lossy => with_status(409, "lossy_checkpoint", text),
        SessionError::Foreign => with_status(409, "foreign_checkpoint", text),
        SessionError::Format(_) => with_status(400, "invalid_checkpoint", text),
        SessionError::Transfer(error) => match error {
            TransferError::NoPages { .. } | TransferError::Busy { .. } => ApiError::busy(1),
            TransferError::NotKept => with_status(404, "not_found", text),
            TransferError::Range { .. } | TransferError::Size { .. } => with_status(400, "invalid_checkpoint", text),
            TransferError::Unsupported => ApiError::unsupported("model", text),
            TransferError::NotLoaded | TransferError::ShuttingDown | TransferError::Cancelled => {
                ApiError::unavailable("not_ready", text)
            }
            TransferError::Engine(_) | TransferError::Internal => ApiError::internal(text),
        },
        SessionError::Refused(Unstored::TooShort) => with_status(409, "too_short", text),
        SessionError::Refused(_) => with_status(507, "not_stored", text),
        SessionError::Store(_) => ApiError::internal(text),
        SessionError::Unavailable(_) => ApiError::unavailable("not_ready", text),
    })
}
