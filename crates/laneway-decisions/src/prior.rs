use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::agenda::Item;

/// Questions whose prior is kept; all are forgotten when there is one more.
const MOST_ENTRIES: usize = 256;
/// Longest question whose prior is kept, in bytes of its text.
const MOST_BYTES: usize = 16 << 10;

/// What a model answers without a state, by question and number of orders: logs of probabilities by outcome.
#[derive(Clone, Default)]
pub(crate) struct Priors(Arc<Mutex<Known>>);

type Known = BTreeMap<(Item, usize), Arc<[f64]>>;

impl Priors {
    pub fn get(&self, item: &Item, orders: usize) -> Option<Arc<[f64]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key(item, orders)).cloned()
    }

    pub fn put(&self, item: &Item, orders: usize, logs: Arc<[f64]>) {
        if bytes(item) > MOST_BYTES {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_ENTRIES {
            known.clear();
        }
        known.insert(key(item, orders), logs);
    }
}

fn key(item: &Item, orders: usize) -> (Item, usize) {
    (Item { alone: false, ..item.clone() }, orders)
}

fn bytes(item: &Item) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let outcomes = item.outcomes.iter().map(|outcome| outcome.name.len() + length(&outcome.description));
    length(&item.instructions) + outcomes.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agenda::{Kind, Outcome};

    fn item(instructions: String) -> Item {
        let outcomes = vec![Outcome::default(); 2];
        Item { kind: Kind::Noul, instructions: Some(instructions), outcomes, alone: false }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let priors = Priors::default();
        for index in 0..=MOST_ENTRIES {
            priors.put(&item(index.to_string()), 1, Arc::from([0.0, 0.0]));
        }
        assert!(priors.get(&item("0".into()), 1).is_none());
        assert!(priors.get(&item(MOST_ENTRIES.to_string()), 1).is_some());
        assert!(priors.get(&item(MOST_ENTRIES.to_string()), 2).is_none());
        let long = item("x".repeat(MOST_BYTES + 1));
        priors.put(&long, 1, Arc::from([0.0, 0.0]));
        assert!(priors.get(&long, 1).is_none());
    }
}
