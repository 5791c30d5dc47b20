//! Where the logits of a question's labels stand, and what they say.

/// Nodes at which the next token of a label is read; a label of one token has one node, the first.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Parents before their children.
    pub nodes: Vec<Node>,
}

/// A slot of a branch.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub branch: usize,
    pub slot: usize,
    /// For each label of the slot.
    pub children: Vec<Child>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    Outcome(usize),
    Node(usize),
}

/// The logits of some slot are missing or of another number, or not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Mismatch,
    NotFinite,
}

impl Tree {
    /// Natural logs of the probabilities of the outcomes; some may be minus infinity, not all.
    ///
    /// A softmax over the labels of each node, multiplied along the way to each label; several labels of one outcome
    /// add up.
    pub fn log_probabilities(
        &self,
        outcomes: usize,
        logits: &[Vec<Vec<f32>>],
        temperature: f64,
    ) -> Result<Vec<f64>, Unreadable> {
        let mut reached = vec![f64::NEG_INFINITY; self.nodes.len()];
        let mut found = vec![f64::NEG_INFINITY; outcomes];
        if let Some(root) = reached.first_mut() {
            *root = 0.0;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let slot = logits.get(node.branch).and_then(|slots| slots.get(node.slot)).ok_or(Unreadable::Mismatch)?;
            if slot.len() != node.children.len() {
                return Err(Unreadable::Mismatch);
            }
            let scaled: Vec<f64> = slot.iter().map(|logit| f64::from(*logit) / temperature).collect();
            if slot.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
                return Err(Unreadable::NotFinite);
            }
            let total = log_sum(&scaled);
            if !total.is_finite() {
                return Err(Unreadable::NotFinite);
            }
            for (child, scaled) in node.children.iter().zip(&scaled) {
                let log = reached[index] + scaled - total;
                match *child {
                    Child::Outcome(outcome) => found[outcome] = log_sum(&[found[outcome], log]),
                    Child::Node(node) => reached[node] = log,
                }
            }
        }
        Ok(found)
    }
}

/// `ln(sum(exp(x)))`; minus infinity for nothing.
pub(crate) fn log_sum(logs: &[f64]) -> f64 {
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    largest + logs.iter().map(|log| (log - largest).exp()).sum::<f64>().ln()
}

/// A trie of label tokens: for each node the tokens that lead to it, and what each next token leads to.
pub(crate) struct Trie {
    pub nodes: Vec<TrieNode>,
}

pub(crate) struct TrieNode {
    pub path: Vec<u32>,
    /// The nodes from the root to this one, itself included.
    pub line: Vec<usize>,
    pub labels: Vec<u32>,
    pub children: Vec<Child>,
}

impl Trie {
    /// From sequences none of which begins another, each with its outcome.
    pub fn new<'a>(sequences: impl IntoIterator<Item = (usize, &'a [u32])>) -> Self {
        let root = TrieNode { path: Vec::new(), line: vec![0], labels: Vec::new(), children: Vec::new() };
        let mut trie = Self { nodes: vec![root] };
        for (outcome, sequence) in sequences {
            let Some((last, path)) = sequence.split_last() else { continue };
            let node = path.iter().fold(0, |node, token| trie.step(node, *token));
            trie.nodes[node].labels.push(*last);
            trie.nodes[node].children.push(Child::Outcome(outcome));
        }
        trie
    }

    fn step(&mut self, from: usize, token: u32) -> usize {
        let node = &self.nodes[from];
        let known = node.labels.iter().position(|label| *label == token).map(|at| node.children[at]);
        if let Some(Child::Node(next)) = known {
            return next;
        }
        let next = self.nodes.len();
        let path = [node.path.as_slice(), &[token]].concat();
        let line = [node.line.as_slice(), &[next]].concat();
        self.nodes[from].labels.push(token);
        self.nodes[from].children.push(Child::Node(next));
        self.nodes.push(TrieNode { path, line, labels: Vec::new(), children: Vec::new() });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walked_labels_multiply_along_their_way_and_spellings_add_up() {
        let trie = Trie::new([(0, [7].as_slice()), (1, &[5, 1]), (2, &[5, 2]), (0, &[5, 3])]);
        assert_eq!(trie.nodes.len(), 2);
        assert_eq!(
            (trie.nodes[1].path.as_slice(), trie.nodes[1].labels.as_slice()),
            ([5].as_slice(), [1, 2, 3].as_slice())
        );
        let node = |slot: usize| Node { branch: 0, slot, children: trie.nodes[slot].children.clone() };
        let tree = Tree { nodes: vec![node(0), node(1)] };
        let logits = vec![vec![vec![0.0, 3.0_f32.ln()], vec![0.0, 0.0, 2.0_f32.ln()]]];
        let found: Vec<f64> = tree.log_probabilities(3, &logits, 1.0).unwrap().iter().map(|log| log.exp()).collect();
        for (measured, expected) in found.iter().zip([0.25 + 0.375, 0.1875, 0.1875]) {
            assert!((measured - expected).abs() < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn logits_that_say_nothing_are_refused() {
        let tree =
            Tree { nodes: vec![Node { branch: 0, slot: 0, children: vec![Child::Outcome(0), Child::Outcome(1)] }] };
        let check = |logits: &[f32], expected: Result<Vec<f64>, Unreadable>| {
            assert_eq!(tree.log_probabilities(2, &[vec![logits.to_vec()]], 1.0), expected, "{logits:?}");
        };
        check(&[f32::NAN, 0.0], Err(Unreadable::NotFinite));
        check(&[f32::INFINITY, 0.0], Err(Unreadable::NotFinite));
        check(&[f32::NEG_INFINITY; 2], Err(Unreadable::NotFinite));
        check(&[0.0], Err(Unreadable::Mismatch));
        check(&[f32::NEG_INFINITY, f32::MAX], Ok(vec![f64::NEG_INFINITY, 0.0]));
    }
}
