use hashbrown::HashMap;

use crate::TextError;
use crate::merge::{Join, Merger, Symbol, bounded_pieces};
use crate::pretokenize::PreTokenizer;
use crate::vocabulary::Vocabulary;

/// Pairs of token ids that merge, with their rank and the token they become.
struct MergeTable(HashMap<(u32, u32), Join>);

impl MergeTable {
    /// Reads merges written as `left right`, best first.
    ///
    /// Merges that name tokens outside the vocabulary can never apply and are skipped.
    fn new(merges: &[String], vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let mut pairs = HashMap::with_capacity(merges.len());
        let mut joined = String::new();
        for (rank, merge) in (0..u32::MAX).zip(merges) {
            let (left, right) = split_merge(merge)
                .ok_or_else(|| TextError::InvalidVocabulary(format!("merge {rank} (`{merge}`) is not a pair")))?;
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let ids = (vocabulary.id(left), vocabulary.id(right));
            if let ((Some(left), Some(right)), Some(id)) = (ids, vocabulary.mergeable_id(&joined)) {
                pairs.entry((left, right)).or_insert(Join { priority: rank, id });
            }
        }
        Ok(Self(pairs))
    }

    fn join(&self, left: &Symbol, right: &Symbol) -> Option<Join> {
        self.0.get(&(left.id?, right.id?)).copied()
    }
}

/// The two parts of a merge: the first space that is not the first character divides them.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let space = merge.bytes().skip(1).position(|b| b == b' ')? + 1;
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// Byte-level BPE (GPT-2 and descendants): words first, then merges of bytes.
pub(crate) struct ByteLevelBpe {
    merges: MergeTable,
    words: PreTokenizer,
    byte_ids: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
}

impl ByteLevelBpe {
    pub(crate) fn new(
        merges: &[String],
        pre: Option<&str>,
        unknown: Option<u32>,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TextError> {
        let mut byte_ids = Box::new([None; 256]);
        for (byte, id) in (0..=u8::MAX).zip(byte_ids.iter_mut()) {
            *id = vocabulary.id(char_of_byte(byte).encode_utf8(&mut [0; 4]));
        }
        Ok(Self { merges: MergeTable::new(merges, vocabulary)?, words: PreTokenizer::new(pre)?, byte_ids, unknown })
    }

    /// Appends the ids of `text`; bytes without a token become the unknown token or are dropped.
    pub(crate) fn encode(&self, text: &str, vocabulary: &Vocabulary, merger: &mut Merger, ids: &mut Vec<u32>) {
        for piece in bounded_pieces(text) {
            self.words.words(piece, |word| self.encode_word(word, vocabulary, merger, ids));
        }
    }

    fn encode_word(&self, word: &str, vocabulary: &Vocabulary, merger: &mut Merger, ids: &mut Vec<u32>) {
        if self.words.takes_whole_words {
            let written: String = word.bytes().map(char_of_byte).collect();
            if let Some(id) = vocabulary.mergeable_id(&written) {
                return ids.push(id);
            }
        }
        merger.clear();
        for byte in word.bytes() {
            merger.push(self.byte_ids[usize::from(byte)], 1);
        }
        merger.run(|a, b| self.merges.join(a, b), |s| ids.extend(s.id.or(self.unknown)));
    }
}

/// BPE by merge rank on characters with `▁` for spaces and byte fallback (Gemma 4).
pub(crate) struct CharacterBpe {
    merges: MergeTable,
    byte_ids: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
}

impl CharacterBpe {
    pub(crate) fn new(merges: &[String], unknown: Option<u32>, vocabulary: &Vocabulary) -> Result<Self, TextError> {
        Ok(Self { merges: MergeTable::new(merges, vocabulary)?, byte_ids: vocabulary.byte_ids(), unknown })
    }

    /// Appends the ids of `text`, in which spaces have already become `▁`.
    pub(crate) fn encode(&self, text: &str, vocabulary: &Vocabulary, merger: &mut Merger, ids: &mut Vec<u32>) {
        for run in bounded_pieces(text).flat_map(line_break_runs) {
            match vocabulary.mergeable_id(run) {
                Some(id) if run.starts_with('\n') => ids.push(id),
                _ => self.encode_run(run, vocabulary, merger, ids),
            }
        }
    }

    fn encode_run(&self, run: &str, vocabulary: &Vocabulary, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        let mut buffer = [0; 4];
        for character in run.chars() {
            let character = character.encode_utf8(&mut buffer);
            match vocabulary.mergeable_id(character) {
                Some(id) => merger.push(Some(id), character.len() as u32),
                None => character.bytes().for_each(|byte| merger.push(self.byte_ids[usize::from(byte)], 1)),
            }
        }
        merger.run(|a, b| self.merges.join(a, b), |s| ids.extend(s.id.or(self.unknown)));
    }
}

/// Cuts `text` into runs of line breaks and runs of everything else.
fn line_break_runs(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let breaks = rest.starts_with('\n');
        let end = rest.find(|c| (c == '\n') != breaks).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        rest = tail;
        (!run.is_empty()).then_some(run)
    })
}

/// The printable character by which byte-level vocabularies write `byte`.
pub(crate) fn char_of_byte(byte: u8) -> char {
    let code = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0..=b' ' => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte - 0x7F),
        0xAD => 0x143,
    };
    char::from_u32(code).expect("all codes are below the surrogates")
}

/// The byte that `character` stands for in a byte-level vocabulary.
pub(crate) fn byte_of_char(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| s.to_string()).collect()
    }

    #[test]
    fn bytes_and_characters_map_both_ways() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=u8::MAX {
            let character = char_of_byte(byte);
            assert!(seen.insert(character));
            assert_eq!(byte_of_char(character), Some(byte));
        }
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(byte_of_char('日'), None);
    }

    #[test]
    fn merges_divide_at_the_first_inner_space() {
        assert_eq!(split_merge("a b"), Some(("a", "b")));
        assert_eq!(split_merge("  b"), Some((" ", "b")));
        assert_eq!(split_merge("é b c"), Some(("é", "b c")));
        assert_eq!(split_merge("ab"), None);
        assert_eq!(split_merge("a "), None);
        assert_eq!(split_merge(""), None);
    }

    #[test]
    fn line_break_runs_stand_apart() {
        let runs: Vec<_> = line_break_runs("\n\na b\n\n\nc").collect();
        assert_eq!(runs, ["\n\n", "a b", "\n\n\n", "c"]);
    }

    #[test]
    fn character_bpe_merges_by_rank_and_falls_back_to_bytes() {
        let tokens = ["a", "b", "c", "bc", "ab", "\n", "\n\n", "<0xC3>", "<0xA9>", "<unk>"];
        let vocabulary = Vocabulary::new(strings(&tokens), None).unwrap();
        let merges = strings(&["b c", "a b", "\n \n", "x y"]);
        let bpe = CharacterBpe::new(&merges, Some(9), &vocabulary).unwrap();
        let check = |text: &str, expected: &[u32]| {
            let mut ids = Vec::new();
            bpe.encode(text, &vocabulary, &mut Merger::default(), &mut ids);
            assert_eq!(ids, expected, "{text:?}");
        };
        check("abc", &[0, 3]);
        check("ab\n\n\nc", &[4, 6, 5, 2]);
        check("aéü", &[0, 7, 8, 7, 9]);
    }

    #[test]
    fn merges_never_make_control_tokens() {
        let vocabulary = Vocabulary::new(strings(&["a", "b", "ab"]), Some(&[1, 1, 3])).unwrap();
        let table = MergeTable::new(&strings(&["a b"]), &vocabulary).unwrap();
        assert!(table.0.is_empty());
    }

    #[test]
    fn a_merge_that_is_no_pair_is_an_error() {
        let vocabulary = Vocabulary::new(strings(&["a"]), None).unwrap();
        assert!(MergeTable::new(&strings(&["aa"]), &vocabulary).is_err());
    }
}
