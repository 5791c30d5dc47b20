use crate::TextError;
use crate::merge::{Join, Merger, bounded_pieces};
use crate::vocabulary::Vocabulary;

/// SentencePiece's BPE: neighbours merge when their text is a token, best score first.
pub(crate) struct SentencePiece {
    /// By token id; lower is better.
    priorities: Vec<u32>,
    longest_token_bytes: usize,
    byte_ids: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
}

impl SentencePiece {
    pub(crate) fn new(scores: &[f32], unknown: Option<u32>, vocabulary: &Vocabulary) -> Result<Self, TextError> {
        if scores.len() != vocabulary.len() {
            return Err(TextError::InvalidVocabulary(format!(
                "{} tokens but {} scores",
                vocabulary.len(),
                scores.len()
            )));
        }
        let longest_token_bytes = vocabulary
            .iter()
            .filter(|(_, _, kind)| kind.is_mergeable())
            .map(|(_, text, _)| text.len())
            .max()
            .unwrap_or(0);
        Ok(Self {
            priorities: scores.iter().map(|&score| priority(score)).collect(),
            longest_token_bytes,
            byte_ids: vocabulary.byte_ids(),
            unknown,
        })
    }

    /// Appends the ids of `text`, in which spaces have already become `▁`.
    pub(crate) fn encode(&self, text: &str, vocabulary: &Vocabulary, merger: &mut Merger, ids: &mut Vec<u32>) {
        for piece in bounded_pieces(text) {
            self.encode_piece(piece, vocabulary, merger, ids);
        }
    }

    fn encode_piece(&self, text: &str, vocabulary: &Vocabulary, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        for (start, character) in text.char_indices() {
            let len = character.len_utf8();
            merger.push(vocabulary.mergeable_id(&text[start..start + len]), len as u32);
        }
        let join = |start: u32, len: u32| {
            let (start, len) = (start as usize, len as usize);
            if len > self.longest_token_bytes {
                return None;
            }
            let id = vocabulary.mergeable_id(&text[start..start + len])?;
            Some(Join { priority: self.priorities[id as usize], id })
        };
        merger.run(
            |left, right| join(left.start, left.len + right.len),
            |symbol| match symbol.id {
                Some(id) => ids.push(id),
                None => {
                    let start = symbol.start as usize;
                    let bytes = &text.as_bytes()[start..start + symbol.len as usize];
                    let byte_id = |&byte: &u8| self.byte_ids[usize::from(byte)].or(self.unknown);
                    ids.extend(bytes.iter().filter_map(byte_id));
                }
            },
        );
    }
}

/// Maps scores to integers so that the highest score has the lowest number.
fn priority(score: f32) -> u32 {
    // Adding zero makes -0.0 and 0.0 tie; a NaN sorts beside the infinity of its sign.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_go_first() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -7.0, f32::NEG_INFINITY];
        let priorities: Vec<_> = scores.map(priority).to_vec();
        assert!(priorities.is_sorted_by(|a, b| a < b), "{priorities:?}");
        assert_eq!(priority(-0.0), priority(0.0));
    }

    #[test]
    fn merges_by_score_and_falls_back_to_bytes() {
        let tokens = ["a", "b", "c", "ab", "bc", "abc", "<0xC3>", "<0xA9>", "<c>", "▁"];
        let types = [1, 1, 1, 1, 1, 1, 6, 6, 3, 1];
        let scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0, 0.0, 0.0, 5.0, 0.0];
        let tokens = tokens.map(String::from).to_vec();
        let vocabulary = Vocabulary::new(tokens, Some(&types)).unwrap();
        let spm = SentencePiece::new(&scores, None, &vocabulary).unwrap();
        let check = |text: &str, expected: &[u32]| {
            let mut ids = Vec::new();
            spm.encode(text, &vocabulary, &mut Merger::default(), &mut ids);
            assert_eq!(ids, expected, "{text:?}");
        };
        check("abc", &[5]);
        check("ab▁bc", &[3, 9, 4]);
        check("éa", &[6, 7, 0]);
        check("<c>", &[2]);
        check("ü", &[6]);
    }

    #[test]
    fn scores_of_another_length_are_an_error() {
        let vocabulary = Vocabulary::new(vec!["a".into()], None).unwrap();
        assert!(SentencePiece::new(&[], None, &vocabulary).is_err());
    }
}
