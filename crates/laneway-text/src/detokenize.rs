use crate::Tokenizer;

/// Turns ids into text one at a time, never splitting a character.
///
/// All its output together is what [`Tokenizer::decode`] gives for all the ids.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    skip_special: bool,
    /// The leading space of a text that follows nothing has been dealt with.
    started: bool,
    /// An unfinished character: 3 bytes at most between calls.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer for a text of its own, such as an answer.
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, started: false, pending: Vec::new() }
    }

    /// A detokenizer for text that goes on after a prompt: it keeps a leading space.
    pub fn continuing(skip_special: bool) -> Self {
        Self { skip_special, started: true, pending: Vec::new() }
    }

    /// The text that `id` completes, if any.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Option<String> {
        if self.skip_special && tokenizer.is_special(id) {
            return None;
        }
        self.pending.extend_from_slice(&tokenizer.token_bytes(id));
        if !self.started && !self.pending.is_empty() {
            self.started = true;
            if tokenizer.adds_space_prefix() && self.pending[0] == b' ' {
                self.pending.remove(0);
            }
        }
        let ready = self.pending.len() - unfinished_bytes(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..ready]).into_owned();
        self.pending.drain(..ready);
        (!text.is_empty()).then_some(text)
    }

    /// Ends the text: a character that was never finished becomes U+FFFD.
    pub fn finish(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

/// Trailing bytes that later bytes may complete to a character.
fn unfinished_bytes(bytes: &[u8]) -> usize {
    let tail = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(tail) {
        Err(error) if error.error_len().is_none() => tail.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::TokenizerSource;

    fn byte_tokenizer(add_space_prefix: bool) -> Tokenizer {
        let mut tokens: Vec<String> = (0..=255).map(|b: u8| format!("<0x{b:02X}>")).collect();
        tokens.extend(["<c>", "▁日本", "é▁"].map(String::from));
        let mut types = vec![6; 256];
        types.extend([3, 1, 1]);
        Tokenizer::new(TokenizerSource {
            model: "llama".into(),
            scores: Some(vec![0.0; tokens.len()]),
            tokens,
            token_types: Some(types),
            add_space_prefix,
            ..Default::default()
        })
        .unwrap()
    }

    fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(skip_special);
        let mut out: Vec<_> = ids.iter().map(|&id| detokenizer.push(tokenizer, id)).collect();
        out.push(detokenizer.finish());
        out.into_iter().flatten().collect()
    }

    /// Ids that often form whole and broken characters, and some outside the vocabulary.
    fn ids() -> impl Strategy<Value = Vec<u32>> {
        let id =
            prop_oneof![0u32..262, prop::sample::select(vec![0xF0, 0x9F, 0x99, 0x82, 0xE2, 0x80, 0xC3, 0xA9, 32]),];
        prop::collection::vec(id, 0..24)
    }

    proptest! {
        #[test]
        fn streaming_equals_decoding(ids in ids(), skip in any::<bool>(), prefix in any::<bool>()) {
            let tokenizer = byte_tokenizer(prefix);
            prop_assert_eq!(streamed(&tokenizer, &ids, skip), tokenizer.decode(&ids, skip));
        }
    }

    #[test]
    fn a_character_is_held_until_it_is_whole() {
        let tokenizer = byte_tokenizer(false);
        let mut detokenizer = Detokenizer::new(true);
        let pushed = [0xF0, 0x9F, 0x99, 0x82, 0x61].map(|id| detokenizer.push(&tokenizer, id));
        let expected = [None, None, None, Some("🙂".to_owned()), Some("a".to_owned())];
        assert_eq!(pushed, expected);
        assert_eq!(detokenizer.finish(), None);
    }

    #[test]
    fn broken_characters_become_replacement_characters() {
        let tokenizer = byte_tokenizer(false);
        assert_eq!(streamed(&tokenizer, &[0xF0, 0x9F, 0x61, 0xFF, 0xE2], true), "\u{FFFD}a\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn only_a_text_of_its_own_loses_the_prefix_space() {
        let tokenizer = byte_tokenizer(true);
        assert_eq!(Detokenizer::new(true).push(&tokenizer, 257).as_deref(), Some("日本"));
        assert_eq!(Detokenizer::continuing(true).push(&tokenizer, 257).as_deref(), Some(" 日本"));
    }
}
