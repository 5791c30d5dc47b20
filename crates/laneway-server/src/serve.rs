//! `laneway serve`.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use axum::Router;
use axum::http::header;
use axum::response::Html;
use axum::routing::get;
use laneway_api::checkpoint::{self, FileStore};
use laneway_api::{
    ApiOptions, ApiState, CheckpointOptions, ModelScope, ServeOptions, Sessions, TextModel, WorkerService, router,
};
use laneway_protocol::SamplingOptions;
use laneway_protocol::models::ModelInfo;
use laneway_session::ServiceConfig;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::host::{self, Host, Opened};
use crate::load::{PAGE_POSITIONS, TextSide, content_files, text_side};
use crate::output::{bytes, one_line, print};
use crate::settings::{CheckpointSettings, ServeSettings, Usage};
use crate::telemetry;
use crate::tokenizer::Origin;

const CHAT_PAGE: &str = include_str!("../../../web/chat.html");
/// The page talks to this server only, and runs nothing but what it brings.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                           connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A step on a software adapter can take tens of seconds; beyond this something hangs.
const STUCK_AFTER_MS: u64 = 180_000;
/// For storing what the engine has when the server ends.
const STORE_TIME: Duration = Duration::from_secs(20);

/// Serves until told to end.
pub fn run(settings: &ServeSettings) -> Result<()> {
    let text = text_side(&settings.model)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(settings, text));
    // Whatever still runs has had its time.
    runtime.shutdown_background();
    served
}

async fn serve(settings: &ServeSettings, text: TextSide) -> Result<()> {
    let listener = bind(settings).await?;
    let address = listener.local_addr()?;
    let config = ServiceConfig {
        idle_lanes: settings.idle_lanes.unwrap_or(usize::MAX),
        safe_mode: settings.safe_mode,
        admission_timeout_ms: settings.queue_timeout.as_millis() as u64,
        ..host::service(settings.queue_depth.unwrap_or_else(|| laneway_session::default_queue_depth(text.lanes)))
    };
    let host = Host::start(&settings.model, &text, config)?;
    let name = text.name.clone();
    print(&format!("listening on http://{address}, loading {name}\n"))?;
    if !address.ip().is_loopback() && settings.api_key.is_none() {
        eprintln!("warning: {address} can be reached from other machines, and no --api-key is set");
    }
    if text.origin == Origin::Ids {
        eprintln!("warning: this model has no tokenizer: /v1/completions takes token ids, and answers with <id>s");
    }
    if let (Some(_), Err(reason)) = (&text.canvas, &text.reader) {
        eprintln!("warning: no decisions from this model: {reason}");
    }
    let example = example(&text);
    let sessions = Arc::new(sessions(settings, &text, &host)?);
    let model = TextModel { sessions: Some(sessions.clone()), ..text_model(text, &host) };
    let state = Arc::new(ApiState::new(vec![model], options(settings)?));
    let app = router(state.clone(), pages());

    let (failed, failure) = oneshot::channel();
    let (loaded, opened) = (host.worker.preload(host.request.clone()), host.opened);
    let loading = tokio::spawn(async move {
        match loaded.await {
            Ok(()) => {
                if let Ok(opened) = opened.try_recv() {
                    announce(&name, &opened, address, example);
                }
            }
            Err(reason) => drop(failed.send(reason)),
        }
    });
    let mut failure = failure;
    let mut reason = None;
    let ended = async {
        tokio::select! {
            () = signal() => {
                eprintln!("ending: running answers get up to 30 s, Ctrl-C again ends them at once");
                tokio::spawn(async { signal().await; std::process::exit(130) });
            }
            Ok(why) = &mut failure => reason = Some(why),
        }
    };
    let times = ServeOptions { drain_time: settings.drain_time, ..ServeOptions::default() };
    laneway_api::serve(listener, app, state, times, ended).await;
    loading.abort();
    sessions.shutdown(STORE_TIME).await;
    host.worker.shutdown();
    match reason {
        Some(why) => Err(anyhow!("{why}")),
        None => Ok(()),
    }
}

async fn bind(settings: &ServeSettings) -> Result<TcpListener> {
    let (host, port) = (settings.host.as_str(), settings.port);
    TcpListener::bind((host, port)).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow!("port {port} is in use; choose another with --port"),
        std::io::ErrorKind::PermissionDenied => {
            anyhow!("port {port} may not be used by this user; choose one over 1023")
        }
        std::io::ErrorKind::AddrNotAvailable => anyhow!("{host} is not an address of this machine"),
        _ => anyhow::Error::from(error).context(format!("cannot listen on {host} port {port}")),
    })
}

/// What moves sessions, and stores them if there is a folder for that.
fn sessions(settings: &ServeSettings, text: &TextSide, host: &Host) -> Result<Sessions> {
    let options = match &settings.checkpoints {
        None => None,
        Some(CheckpointSettings { folder, budget_bytes, codec, min_tokens }) => {
            let store = FileStore::open(folder).map_err(|error| Usage(one_line(&error.into())))?;
            let limits = checkpoint::Config {
                budget_bytes: *budget_bytes,
                min_tokens: *min_tokens,
                ..checkpoint::Config::default()
            };
            Some(CheckpointOptions { store: Arc::new(store), limits, codec: *codec })
        }
    };
    let scope = ModelScope { files: content_files(&text.path), positions: "as in the files".to_owned() };
    Ok(Sessions::new(Arc::new(host.worker.clone()), text.kv.clone(), scope, options)?)
}

fn text_model(text: TextSide, host: &Host) -> TextModel {
    let service = WorkerService::new(host.worker.clone(), host.request.clone(), STUCK_AFTER_MS);
    TextModel {
        info: ModelInfo {
            id: text.name,
            description: text.description,
            created: text.created,
            context_length: text.context_length,
        },
        aliases: text.aliases,
        fingerprint: text.fingerprint,
        tokenizer: text.tokenizer,
        template: text.template,
        page_positions: PAGE_POSITIONS,
        denoising: text.canvas.map(|canvas| canvas.denoising),
        reader: text.reader,
        defaults: SamplingOptions {
            temperature: Some(text.usual.temperature),
            top_p: Some(text.usual.top_p),
            top_k: Some(text.usual.top_k),
            ..SamplingOptions::default()
        },
        service: Arc::new(service),
        sessions: None,
    }
}

fn options(settings: &ServeSettings) -> Result<ApiOptions> {
    let telemetry =
        settings.telemetry.as_ref().map(|(level, endpoint)| telemetry::start(*level, endpoint)).transpose()?;
    Ok(ApiOptions {
        telemetry,
        api_key: settings.api_key.clone(),
        admin_key: settings.admin_key.clone(),
        cors_origins: settings.cors_origins.clone(),
        ..ApiOptions::default()
    })
}

fn pages() -> Router {
    Router::new().route("/", get(|| async { ([(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)], Html(CHAT_PAGE)) }))
}

fn announce(name: &str, opened: &Opened, address: SocketAddr, (path, body): (&str, &str)) {
    let (device, limits) = (&opened.device, &opened.limits);
    let text = format!(
        "\nready after {:.1} s: {name} on {} ({}), weights {}, lanes {}, context {}\n\n\
         chat   http://{address}/\n\
         try    curl http://{address}/v1/{path} -H 'Content-Type: application/json' \\\n         \
         -d '{{\"model\": \"{name}\", {body}}}'\n\
         end    Ctrl-C\n\n",
        opened.elapsed.as_secs_f64(),
        device.name,
        device.api,
        bytes(opened.weight_bytes),
        limits.lanes,
        limits.context_length,
    );
    // The server works without its terminal.
    drop(print(&text));
}

/// An endpoint that the model can answer, and a request's body.
fn example(text: &TextSide) -> (&'static str, &'static str) {
    match text.origin {
        Origin::Ids => ("completions", r#""prompt": [1, 2, 3]"#),
        _ if text.template.is_none() => ("completions", r#""prompt": "The capital of France is""#),
        _ => ("chat/completions", r#""messages": [{"role": "user", "content": "What is the capital of France?"}]"#),
    }
}

/// Resolves at SIGINT or SIGTERM.
#[cfg(unix)]
fn signal() -> impl Future<Output = ()> + Send {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        match signals {
            (Ok(mut interrupt), Ok(mut terminate)) => {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            }
            _ => std::future::pending().await,
        }
    }
}

/// Resolves at Ctrl-C.
#[cfg(not(unix))]
fn signal() -> impl Future<Output = ()> + Send {
    async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
