use regex::Regex;

use crate::TextError;

pub(crate) const SUPPORTED: &str = "default, gpt-2, smollm, llama-bpe, llama3, qwen2";

// The published patterns end in `\s+(?!\S)|\s+`. Look-ahead needs a backtracking engine, so here
// they end in `\s+` and `words` gives the last white-space character back to the next word.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

/// Cuts text into the words inside which byte-level BPE merges.
pub(crate) struct PreTokenizer {
    pattern: Regex,
    /// Every digit is a word of its own, and the text between digits is split apart from them.
    isolates_digits: bool,
    /// The pattern takes white space up to a line break as one word.
    keeps_line_breaks: bool,
    /// A word that is itself a token is not merged (llama 3).
    pub(crate) takes_whole_words: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer that `tokenizer.ggml.pre` names; `gpt-2` when absent.
    pub(crate) fn new(name: Option<&str>) -> Result<Self, TextError> {
        let pattern = match name.unwrap_or("gpt-2") {
            "default" | "gpt-2" | "smollm" => GPT2,
            "llama-bpe" | "llama3" => LLAMA3,
            "qwen2" => QWEN2,
            other => {
                return Err(TextError::UnsupportedPreTokenizer { name: other.to_owned(), supported: SUPPORTED });
            }
        };
        Ok(Self {
            pattern: Regex::new(pattern).expect("the patterns above are valid"),
            isolates_digits: name == Some("smollm"),
            keeps_line_breaks: pattern != GPT2,
            takes_whole_words: pattern == LLAMA3,
        })
    }

    /// Calls `word` for each word of `text`; together they are the whole text.
    pub(crate) fn words<'t>(&self, text: &'t str, mut word: impl FnMut(&'t str)) {
        if !self.isolates_digits {
            return self.split(text, &mut word);
        }
        let mut start = 0;
        for (at, digit) in text.char_indices().filter(|(_, c)| c.is_numeric()) {
            let end = at + digit.len_utf8();
            self.split(&text[start..at], &mut word);
            word(&text[at..end]);
            start = end;
        }
        self.split(&text[start..], &mut word);
    }

    fn split<'t>(&self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        let mut start = 0;
        while let Some(found) = self.pattern.find_at(text, start) {
            let end = found.end() - self.given_back(found.as_str(), found.end() == text.len());
            word(&text[start..end]);
            start = end;
        }
    }

    /// Bytes of trailing white space that belong to the next word.
    fn given_back(&self, found: &str, at_end: bool) -> usize {
        let Some(last) = found.chars().next_back() else {
            return 0;
        };
        let is_line_word = self.keeps_line_breaks && matches!(last, '\r' | '\n');
        if at_end || is_line_word || !last.is_whitespace() || found.len() == last.len_utf8() {
            return 0;
        }
        last.len_utf8()
    }
}

/// The name of the pre-tokenizer whose published pattern is `pattern`.
pub(crate) fn name_of_pattern(pattern: &str) -> Option<&'static str> {
    let published = pattern.strip_suffix(r"|\s+(?!\S)|\s+")?;
    let same = |ours: &str| ours.strip_suffix(r"|\s+") == Some(published);
    [("gpt-2", GPT2), ("llama-bpe", LLAMA3), ("qwen2", QWEN2)]
        .into_iter()
        .find_map(|(name, ours)| same(ours).then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expected: &[&str]) {
        let mut words = Vec::new();
        PreTokenizer::new(Some(name)).unwrap().words(text, |w| words.push(w));
        assert_eq!(words, expected, "{name}: {text:?}");
    }

    #[test]
    fn gpt2_words() {
        check(
            "gpt-2",
            "I'll  go\n\n now 12 + 3!? ",
            &["I", "'ll", " ", " go", "\n\n", " now", " 12", " +", " 3", "!?", " "],
        );
        check("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]);
        check("gpt-2", "a \u{a0}b", &["a", " ", "\u{a0}", "b"]);
        check("gpt-2", "", &[]);
    }

    #[test]
    fn smollm_isolates_digits() {
        check("smollm", "In 2024,  7", &["In", " ", "2", "0", "2", "4", ",", "  ", "7"]);
        check("smollm", "½x", &["½", "x"]);
    }

    #[test]
    fn llama3_words() {
        check("llama-bpe", "It'S 12345\r\n  \n x.\n", &["It", "'S", " ", "123", "45", "\r\n  \n", " x", ".\n"]);
        check("llama3", "a   b\tc", &["a", "  ", " b", "\tc"]);
    }

    #[test]
    fn qwen2_takes_single_digits() {
        check("qwen2", "x 123  \n\n y", &["x", " ", "1", "2", "3", "  \n\n", " y"]);
    }

    #[test]
    fn an_unknown_name_lists_the_supported_ones() {
        let error = PreTokenizer::new(Some("tekken")).err().unwrap().to_string();
        assert!(error.contains("tekken") && error.contains("smollm"), "{error}");
    }

    #[test]
    fn published_patterns_are_named() {
        let llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(name_of_pattern(llama), Some("llama-bpe"));
        assert_eq!(name_of_pattern(r"\s+"), None);
    }
}
