//! How answers stand on a canvas, and where in it the labels are.

use laneway_text::{EncodeOptions, Tokenizer};

/// How names and labels are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A line each: name, colon, label.
    Lines,
    /// The label glued to the name, a space between questions.
    Indexed,
}

/// Most questions that get a line each.
const MOST_LINES: usize = 10;

/// A question's answer on a canvas: its place in the request's list, and all its labels.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub index: usize,
    pub labels: &'a [String],
}

/// The tokens of a layout with each entry's first label, and the slots.
#[derive(Debug)]
pub(crate) struct Laid {
    pub tokens: Vec<u32>,
    pub slots: Vec<LaidSlot>,
}

/// Where an entry's label stands, and the token of each.
#[derive(Debug)]
pub(crate) struct LaidSlot {
    pub row: usize,
    pub labels: Vec<u32>,
}

/// The labels of the entry at `entry` change another number of tokens than one.
#[derive(Debug)]
pub(crate) struct NoSlot {
    pub entry: usize,
    pub tokens: usize,
}

impl Layout {
    /// The layouts for so many questions, the better one first.
    pub fn preferred(questions: usize) -> [Self; 2] {
        if questions <= MOST_LINES { [Self::Lines, Self::Indexed] } else { [Self::Indexed, Self::Lines] }
    }

    /// What the question at a place of the list is called.
    pub fn name(self, index: usize) -> String {
        format!("q{}", index + 1)
    }

    fn written(self, index: usize, label: &str) -> String {
        match self {
            Self::Lines => format!("{}: {label}", self.name(index)),
            Self::Indexed => format!("{}{label}", self.name(index)),
        }
    }

    fn separator(self) -> &'static str {
        match self {
            Self::Lines => "\n",
            Self::Indexed => " ",
        }
    }

    /// Tokens of the entries with their first labels.
    pub fn tokens(self, tokenizer: &Tokenizer, entries: &[Entry]) -> Vec<u32> {
        self.encode(tokenizer, entries, None)
    }

    /// Finds the slot of every entry by what changes with its label.
    pub fn lay(self, tokenizer: &Tokenizer, entries: &[Entry]) -> Result<Laid, NoSlot> {
        let tokens = self.tokens(tokenizer, entries);
        let mut slots: Vec<LaidSlot> = Vec::with_capacity(entries.len());
        for (at, entry) in entries.iter().enumerate() {
            let slot = self.slot(tokenizer, entries, at, &tokens).map_err(|tokens| NoSlot { entry: at, tokens })?;
            let is_distinct = (1..slot.labels.len()).all(|index| !slot.labels[..index].contains(&slot.labels[index]));
            if !is_distinct || slots.iter().any(|other| other.row == slot.row) || entry.labels.len() < 2 {
                return Err(NoSlot { entry: at, tokens: 0 });
            }
            slots.push(slot);
        }
        Ok(Laid { tokens, slots })
    }

    /// The slot of an entry, or how many tokens change.
    fn slot(self, tokenizer: &Tokenizer, entries: &[Entry], at: usize, base: &[u32]) -> Result<LaidSlot, usize> {
        let labels = entries[at].labels;
        let mut found: Option<usize> = None;
        let mut ids = Vec::with_capacity(labels.len());
        for label in labels.iter().skip(1) {
            let other = self.encode(tokenizer, entries, Some((at, label)));
            let row = one_difference(base, &other)?;
            if *found.get_or_insert(row) != row {
                return Err(2);
            }
            ids.push(other[row]);
        }
        let row = found.ok_or(0usize)?;
        ids.insert(0, base[row]);
        Ok(LaidSlot { row, labels: ids })
    }

    fn encode(self, tokenizer: &Tokenizer, entries: &[Entry], instead: Option<(usize, &str)>) -> Vec<u32> {
        let mut text = String::new();
        for (at, entry) in entries.iter().enumerate() {
            let label = match instead {
                Some((changed, label)) if changed == at => label,
                _ => entry.labels.first().map_or("", String::as_str),
            };
            if at > 0 {
                text += self.separator();
            }
            text += &self.written(entry.index, label);
        }
        tokenizer.encode(&text, EncodeOptions::default())
    }
}

/// Where two encodings differ, or in how many tokens if not in one.
fn one_difference(a: &[u32], b: &[u32]) -> Result<usize, usize> {
    let changed: Vec<usize> = a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b).map(|(row, _)| row).collect();
    match (changed.as_slice(), a.len() == b.len()) {
        ([row], true) => Ok(*row),
        // A change of length is one of at least two tokens.
        (rows, false) => Err((rows.len() + a.len().abs_diff(b.len())).max(2)),
        (rows, true) => Err(rows.len()),
    }
}
