//! What is kept, for people and for those who store it.

use super::PrefixCache;
use crate::pages::PagePool;
use crate::transfer::Session;

impl PrefixCache {
    /// All sequences, each with all that leads to it, those that were used last first.
    pub fn sessions(&self, pool: &PagePool) -> Vec<Session> {
        let mut sessions: Vec<(u64, Session)> = Vec::with_capacity(self.leaves.len());
        for (&namespace, &root) in &self.roots {
            let mut open: Vec<(usize, Vec<u32>)> =
                self.nodes[root].children.values().map(|child| (*child, Vec::new())).collect();
            while let Some((node, mut tokens)) = open.pop() {
                let kept = &self.nodes[node];
                tokens.extend_from_slice(&kept.tokens);
                if kept.children.is_empty() {
                    let active = kept.pages.last().is_some_and(|page| !pool.is_cold(page));
                    sessions.push((kept.used, Session { namespace, tokens, active, hits: kept.hits }));
                } else {
                    open.extend(kept.children.values().map(|child| (*child, tokens.clone())));
                }
            }
        }
        sessions.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
        sessions.into_iter().map(|(_, session)| session).collect()
    }
}
