//! A server without a model, for trying clients: `scripted_server PORT [API_KEY]`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use axum::Router;
use common::{Script, ScriptService};
use laneway_api::{ApiOptions, ApiState, ServeOptions, router, serve};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse().ok()).unwrap_or(8000);
    let service = Arc::new(ScriptService::new(Script::default()));
    let options = ApiOptions { api_key: arguments.next(), ..ApiOptions::default() };
    let state = Arc::new(ApiState::new(vec![common::model(service)], options));
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on {}", listener.local_addr()?);
    let app = router(state.clone(), Router::new());
    serve(listener, app, state, ServeOptions::default(), std::future::pending()).await;
    Ok(())
}
