//! Sessions beyond a turn: what the prefix cache keeps, on its way to disk, to another machine, and back.

mod keeper;
mod layout;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use laneway_checkpoint::{
    ByteStore, Checkpoint, CheckpointId, Exactness, Identity, Library, Listing, PageRecord, Scope, Stats,
};
use laneway_session::{Session, TransferError};
use tokio::sync::oneshot;

use crate::worker::Transfers;
use keeper::{Keeper, Order};
pub use layout::KvLayout;

/// Version of what engines compute: another number makes all earlier checkpoints foreign.
const SCHEMA: u32 = 2;

/// A prompt waits no longer than this for what is stored of it.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);

/// A store that is busy for longer is not waited for.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// How soon a model that is being loaded is looked at again.
const LOAD_POLL: Duration = Duration::from_millis(50);

/// How pages are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreCodec {
    /// As the engine has them: what is restored answers bit for bit as before.
    #[default]
    Exact,
    /// As [`laneway_checkpoint::cachegen`] archives: smaller, and not quite the same.
    CacheGen,
}

/// Where and how sessions are stored.
pub struct CheckpointOptions {
    /// Where their bytes live.
    pub store: Arc<dyn ByteStore>,
    /// Limits of the store.
    pub limits: laneway_checkpoint::Config,
    /// How pages are stored.
    pub codec: StoreCodec,
}

/// Which model the pages belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelScope {
    /// The files with the weights, whose content tells the model apart wherever they lie.
    pub files: Vec<PathBuf>,
    /// What positions mean: RoPE settings and the like.
    pub positions: String,
}

/// The sessions of one model.
pub struct Sessions {
    transfers: Arc<dyn Transfers>,
    facts: Arc<Facts>,
    keeper: Option<Keeper>,
}

/// What all pages of a model share.
struct Facts {
    layout: KvLayout,
    scope: ModelScope,
    /// What is stored as archives comes back as something else than the engine computed.
    codec: StoreCodec,
    digest: OnceLock<Result<String, String>>,
}

/// Why a session was not moved.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No such session or checkpoint.
    #[error("there is no such {0}")]
    Unknown(&'static str),
    /// No place was given to store checkpoints.
    #[error("this server stores no checkpoints")]
    NoStore,
    /// The checkpoint is another model's, or in another namespace.
    #[error("the checkpoint belongs to another model, configuration or namespace")]
    Foreign,
    /// Its pages are approximations, and this server takes nothing but what an engine computed.
    #[error("the checkpoint went through a lossy codec, which this server does not use")]
    Lossy,
    /// The bytes are no checkpoint.
    #[error("{0}")]
    Format(#[from] laneway_checkpoint::FormatError),
    /// The engine did not do it.
    #[error("{0}")]
    Transfer(#[from] TransferError),
    /// The store did not take it.
    #[error("not stored: {0}")]
    Refused(#[from] laneway_checkpoint::Refusal),
    /// The store failed.
    #[error("the store failed: {0}")]
    Store(#[from] laneway_checkpoint::StoreError),
    /// The model's files could not be read, or the server is ending.
    #[error("{0}")]
    Unavailable(String),
}

impl Sessions {
    /// Sessions of the model that `transfers` moves the pages of, stored if there are options for that.
    ///
    /// # Errors
    /// A store that cannot be read, or a thread that cannot be started.
    pub fn new(
        transfers: Arc<dyn Transfers>,
        layout: KvLayout,
        scope: ModelScope,
        options: Option<CheckpointOptions>,
    ) -> Result<Self, SessionError> {
        let codec = options.as_ref().map_or(StoreCodec::Exact, |options| options.codec);
        let facts = Arc::new(Facts { layout, scope, codec, digest: OnceLock::new() });
        let keeper = options.map(|options| Keeper::start(transfers.clone(), facts.clone(), options)).transpose()?;
        Ok(Self { transfers, facts, keeper })
    }

    /// Brings back what is stored of a prompt, if that is worth more than what the engine still has; returns when the
    /// prompt may be queued, at once if nothing is stored.
    pub async fn prepare(&self, namespace: u64, tokens: &[u32]) {
        let Some(keeper) = self.keeper.as_ref().filter(|keeper| tokens.len() > keeper.min_tokens) else { return };
        let restored = async {
            // Pages go to a model that is there; a prompt would wait for it all the same.
            while self.transfers.is_loading() {
                tokio::time::sleep(LOAD_POLL).await;
            }
            let (taken, begun) = oneshot::channel();
            let (answer, restored) = oneshot::channel();
            let tokens = tokens.to_vec();
            let hand_over = async {
                keeper.send(Order::Restore { namespace, tokens, taken, answer }).await;
                begun.await
            };
            // A thread that has ended restores nothing, nor does one that waits for a slow disk.
            if let Ok(Ok(())) = tokio::time::timeout(HAND_OVER_TIMEOUT, hand_over).await {
                _ = restored.await;
            }
        };
        if tokio::time::timeout(RESTORE_TIMEOUT, restored).await.is_err() {
            tracing::warn!("a stored session was not restored in time");
        }
    }

    /// The sessions that the engine has, those that were used last first, with their names.
    pub async fn list(&self) -> Result<Vec<(CheckpointId, Session)>, SessionError> {
        let sessions = self.transfers.sessions().await;
        let facts = self.facts().await?;
        sessions.into_iter().map(|session| Ok((facts.id(session.namespace, &session.tokens)?, session))).collect()
    }

    /// Forgets those that nothing uses; what is stored stays.
    pub async fn clear(&self) {
        self.transfers.clear().await;
    }

    /// One of them.
    pub async fn find(&self, id: CheckpointId) -> Result<Session, SessionError> {
        let found = self.list().await?.into_iter().find(|(other, _)| *other == id);
        found.map(|(_, session)| session).ok_or(SessionError::Unknown("session"))
    }

    /// A session's pages with all that describes them.
    pub async fn export(&self, session: Session, codec: StoreCodec) -> Result<Checkpoint, SessionError> {
        let facts = self.facts().await?;
        if facts.codec == StoreCodec::CacheGen && codec == StoreCodec::Exact {
            return Err(SessionError::Lossy);
        }
        let Session { namespace, mut tokens, .. } = session;
        let exported = self.transfers.export(namespace, tokens.clone(), 0).await?;
        tokens.truncate(exported.tokens);
        let identity = facts.identity_as(namespace, codec)?;
        let pages = facts.pages(0, tokens.len(), &exported.pages, codec)?;
        Ok(Checkpoint { identity, tokens, logits: None, pages })
    }

    /// What an export would consist of, from positions alone.
    pub fn probe(&self, session: &Session) -> Vec<laneway_checkpoint::Descriptor> {
        let layout = &self.facts.layout;
        layout.ranges(session.tokens.len()).map(|range| layout.descriptor(range)).collect()
    }

    /// Gives the engine the pages of a checkpoint; returns the number of tokens it keeps of it.
    ///
    /// # Errors
    /// Everything is checked before the first page is written.
    pub async fn import(&self, namespace: u64, checkpoint: Checkpoint) -> Result<usize, SessionError> {
        let facts = self.facts().await?;
        let (tokens, pages) = facts.unpack(namespace, checkpoint)?;
        Ok(self.transfers.import(namespace, tokens, pages).await?)
    }

    /// Stores a session as a whole.
    pub async fn save(&self, session: Session) -> Result<CheckpointId, SessionError> {
        let (answer, saved) = oneshot::channel();
        self.keeper()?.send(Order::Save { session, answer }).await;
        saved.await.map_err(|_| ended())?
    }

    /// The stored checkpoints, in order of their names.
    pub async fn stored(&self) -> Result<Vec<Listing>, SessionError> {
        let (answer, listed) = oneshot::channel();
        self.keeper()?.send(Order::List(answer)).await;
        listed.await.map_err(|_| ended())
    }

    /// Brings a stored checkpoint back to the engine; returns the number of tokens it keeps of it.
    pub async fn restore(&self, namespace: u64, id: CheckpointId) -> Result<usize, SessionError> {
        let (answer, loaded) = oneshot::channel();
        self.keeper()?.send(Order::Load { id, answer }).await;
        let checkpoint = loaded.await.map_err(|_| ended())?.ok_or(SessionError::Unknown("checkpoint"))?;
        self.import(namespace, checkpoint).await
    }

    /// Removes a stored checkpoint.
    pub async fn forget(&self, id: CheckpointId) -> Result<(), SessionError> {
        let (answer, forgotten) = oneshot::channel();
        self.keeper()?.send(Order::Forget { id, answer }).await;
        forgotten.await.map_err(|_| ended())?
    }

    /// Stores what the engine has, and then nothing more; returns after `limit` at the latest.
    pub async fn shutdown(&self, limit: Duration) {
        let Some(keeper) = &self.keeper else { return };
        let (answer, stored) = oneshot::channel();
        let all = async {
            keeper.send(Order::Shutdown { within: limit, answer }).await;
            // A thread that has ended has nothing to store.
            _ = stored.await;
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            tracing::warn!("not all sessions were stored in time");
        }
    }

    /// How its pages are stored, and exported where nobody says otherwise.
    pub fn codec(&self) -> StoreCodec {
        self.facts.codec
    }

    /// Counts of the store, and notes that were dropped because too many waited; none without a store.
    pub fn stats(&self) -> Option<(Stats, u64)> {
        self.keeper.as_ref().map(Keeper::stats)
    }

    fn keeper(&self) -> Result<&Keeper, SessionError> {
        self.keeper.as_ref().ok_or(SessionError::NoStore)
    }

    /// The facts with their digest, which takes a moment for large files.
    async fn facts(&self) -> Result<Arc<Facts>, SessionError> {
        let facts = self.facts.clone();
        if facts.digest.get().is_none() {
            let work = facts.clone();
            // It is asked for again below.
            _ = tokio::task::spawn_blocking(move || drop(work.digest())).await;
        }
        facts.digest()?;
        Ok(facts)
    }
}

impl Facts {
    fn digest(&self) -> Result<&str, SessionError> {
        let digest = self.digest.get_or_init(|| digest_of(&self.scope.files).map_err(|error| error.to_string()));
        digest.as_deref().map_err(|error| SessionError::Unavailable(format!("the model's files: {error}")))
    }

    fn identity(&self, namespace: u64) -> Result<Identity, SessionError> {
        self.identity_as(namespace, self.codec)
    }

    /// The identity of sessions that may have gone through a codec: lossy ones must not pass for exact ones, not even
    /// after they were restored.
    fn identity_as(&self, namespace: u64, codec: StoreCodec) -> Result<Identity, SessionError> {
        let KvLayout { element, layers, widths, head_dims, page_positions } = &self.layout;
        let scope = Scope {
            model: self.digest()?,
            topology: "whole",
            stage: 0,
            layers: 0..*layers,
            schema: SCHEMA,
            kv_layout: &format!(
                "K then V, head position value, {page_positions} positions, {widths:?} in heads of {head_dims:?}"
            ),
            kv_type: &match codec {
                StoreCodec::Exact => format!("{element:?}"),
                StoreCodec::CacheGen => format!("{element:?} through archives"),
            },
            positions: &self.scope.positions,
            namespace: &namespace.to_string(),
        };
        Ok(scope.identity())
    }

    fn id(&self, namespace: u64, tokens: &[u32]) -> Result<CheckpointId, SessionError> {
        Ok(Library::<Arc<dyn ByteStore>>::id(self.identity(namespace)?, tokens))
    }

    /// Stored pages from position `from` on.
    fn pages(
        &self,
        from: usize,
        end: usize,
        pages: &[Vec<u8>],
        codec: StoreCodec,
    ) -> Result<Vec<PageRecord>, SessionError> {
        let mut stored = Vec::new();
        for range in self.layout.ranges(end).filter(|range| range.start >= from) {
            let page = |position: usize| (position - from).div_ceil(self.layout.page_positions);
            let own = pages.get(page(range.start)..page(range.end)).unwrap_or_default();
            let record = self.layout.store(range, own)?;
            stored.push(if codec == StoreCodec::CacheGen { self.layout.compress(record) } else { record });
        }
        Ok(stored)
    }

    /// A checkpoint as an engine takes it.
    fn unpack(&self, namespace: u64, checkpoint: Checkpoint) -> Result<(Vec<u32>, Vec<Vec<u8>>), SessionError> {
        let is_lossy = checkpoint.identity == self.identity_as(namespace, StoreCodec::CacheGen)?;
        if is_lossy && self.codec == StoreCodec::Exact {
            return Err(SessionError::Lossy);
        }
        let is_exact = checkpoint.identity == self.identity_as(namespace, StoreCodec::Exact)?
            && checkpoint.exactness() == Exactness::Exact;
        if !is_lossy && !is_exact {
            return Err(SessionError::Foreign);
        }
        checkpoint.validate()?;
        let mut pages = Vec::new();
        for page in checkpoint.pages {
            pages.extend(self.layout.load(page)?);
        }
        Ok((checkpoint.tokens, pages))
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("stores", &self.keeper.is_some()).finish_non_exhaustive()
    }
}

fn ended() -> SessionError {
    SessionError::Unavailable("the server is shutting down".to_owned())
}

/// A hash of what is in the files, in their order.
fn digest_of(files: &[PathBuf]) -> std::io::Result<String> {
    let mut all = String::new();
    for path in files {
        let digest = laneway_checkpoint::Digest::of_reader(&mut std::fs::File::open(path)?)?;
        all += &digest.to_string();
    }
    Ok(all)
}
