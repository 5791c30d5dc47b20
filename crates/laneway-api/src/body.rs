//! Request bodies, bounded in size and time.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use laneway_protocol::ApiError;

use crate::state::ApiOptions;

/// A refused body is still read for a while: a client that is sending sees the answer only afterwards.
const DISCARD_BYTES: usize = 64 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Reads a JSON body, or says why not, if possible before it has arrived.
pub(crate) async fn read(request: Request, options: &ApiOptions) -> Result<Bytes, ApiError> {
    let (parts, mut body) = request.into_parts();
    let headers = &parts.headers;
    if let Err(error) = check_headers(headers, options.body_limit_bytes) {
        discard(headers, body);
        return Err(error);
    }
    let reading = collect(&mut body, options.body_limit_bytes);
    match tokio::time::timeout(options.body_timeout, reading).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            discard(headers, body);
            Err(error)
        }
        Err(_) => Err(ApiError::body_timeout(options.body_timeout.as_secs())),
    }
}

fn check_headers(headers: &HeaderMap, limit: usize) -> Result<(), ApiError> {
    if let Some(kind) = headers.get(header::CONTENT_TYPE) {
        let kind = String::from_utf8_lossy(kind.as_bytes());
        if !is_json(&kind) {
            return Err(ApiError::not_json(&kind));
        }
    }
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        let shown = String::from_utf8_lossy(encoding.as_bytes());
        return Err(ApiError::not_json(&format!("a body encoded as {shown}")));
    }
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match announced {
        Some(length) if length > limit as u64 => Err(ApiError::body_too_large(limit)),
        _ => Ok(()),
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.is_empty() || essence == "application/json" || essence.ends_with("+json")
}

async fn collect(body: &mut Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid("the request body could not be read"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if collected.len() + data.len() > limit {
            return Err(ApiError::body_too_large(limit));
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.freeze())
}

fn discard(headers: &HeaderMap, mut body: Body) {
    // Reading would invite a body that the client has not begun to send.
    if headers.contains_key(header::EXPECT) {
        return;
    }
    tokio::spawn(tokio::time::timeout(DISCARD_TIME, async move {
        let mut left = DISCARD_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clearly_other_content_types_are_refused() {
        for kind in
            ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/ld+json", ""]
        {
            assert!(is_json(kind), "{kind}");
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "jsonp"] {
            assert!(!is_json(kind), "{kind}");
        }
    }
}
