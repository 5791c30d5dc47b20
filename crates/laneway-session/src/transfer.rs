//! K/V of a kept sequence on its way out of an engine, and back into one.

use crate::turn::{Cancel, TurnError};

/// A sequence whose pages are wanted.
pub struct Export {
    /// Its cache namespace.
    pub namespace: u64,
    /// Its tokens; the leading ones that are kept are exported, at least one.
    pub tokens: Vec<u32>,
    /// Leading positions that are not wanted: whole pages of what is kept.
    pub from: usize,
    /// Stops the transfer between two pages.
    pub cancel: Cancel,
    /// Told how it ended.
    pub done: Box<dyn FnOnce(Result<Exported, TransferError>) + Send>,
}

/// Pages as an engine had them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Leading tokens that the pages cover, with those before [`Export::from`].
    pub tokens: usize,
    /// Content page by page as [`Engine::read_page`](crate::Engine::read_page) gives it; all but the last are full.
    pub pages: Vec<Vec<u8>>,
}

/// Pages to be kept like those of a turn that has ended.
pub struct Import {
    /// The cache namespace they are kept in.
    pub namespace: u64,
    /// All their tokens.
    pub tokens: Vec<u32>,
    /// Content page by page, from position 0; all but the last are full.
    pub pages: Vec<Vec<u8>>,
    /// Stops the transfer between two pages.
    pub cancel: Cancel,
    /// Told how many leading tokens are kept afterwards.
    pub done: Box<dyn FnOnce(Result<usize, TransferError>) + Send>,
}

/// Why pages were not moved; what was there before still is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// No model is loaded, or another one than was asked for.
    #[error("the model is not loaded")]
    NotLoaded,
    /// The model's state is not in pages that could be moved.
    #[error("the state of this model cannot be moved")]
    Unsupported,
    /// The sequence is too short to be kept, or not kept.
    #[error("no such sequence is kept")]
    NotKept,
    /// The positions are none, not whole pages, past what is kept, or past the context.
    #[error("positions {start} to {end} are not a range of {known} known ones")]
    Range {
        /// First position.
        start: usize,
        /// One past the last.
        end: usize,
        /// Positions that there are or may be.
        known: usize,
    },
    /// The pages have another size than the model's.
    #[error("page {page} has {bytes} bytes, expected {expected}")]
    Size {
        /// Number of the page, or the number of pages if that is what differs.
        page: usize,
        /// Bytes it has.
        bytes: usize,
        /// Bytes it should have.
        expected: usize,
    },
    /// Running turns hold so many pages that too few can be had now.
    #[error("{deficit} pages are lacking")]
    NoPages {
        /// Pages that could not be had.
        deficit: usize,
    },
    /// As many transfers run as may.
    #[error("{most} transfers are running")]
    Busy {
        /// Transfers that may run.
        most: usize,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The service stops.
    #[error("the service is shutting down")]
    ShuttingDown,
    /// Something panicked, and the engine was reset.
    #[error("internal error, the engine was reset")]
    Internal,
}

impl TransferError {
    /// What ends all turns ends transfers, too.
    pub(crate) fn from_turn(error: &TurnError) -> Self {
        match error {
            TurnError::ShuttingDown => Self::ShuttingDown,
            TurnError::Internal => Self::Internal,
            TurnError::Engine(reason) => Self::Engine(reason.clone()),
            other => Self::Engine(other.to_string()),
        }
    }
}

/// A sequence that a turn or read left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its cache namespace.
    pub namespace: u64,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// A sequence in the prefix cache, with all that leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its cache namespace.
    pub namespace: u64,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whether a turn or read holds its last page.
    pub active: bool,
    /// Times it was found by later turns.
    pub hits: u64,
}

/// What becomes of a turn's state after the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// It is kept for reuse while there is room, and may be stored.
    #[default]
    Transient,
    /// It is kept like that, and its caller stores it in a file of its own.
    Local,
    /// Nothing of it is kept: a side task, which leaves the conversation's state alone.
    OneShot,
}
