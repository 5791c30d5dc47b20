//! The thread that stores sessions and brings them back, beside the one that computes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::executor::block_on;
use futures::future::{Either, select};
use laneway_checkpoint::{
    ByteStore, Checkpoint, CheckpointId, Codec, Exactness, Library, Listing, PageRecord, Reason, Saved, Stats,
};
use laneway_session::{Kept, Session};
use tokio::sync::{mpsc, oneshot};

use super::{CheckpointOptions, Facts, SessionError, StoreCodec};
use crate::worker::Transfers;

/// Orders that may wait; what turns leave behind is dropped beyond that.
const DEPTH: usize = 64;

/// Something for the thread to do.
pub(super) enum Order {
    /// A turn left this behind.
    Kept(Kept),
    /// A prompt is about to be queued.
    Restore {
        namespace: u64,
        tokens: Vec<u32>,
        /// Told that it is no longer waiting.
        taken: oneshot::Sender<()>,
        answer: oneshot::Sender<usize>,
    },
    Save {
        session: Session,
        answer: oneshot::Sender<Result<CheckpointId, SessionError>>,
    },
    List(oneshot::Sender<Vec<Listing>>),
    Load {
        id: CheckpointId,
        answer: oneshot::Sender<Option<Checkpoint>>,
    },
    Forget {
        id: CheckpointId,
        answer: oneshot::Sender<Result<(), SessionError>>,
    },
    Shutdown {
        within: Duration,
        answer: oneshot::Sender<()>,
    },
}

/// The caller's end of the thread, which ends with it.
pub(super) struct Keeper {
    sender: mpsc::Sender<Order>,
    /// Shorter sequences are not stored.
    pub min_tokens: usize,
    figures: Arc<Figures>,
}

#[derive(Default)]
struct Figures {
    stats: Mutex<Stats>,
    dropped: AtomicU64,
}

struct Thread {
    library: Library<Arc<dyn ByteStore>>,
    transfers: Arc<dyn Transfers>,
    facts: Arc<Facts>,
    codec: StoreCodec,
    min_tokens: usize,
    figures: Arc<Figures>,
}

/// How much of a sequence is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// Whole stored pages, so that a growing session writes each of its tokens once.
    Whole,
    /// All of it.
    All,
}

impl Keeper {
    pub fn start(
        transfers: Arc<dyn Transfers>,
        facts: Arc<Facts>,
        options: CheckpointOptions,
    ) -> Result<Self, SessionError> {
        let CheckpointOptions { store, limits, codec } = options;
        let min_tokens = limits.min_tokens;
        let library = block_on(Library::open(store, limits, now_ms()))?;
        let (sender, receiver) = mpsc::channel(DEPTH);
        let figures = Arc::<Figures>::default();
        let thread =
            Thread { library, transfers: transfers.clone(), facts, codec, min_tokens, figures: figures.clone() };
        thread.publish();
        let named = std::thread::Builder::new().name("checkpoints".to_owned());
        named
            .spawn(move || thread.run(receiver))
            .map_err(|error| SessionError::Unavailable(format!("no thread for checkpoints: {error}")))?;
        // The worker must not keep the thread alive, nor wait for it.
        let (notes, dropped) = (sender.downgrade(), figures.clone());
        transfers.on_kept(Box::new(move |kept| {
            let is_short = kept.tokens.len() < min_tokens;
            let Some(notes) = notes.upgrade().filter(|_| !is_short) else { return };
            if notes.try_send(Order::Kept(kept)).is_err() {
                dropped.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }));
        Ok(Self { sender, min_tokens, figures })
    }

    /// Hands an order over; one that the thread never takes is answered by its dropped sender.
    pub async fn send(&self, order: Order) {
        _ = self.sender.send(order).await;
    }

    pub fn stats(&self) -> (Stats, u64) {
        let stats = *self.figures.stats.lock().unwrap_or_else(PoisonError::into_inner);
        (stats, self.figures.dropped.load(Ordering::Relaxed))
    }
}

impl Thread {
    fn run(mut self, mut receiver: mpsc::Receiver<Order>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                let Some(order) = receiver.blocking_recv() else { return };
                waiting.push_back(order);
            }
            while let Ok(order) = receiver.try_recv() {
                let notes = waiting.iter().filter(|order| matches!(order, Order::Kept(_))).count();
                match order {
                    Order::Kept(_) if notes >= DEPTH => _ = self.figures.dropped.fetch_add(1, Ordering::Relaxed),
                    order => waiting.push_back(order),
                }
            }
            // Clients wait for prompts; and what they need must not be evicted by what is stored meanwhile.
            let is_urgent = |order: &Order| !matches!(order, Order::Kept(_));
            let index = waiting.iter().position(is_urgent).unwrap_or(0);
            let Some(order) = waiting.remove(index) else { continue };
            if !self.take(order) {
                return;
            }
            self.publish();
        }
    }

    /// Does one thing; false after the last.
    fn take(&mut self, order: Order) -> bool {
        // Answers that nobody waits for any more go nowhere.
        match order {
            Order::Kept(Kept { namespace, tokens }) => {
                if let Err(error) = self.store(namespace, &tokens, Length::Whole, Reason::Continued) {
                    tracing::debug!(%error, "a session was not stored");
                }
            }
            Order::Restore { namespace, tokens, taken, mut answer } => {
                _ = taken.send(());
                let restored = if answer.is_closed() { Ok(0) } else { self.restore(namespace, &tokens, &mut answer) };
                if let Err(error) = &restored {
                    tracing::debug!(%error, "a stored session was not restored");
                }
                _ = answer.send(restored.unwrap_or(0));
            }
            Order::Save { session, answer } => {
                let Session { namespace, tokens, .. } = session;
                _ = answer.send(self.store(namespace, &tokens, Length::All, Reason::AgentSession));
            }
            Order::List(answer) => _ = answer.send(self.library.list()),
            Order::Load { id, answer } => {
                let found = self.library.whole(id);
                _ = answer.send(found.and_then(|found| block_on(self.library.load(&found, now_ms()))));
            }
            Order::Forget { id, answer } => _ = answer.send(self.forget(id)),
            Order::Shutdown { within, answer } => {
                self.store_all(within);
                self.publish();
                _ = answer.send(());
                return false;
            }
        }
        true
    }

    /// Stores a sequence that the engine has; writes only pages that are not stored.
    fn store(
        &mut self,
        namespace: u64,
        tokens: &[u32],
        length: Length,
        reason: Reason,
    ) -> Result<CheckpointId, SessionError> {
        let layout = &self.facts.layout;
        let len = match length {
            Length::Whole => tokens.len() - tokens.len() % layout.stored_tokens(),
            Length::All => tokens.len(),
        };
        if len < self.min_tokens {
            return Err(laneway_checkpoint::Refusal::TooShort.into());
        }
        let tokens = &tokens[..len];
        let identity = self.facts.identity(namespace)?;
        let codec = if self.codec == StoreCodec::CacheGen { Codec::CacheGen } else { Codec::Raw };
        let mut pages = Vec::new();
        let mut from = 0;
        for range in layout.ranges(len) {
            let mut descriptor = layout.descriptor(range.clone());
            descriptor.codec = codec;
            // The real size is the stored page's.
            descriptor.stored_bytes -= u64::from(codec == Codec::CacheGen);
            if !self.library.has_page(identity, &tokens[..range.end], &descriptor) {
                break;
            }
            from = range.end;
            pages.push(PageRecord { descriptor, payload: Vec::new() });
        }
        if from < len {
            let exported = block_on(self.transfers.export(namespace, tokens.to_vec(), from))?;
            if exported.tokens < len {
                // It was given up meanwhile.
                return Err(SessionError::Unknown("session"));
            }
            pages.extend(self.facts.pages(from, len, &exported.pages, self.codec)?);
        }
        let checkpoint = Checkpoint { identity, tokens: tokens.to_vec(), logits: None, pages };
        match block_on(self.library.save(&checkpoint, reason, now_ms())) {
            Saved::Refused(refusal) => Err(refusal.into()),
            Saved::Present { id } => Ok(id),
            Saved::Stored { id, written_bytes, shared_pages } => {
                tracing::debug!(tokens = len, written_bytes, shared_pages, "a session was stored");
                self.drop_beginnings(identity, tokens, id);
                Ok(id)
            }
        }
    }

    /// Shorter checkpoints of the same session serve nothing that the longer one does not.
    fn drop_beginnings(&mut self, identity: laneway_checkpoint::Identity, tokens: &[u32], id: CheckpointId) {
        for shorter in self.library.beginnings(identity, tokens, id) {
            if let Err(error) = block_on(self.library.forget(shorter)) {
                tracing::debug!(%error, "a shorter checkpoint was not removed");
            }
        }
    }

    /// Brings back what is stored of a prompt if the engine has much less of it.
    fn restore(
        &mut self,
        namespace: u64,
        tokens: &[u32],
        answer: &mut oneshot::Sender<usize>,
    ) -> Result<usize, SessionError> {
        let identity = self.facts.identity(namespace)?;
        let accepted = if self.codec == StoreCodec::CacheGen { Exactness::Lossy } else { Exactness::Exact };
        let Some(found) = self.library.find(identity, tokens, accepted) else { return Ok(0) };
        let live = block_on(self.transfers.peek(namespace, tokens.to_vec()));
        if found.tokens < live + self.facts.layout.stored_tokens() / 2 {
            return Ok(0);
        }
        let started = Instant::now();
        let Some(checkpoint) = block_on(self.library.load(&found, now_ms())) else { return Ok(0) };
        let unpacked = self.facts.unpack(namespace, checkpoint);
        if unpacked.is_err() {
            // It would fail for every later prompt too.
            block_on(self.library.forget(found.id))?;
        }
        let (tokens, pages) = unpacked?;
        let import = self.transfers.import(namespace, tokens, pages);
        let left = std::pin::pin!(answer.closed());
        let restored = match block_on(select(import, left)) {
            Either::Left((restored, _)) => restored?,
            // Whoever asked has left, and the dropped import ends.
            Either::Right(_) => return Ok(0),
        };
        tracing::debug!(restored, ms = started.elapsed().as_millis() as u64, "a session was restored");
        Ok(restored)
    }

    fn forget(&mut self, id: CheckpointId) -> Result<(), SessionError> {
        if self.library.whole(id).is_none() {
            return Err(SessionError::Unknown("checkpoint"));
        }
        Ok(block_on(self.library.forget(id))?)
    }

    fn store_all(&mut self, within: Duration) {
        let started = Instant::now();
        for Session { namespace, tokens, .. } in block_on(self.transfers.sessions()) {
            if started.elapsed() > within {
                break;
            }
            if tokens.len() >= self.min_tokens
                && let Err(error) = self.store(namespace, &tokens, Length::All, Reason::Shutdown)
            {
                tracing::debug!(%error, "a session was not stored");
            }
        }
        block_on(self.library.shutdown(&[], now_ms()));
    }

    fn publish(&self) {
        *self.figures.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.library.stats();
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
