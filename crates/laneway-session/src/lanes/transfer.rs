//! Pages of kept sequences, for whoever moves their content.

use super::Lanes;
use crate::pages::Page;
use crate::transfer::Session;

/// References to the pages of a sequence.
#[derive(Debug)]
#[must_use = "dropped references leak their pages"]
pub(crate) struct Held {
    pages: Vec<Page>,
    /// Leading pages that hold what they should.
    pub shared: usize,
    /// Tokens they hold, or are to hold.
    pub tokens: usize,
}

impl Held {
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    pub fn page(&self, index: usize) -> Option<u32> {
        self.pages.get(index).map(Page::index)
    }
}

impl Lanes {
    /// The pages of as many leading tokens as are kept; they stay as they are until they are given back.
    pub fn hold(&mut self, namespace: u64, tokens: &[u32]) -> Held {
        let (common, found) = self.cache.find(namespace, tokens);
        let tokens = self.usable(common);
        let count = tokens.div_ceil(self.page_positions);
        let pages: Vec<Page> = found[..count].iter().map(|page| self.pool.retain(page)).collect();
        Held { shared: pages.len(), pages, tokens }
    }

    /// Pages for tokens whose K/V comes from elsewhere: those that are kept already, and free ones; or how many lack.
    pub fn reserve(&mut self, namespace: u64, tokens: &[u32]) -> Result<Held, usize> {
        let (common, found) = self.cache.find(namespace, tokens);
        let shared = (common - common % self.cache.unit()) / self.page_positions;
        let mut pages: Vec<Page> = found[..shared].iter().map(|page| self.pool.retain(page)).collect();
        let total = self.pages_for(tokens.len());
        let deficit = self.deficit(total, shared);
        if deficit > 0 {
            pages.into_iter().for_each(|page| self.pool.release(page));
            return Err(deficit);
        }
        pages.extend((shared..total).map(|_| self.take_page().expect("enough pages are free or cold")));
        Ok(Held { shared, pages, tokens: tokens.len() })
    }

    /// Keeps what was written to reserved pages like the state of a turn that has ended.
    pub fn keep_reserved(&mut self, namespace: u64, tokens: &[u32], mut held: Held) {
        self.cache.insert(&mut self.pool, namespace, tokens, &mut held.pages);
        self.give_back(held);
    }

    /// Gives references back.
    pub fn give_back(&mut self, held: Held) {
        held.pages.into_iter().for_each(|page| self.pool.release(page));
        self.version += 1;
    }

    /// Whether a sequence of so many tokens can be kept at all.
    pub fn is_keepable(&self, tokens: usize) -> bool {
        self.config.max_prefixes > 0 && tokens >= self.config.min_prefix_tokens && tokens.is_multiple_of(self.grain)
    }

    /// The sequences in the prefix cache, those that were used last first.
    pub fn sessions(&self) -> Vec<Session> {
        self.cache.sessions(&self.pool)
    }
}
