//! What happens to lanes and pages, told to whoever wants to know.

/// Told of events as they happen; must neither block nor panic. Without one nothing else changes.
pub trait Observer: Send + Sync {
    /// A lane was given back.
    fn lane(&self, event: LaneEvent) {
        _ = event;
    }

    /// Pages came into the prefix cache or left it.
    fn cache(&self, event: CacheEvent<'_>) {
        _ = event;
    }

    /// The prefix cache was asked.
    fn prefix(&self, event: PrefixEvent) {
        _ = event;
    }
}

/// What became of a lane whose turn or read ended; neither ids nor content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneEvent {
    /// It is ready for the next one.
    SessionReset {
        /// From the end of the turn to this moment: the time its last submitted step took.
        reset_ms: u64,
    },
    /// The engine failed on it: everything that the turn left was discarded.
    SessionReclaimed,
    /// The pages of a kept sequence were read.
    StateExported {
        /// Its tokens.
        tokens: usize,
    },
    /// They were not, or not all.
    StateExportFailed,
    /// Pages from elsewhere are kept.
    StateImported {
        /// Their tokens.
        tokens: usize,
    },
    /// They are not; nothing of them stayed.
    StateImportFailed,
}

/// Pages by the chained hash of all tokens up to their end; what routers that know where prefixes are need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent<'a> {
    /// Whole pages can be reused from now on.
    Stored {
        /// One for each page.
        hashes: &'a [u64],
        /// The page before the first of them.
        parent: Option<u64>,
        /// What is in them, page after page.
        tokens: &'a [u32],
        /// Tokens of a page.
        page_positions: usize,
    },
    /// Pages were given up.
    Removed {
        /// One for each page.
        hashes: &'a [u64],
    },
    /// Nothing is kept any more.
    Cleared,
}

/// What the prefix cache did for a turn or read; counts only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixEvent {
    /// Its prompt begins with tokens that are kept, and the lane got their pages.
    Restored {
        /// Tokens that need not be computed.
        tokens: usize,
        /// Whether the last of their pages is shared with nobody, and so copied.
        is_copied: bool,
    },
    /// Nothing of it is kept, or less than the least number of tokens.
    Missed,
    /// Pages were given up for it.
    Evicted {
        /// Pages.
        pages: usize,
    },
    /// It does not fit even if all that is kept were given up.
    Refused {
        /// Pages that are missing.
        deficit: usize,
    },
}
