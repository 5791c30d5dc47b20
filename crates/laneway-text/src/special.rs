use aho_corasick::{AhoCorasick, MatchKind};

use crate::TextError;
use crate::vocabulary::{TokenKind, Vocabulary};

/// A noncharacter put into message text to break up what looks like a special token.
const BREAKER: char = '\u{FDD0}';

/// Text between special tokens, or such a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

/// Finds the tokens that are matched before merging: leftmost first, longest on ties.
pub(crate) struct SpecialTokens {
    all: Matcher,
    /// Tokens that steer the model.
    markup: Matcher,
    /// User-defined tokens that stand for ordinary text (runs of spaces, HTML tags).
    plain: Matcher,
}

impl SpecialTokens {
    /// `steers` tells which tokens are markup although they are not control tokens.
    pub(crate) fn new(vocabulary: &Vocabulary, steers: impl Fn(u32, &str) -> bool) -> Result<Self, TextError> {
        let special = |(id, text, kind): (u32, _, _)| match kind {
            TokenKind::Control => Some((id, text, true)),
            TokenKind::UserDefined => Some((id, text, steers(id, text))),
            _ => None,
        };
        let tokens: Vec<_> =
            vocabulary.iter().filter(|&(id, text, _)| vocabulary.id(text) == Some(id)).filter_map(special).collect();
        let of_kind = |is_markup| tokens.iter().filter(move |&&(_, _, m)| m == is_markup);
        Ok(Self {
            all: Matcher::new(tokens.iter())?,
            markup: Matcher::new(of_kind(true))?,
            plain: Matcher::new(of_kind(false))?,
        })
    }

    /// Cuts `text` into special tokens and the text between them.
    ///
    /// Without `parse_markup` only user-defined tokens that stand for ordinary text are matched.
    pub(crate) fn fragments<'t>(&self, text: &'t str, parse_markup: bool) -> impl Iterator<Item = Fragment<'t>> {
        let matcher = if parse_markup { &self.all } else { &self.plain };
        let mut at = 0;
        matcher
            .find(text)
            .map(Some)
            .chain(std::iter::once(None))
            .flat_map(move |found| {
                let (end, next) = found.map_or((text.len(), text.len()), |(range, _)| range);
                let before = &text[at..end];
                at = next;
                let before = (!before.is_empty()).then_some(Fragment::Text(before));
                [before, found.map(|(_, id)| Fragment::Token(id))]
            })
            .flatten()
    }

    /// `text` with the markup in it broken up, so that it stays text in a rendered prompt.
    pub(crate) fn neutralised(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for ((start, end), _) in self.markup.find(text) {
            out.push_str(&text[at..start]);
            for character in text[start..end].chars() {
                out.push(character);
                out.push(BREAKER);
            }
            at = end;
        }
        out.push_str(&text[at..]);
        out
    }
}

/// Removes what [`SpecialTokens::neutralised`] put in.
pub(crate) fn without_breakers(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(BREAKER) { text.replace(BREAKER, "").into() } else { text.into() }
}

struct Matcher {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Matcher {
    fn new<'v>(tokens: impl Iterator<Item = &'v (u32, &'v str, bool)> + Clone) -> Result<Self, TextError> {
        let ids: Vec<u32> = tokens.clone().map(|&(id, _, _)| id).collect();
        if ids.is_empty() {
            return Ok(Self { automaton: None, ids });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.map(|&(_, text, _)| text))
            .map_err(|e| TextError::InvalidVocabulary(format!("special tokens: {e}")))?;
        Ok(Self { automaton: Some(automaton), ids })
    }

    /// Byte ranges and ids of the matches.
    fn find(&self, text: &str) -> impl Iterator<Item = ((usize, usize), u32)> {
        self.automaton
            .iter()
            .flat_map(move |automaton| automaton.find_iter(text))
            .map(|m| ((m.start(), m.end()), self.ids[m.pattern().as_usize()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special() -> SpecialTokens {
        let tokens = ["<a>", "<a><b>", "\n\n", "<|x", "plain"].map(String::from).to_vec();
        let vocabulary = Vocabulary::new(tokens, Some(&[3, 3, 4, 4, 1])).unwrap();
        SpecialTokens::new(&vocabulary, |_, text| text.starts_with("<|")).unwrap()
    }

    fn check(text: &str, parse_markup: bool, expected: &[Fragment]) {
        let special = special();
        let found: Vec<_> = special.fragments(text, parse_markup).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn the_longest_token_wins() {
        use Fragment::{Text, Token};
        check("x<a><b><a>plain", true, &[Text("x"), Token(1), Token(0), Text("plain")]);
        check("", true, &[]);
    }

    #[test]
    fn markup_is_text_unless_it_is_asked_for() {
        use Fragment::{Text, Token};
        check("<a>\n\n<|x", false, &[Text("<a>"), Token(2), Text("<|x")]);
        check("<a>\n\n<|x", true, &[Token(0), Token(2), Token(3)]);
    }

    #[test]
    fn neutralised_markup_is_text_and_comes_back() {
        let special = special();
        let safe = special.neutralised("é<a><b><|x\n\n");
        let fragments: Vec<_> = special.fragments(&safe, true).collect();
        assert_eq!(fragments.len(), 2, "{fragments:?}");
        assert_eq!(fragments[1], Fragment::Token(2));
        assert_eq!(without_breakers(&safe), "é<a><b><|x\n\n");
    }
}
