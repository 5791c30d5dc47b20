//! Request bodies, bounded in size and time, also when they are compressed.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use laneway_protocol::ApiError;
use laneway_protocol::systemone::DecisionError;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::state::{ApiOptions, ApiState};

/// Sessions are large, and networks slow.
const RAW_TIME: Duration = Duration::from_secs(600);

/// A refused body is still read for a while: a client that is sending sees the answer only afterwards.
const DISCARD_BYTES: usize = 64 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Reads a JSON body, or says why not, if possible before it has arrived.
pub(crate) async fn read(request: Request, state: &ApiState) -> Result<Bytes, ApiError> {
    let codings = check_headers(request.headers(), state.options.body_limit_bytes, is_json);
    unpacked(receive(request, &state.options, codings).await?, None, state).await
}

/// Reads a body of any kind, of up to `limit_bytes`, which may take its time.
pub(crate) async fn read_raw(request: Request, limit_bytes: usize) -> Result<Bytes, ApiError> {
    let (parts, mut body) = request.into_parts();
    let announced =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let read = match announced {
        Some(length) if length > limit_bytes as u64 => Err(ApiError::body_too_large(limit_bytes)),
        _ => match tokio::time::timeout(RAW_TIME, collect(&mut body, limit_bytes)).await {
            Ok(read) => read,
            Err(_) => Err(ApiError::body_timeout(RAW_TIME.as_secs())),
        },
    };
    read.inspect_err(|_| discard(&parts.headers, body))
}

/// Reads a JSON body, or the part called `request` of a form.
pub(crate) async fn read_form(request: Request, state: &ApiState) -> Result<Bytes, DecisionError> {
    let headers = request.headers();
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
    let form = kind.filter(|kind| is_form(kind)).map(String::from);
    let is_accepted = |kind: &str| is_json(kind) || is_form(kind);
    let codings = match form.as_ref().and_then(|_| foreign_origin(headers, &state.options.cors_origins)) {
        Some(origin) => Err(DecisionError::origin_not_allowed(&origin)),
        None => check_headers(headers, state.options.body_limit_bytes, is_accepted).map_err(DecisionError::from),
    };
    Ok(unpacked(receive(request, &state.options, codings).await?, form, state).await?)
}

/// The page that sends a form without being allowed to: for forms, no browser asks first.
fn foreign_origin(headers: &HeaderMap, allowed: &[String]) -> Option<String> {
    let origin = headers.get(header::ORIGIN)?.as_bytes();
    let origin = String::from_utf8_lossy(origin).into_owned();
    let host = origin.split_once("://").map(|(_, host)| host.as_bytes());
    let is_own = host.is_some() && host == headers.get(header::HOST).map(HeaderValue::as_bytes);
    let is_named = allowed.iter().any(|name| name == "*" || name.trim_end_matches('/') == origin);
    (!is_own && !is_named).then_some(origin)
}

/// A body as it was sent, and how it is compressed, in the order in which to undo it.
type Coded = (Bytes, Vec<Coding>);

async fn receive<E: From<ApiError>>(
    request: Request,
    options: &ApiOptions,
    codings: Result<Vec<Coding>, E>,
) -> Result<Coded, E> {
    let (parts, mut body) = request.into_parts();
    let headers = &parts.headers;
    let codings = match codings {
        Ok(codings) => codings,
        Err(error) => {
            discard(headers, body);
            return Err(error);
        }
    };
    let reading = collect(&mut body, options.body_limit_bytes);
    match tokio::time::timeout(options.body_timeout, reading).await {
        Ok(Ok(bytes)) => Ok((bytes, codings)),
        Ok(Err(error)) => {
            discard(headers, body);
            Err(error.into())
        }
        Err(_) => Err(ApiError::body_timeout(options.body_timeout.as_secs()).into()),
    }
}

/// Undoes compression and form, which a small body may make long work of.
async fn unpacked(coded: Coded, form: Option<String>, state: &ApiState) -> Result<Bytes, ApiError> {
    let limit = state.options.body_limit_bytes;
    if coded.1.is_empty() && form.is_none() {
        return Ok(coded.0);
    }
    let unpack = move || {
        let bytes = decode(coded, limit)?;
        match form {
            Some(content_type) => form_request(&content_type, bytes),
            None => Ok(bytes),
        }
    };
    state.tokenise(usize::MAX, unpack).await?
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Coding {
    Gzip,
    Deflate,
    Zstd,
}

fn check_headers(
    headers: &HeaderMap,
    limit: usize,
    is_accepted: impl Fn(&str) -> bool,
) -> Result<Vec<Coding>, ApiError> {
    match headers.get(header::CONTENT_TYPE) {
        Some(kind) => {
            let kind = String::from_utf8_lossy(kind.as_bytes());
            if !is_accepted(&kind) {
                return Err(ApiError::not_json(&kind));
            }
        }
        // A page of any origin may send a body without a type; with JSON's, its browser asks first.
        None if headers.contains_key(header::ORIGIN) => return Err(ApiError::not_json("a body of no type")),
        None => {}
    }
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match announced {
        Some(length) if length > limit as u64 => Err(ApiError::body_too_large(limit)),
        _ => codings(headers),
    }
}

/// A body compressed more than twice is somebody's joke.
const MOST_CODINGS: usize = 2;

fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, ApiError> {
    let mut codings = Vec::new();
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let value = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        for name in value.split(',').map(str::trim) {
            codings.push(match name {
                "" | "identity" => continue,
                "gzip" | "x-gzip" => Coding::Gzip,
                "deflate" => Coding::Deflate,
                "zstd" => Coding::Zstd,
                other => return Err(ApiError::unknown_coding(other)),
            });
        }
    }
    if codings.len() > MOST_CODINGS {
        return Err(ApiError::unknown_coding("more than two codings"));
    }
    codings.reverse();
    Ok(codings)
}

fn decode((mut bytes, codings): Coded, limit: usize) -> Result<Bytes, ApiError> {
    for coding in codings {
        bytes = coding.decode(&bytes, limit)?;
    }
    Ok(bytes)
}

/// Why a body cannot be unpacked.
enum Fault {
    Broken,
    TooLarge,
}

impl Coding {
    fn decode(self, bytes: &[u8], limit: usize) -> Result<Bytes, ApiError> {
        let decoded = match self {
            Self::Gzip => bounded(flate2::read::MultiGzDecoder::new(bytes), limit),
            // Some clients leave zlib's header out.
            Self::Deflate => match bounded(flate2::read::ZlibDecoder::new(bytes), limit) {
                Err(Fault::Broken) => bounded(flate2::read::DeflateDecoder::new(bytes), limit),
                decoded => decoded,
            },
            Self::Zstd => unpack_zstd(bytes, limit),
        };
        decoded.map(Bytes::from).map_err(|fault| match fault {
            Fault::TooLarge => ApiError::body_too_large(limit),
            Fault::Broken => ApiError::invalid(format!("the request body is no valid {} data", self.name())),
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        }
    }
}

/// Reads one byte over the limit at most.
fn bounded(reader: impl Read, limit: usize) -> Result<Vec<u8>, Fault> {
    let mut decoded = Vec::new();
    reader.take(limit as u64 + 1).read_to_end(&mut decoded).map_err(|_| Fault::Broken)?;
    if decoded.len() > limit { Err(Fault::TooLarge) } else { Ok(decoded) }
}

/// Whoever sends more frames than this wants the work of beginning them.
const MOST_FRAMES: usize = 1024;

fn unpack_zstd(mut bytes: &[u8], limit: usize) -> Result<Vec<u8>, Fault> {
    let mut decoded = Vec::new();
    for _ in 0..MOST_FRAMES {
        if bytes.is_empty() {
            return Ok(decoded);
        }
        let mut frame = FrameDecoder::new();
        match frame.init(&mut bytes) {
            Ok(()) => {}
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                bytes = bytes.get(length as usize..).ok_or(Fault::Broken)?;
                continue;
            }
            Err(_) => return Err(Fault::Broken),
        }
        // A stream would begin only once the window that the frame says it needs, up to terabytes, is full.
        let left = limit - decoded.len();
        frame
            .decode_blocks(&mut bytes, BlockDecodingStrategy::UptoBytes(left.saturating_add(1)))
            .map_err(|_| Fault::Broken)?;
        if !frame.is_finished() || frame.can_collect() > left {
            return Err(Fault::TooLarge);
        }
        decoded.extend(frame.collect().unwrap_or_default());
    }
    if bytes.is_empty() { Ok(decoded) } else { Err(Fault::Broken) }
}

/// The JSON part of a form; its other parts are images, which no model here can see.
fn form_request(content_type: &str, bytes: Bytes) -> Result<Bytes, ApiError> {
    let broken = |error: multer::Error| ApiError::invalid(format!("the form could not be read: {error}"));
    let boundary = multer::parse_boundary(content_type).map_err(broken)?;
    let whole = futures::stream::once(async { Ok::<_, std::convert::Infallible>(bytes) });
    let mut form = multer::Multipart::new(whole, boundary);
    // The whole body is there, so nothing is waited for.
    futures::executor::block_on(async {
        while let Some(field) = form.next_field().await.map_err(broken)? {
            if field.name() == Some("request") {
                return field.bytes().await.map_err(broken);
            }
        }
        Err(ApiError::invalid("the form has no part called `request`"))
    })
}

fn is_form(content_type: &str) -> bool {
    essence(content_type) == "multipart/form-data"
}

fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type);
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
#[path = "body_tests.rs"]
mod tests;
