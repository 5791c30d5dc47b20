//! A socket that fails when its peer takes nothing for too long.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::time::{Instant, Sleep, sleep_until};

/// Bounds every wait for the peer to read.
pub(crate) struct StallGuard<T> {
    inner: T,
    limit: Duration,
    /// Set while a write is waiting.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> StallGuard<T> {
    pub fn new(inner: T, limit: Duration) -> Self {
        Self { inner, limit, stalled: None }
    }

    fn bound<R>(&mut self, context: &mut Context, progress: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if progress.is_ready() {
            self.stalled = None;
            return progress;
        }
        let limit = self.limit;
        let sleep = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no data")))
    }
}

impl<T: Read + Unpin> Read for StallGuard<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, buf: ReadBufCursor) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buf)
    }
}

impl<T: Write + Unpin> Write for StallGuard<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, buf: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write(context, buf);
        self.bound(context, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bufs: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write_vectored(context, bufs);
        self.bound(context, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.inner).poll_flush(context);
        self.bound(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn guarded() -> (StallGuard<TokioIo<DuplexStream>>, DuplexStream) {
        let (ours, peer) = duplex(4);
        (StallGuard::new(TokioIo::new(ours), LIMIT), peer)
    }

    async fn write(guard: &mut StallGuard<TokioIo<DuplexStream>>, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut *guard).poll_write(context, bytes)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (mut guard, _peer) = guarded();
        assert_eq!(write(&mut guard, b"1234").await.expect("there is room"), 4);
        let started = Instant::now();
        let error = write(&mut guard, b"5").await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_waited_for() {
        let (mut guard, mut peer) = guarded();
        let reading = tokio::spawn(async move {
            for _ in 0..5 {
                sleep(LIMIT - Duration::from_secs(1)).await;
                peer.read_exact(&mut [0; 4]).await.expect("the guard writes");
            }
            peer
        });
        for _ in 0..6 {
            assert_eq!(write(&mut guard, b"1234").await.expect("the peer reads in time"), 4);
        }
        reading.await.expect("nothing panics");
    }
}
