use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::request::REQUEST_ID;

/// Lets pages of these origins call the API; `None` if there are none.
pub(crate) fn layer(origins: &[String]) -> Option<CorsLayer> {
    let values: Vec<HeaderValue> =
        origins.iter().filter_map(|origin| origin.trim_end_matches('/').parse().ok()).collect();
    let allowed = match values.as_slice() {
        [] => return None,
        values if values.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        _ => AllowOrigin::list(values),
    };
    let named = ["retry-after-ms", "server-timing", "x-typesafe-request-id"].map(HeaderName::from_static);
    let exposed: Vec<_> = [REQUEST_ID, header::RETRY_AFTER].into_iter().chain(named).collect();
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(exposed)
            .allow_private_network(true)
            .max_age(Duration::from_secs(600)),
    )
}
