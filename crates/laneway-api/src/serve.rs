use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;

use crate::stall::StallGuard;
use crate::state::{ApiState, Phase};

/// Limits on connections, and the times of an orderly end.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Connections served at a time; more wait in the listener's backlog.
    pub max_connections: usize,
    /// A connection without a complete request head for this long is closed.
    pub header_timeout: Duration,
    /// A connection whose client takes no data for this long is closed.
    pub stall_timeout: Duration,
    /// How long turns are still taken after `/health` says 503, for routers to notice.
    pub drain_time: Duration,
    /// How long running turns may go on after that, before they are cancelled.
    pub grace_time: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            max_connections: 512,
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            drain_time: Duration::ZERO,
            grace_time: Duration::from_secs(30),
        }
    }
}

/// Time for cancelled turns to say so to their clients.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves `router` until `shutdown`, then ends in order: draining, closing, stopping.
/// Failures of single connections are logged.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    state: Arc<ApiState>,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(options.max_connections));
    let ending = async {
        shutdown.await;
        tracing::info!("draining");
        state.enter(Phase::Draining);
        sleep(options.drain_time).await;
        state.enter(Phase::Closing);
    };
    let mut ending = pin!(ending);
    loop {
        let (stream, permit) = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            () = &mut ending => break,
        };
        connect(stream, permit, router.clone(), &options, graceful.watcher());
    }
    drop(listener);

    let mut closed = pin!(graceful.shutdown());
    let over = async {
        tokio::select! {
            () = &mut closed => {}
            // Connections that are left then have sent half a request; their clients may take for ever.
            () = idle(&state) => tracing::debug!("connections without a turn are dropped"),
        }
    };
    if timeout(options.grace_time, over).await.is_err() {
        tracing::warn!("turns are still running after the grace time; cancelling them");
        state.enter(Phase::Stopping);
        if timeout(FAREWELL, &mut closed).await.is_err() {
            tracing::warn!("some connections did not close");
        }
    }
    state.enter(Phase::Stopping);
}

/// Returns when no turn has been queued or running for as long as an answer's last bytes may need.
async fn idle(state: &ApiState) {
    let mut since = Instant::now();
    while since.elapsed() < FAREWELL {
        sleep(Duration::from_millis(50)).await;
        let works = |model: &Arc<crate::TextModel>| {
            let turns = model.service.metrics().snapshot().total();
            turns.waiting() + turns.running() > 0
        };
        if state.models.iter().any(works) {
            since = Instant::now();
        }
    }
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                // Usually too many open files: some will be closed soon.
                tracing::warn!("a connection could not be accepted: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn connect(stream: TcpStream, permit: OwnedSemaphorePermit, router: Router, options: &ServeOptions, watcher: Watcher) {
    // Tokens are small packets that should not wait for each other.
    let _ = stream.set_nodelay(true);
    let io = StallGuard::new(TokioIo::new(stream), options.stall_timeout);
    let service = TowerToHyperService::new(router.map_request(|request: Request<Incoming>| request.map(Body::new)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .serve_connection(io, service);
    tokio::spawn(async move {
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!("connection ended: {error}");
        }
        drop(permit);
    });
}
