use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::TextError;

/// The GGUF token types, numbered as in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    fn from_number(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether joining pieces of ordinary text may yield such a token.
    pub(crate) fn is_mergeable(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined | Self::Unused)
    }
}

/// Token texts and their ids; of several tokens with one text the lowest id is found.
pub(crate) struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<TokenKind>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Vocabulary {
    pub(crate) fn new(tokens: Vec<String>, token_types: Option<&[i32]>) -> Result<Self, TextError> {
        let count =
            u32::try_from(tokens.len()).map_err(|_| TextError::InvalidVocabulary("more than 2^32 tokens".into()))?;
        if count == 0 {
            return Err(TextError::InvalidVocabulary("no tokens".into()));
        }
        if let Some(types) = token_types
            && types.len() != tokens.len()
        {
            return Err(TextError::InvalidVocabulary(format!(
                "{} tokens but {} token types",
                tokens.len(),
                types.len()
            )));
        }
        let kinds = match token_types {
            Some(types) => types.iter().map(|&n| TokenKind::from_number(n)).collect(),
            None => tokens.iter().map(|text| kind_by_text(text)).collect(),
        };
        let hasher = DefaultHashBuilder::default();
        let mut index = HashTable::with_capacity(tokens.len());
        for (id, text) in (0..count).zip(&tokens) {
            if text.is_empty() {
                continue;
            }
            index
                .entry(
                    hasher.hash_one(text.as_str()),
                    |&other| tokens[other as usize] == *text,
                    |&other| hasher.hash_one(tokens[other as usize].as_str()),
                )
                .or_insert(id);
        }
        Ok(Self { tokens, kinds, index, hasher })
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.index.find(self.hasher.hash_one(text), |&id| self.tokens[id as usize] == text).copied()
    }

    /// The id of `text` if ordinary text may become that token.
    pub(crate) fn mergeable_id(&self, text: &str) -> Option<u32> {
        self.id(text).filter(|&id| self.kinds[id as usize].is_mergeable())
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Every token with text, in id order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        (0..)
            .zip(self.tokens.iter().zip(&self.kinds))
            .map(|(id, (text, &kind))| (id, text.as_str(), kind))
            .filter(|(_, text, _)| !text.is_empty())
    }

    /// The ids of `<0x00>` to `<0xFF>`, where the vocabulary has them.
    pub(crate) fn byte_ids(&self) -> Box<[Option<u32>; 256]> {
        let mut ids = Box::new([None; 256]);
        for (byte, id) in (0..=u8::MAX).zip(ids.iter_mut()) {
            *id = self.id(&format!("<0x{byte:02X}>"));
        }
        ids
    }
}

fn kind_by_text(text: &str) -> TokenKind {
    match byte_of(text) {
        Some(_) => TokenKind::Byte,
        None => TokenKind::Normal,
    }
}

/// The byte that a token written as `<0xXX>` stands for.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[&str]) -> Vocabulary {
        let tokens = tokens.iter().map(|t| t.to_string()).collect();
        Vocabulary::new(tokens, None).unwrap()
    }

    #[test]
    fn the_first_of_duplicate_tokens_is_found() {
        let vocabulary = vocabulary(&["", "a", "b", "a"]);
        assert_eq!(vocabulary.id("a"), Some(1));
        assert_eq!(vocabulary.id(""), None);
        assert_eq!(vocabulary.text(3), Some("a"));
        assert_eq!(vocabulary.text(4), None);
    }

    #[test]
    fn byte_tokens_are_recognised_by_text_when_types_are_missing() {
        let vocabulary = vocabulary(&["<0x0A>", "<0x0>", "<0x+A>"]);
        assert_eq!(vocabulary.kind(0), Some(TokenKind::Byte));
        assert_eq!(vocabulary.kind(1), Some(TokenKind::Normal));
        assert_eq!(vocabulary.byte_ids()[10], Some(0));
        assert_eq!(vocabulary.byte_ids()[11], None);
    }

    #[test]
    fn a_type_list_of_another_length_is_an_error() {
        let error = Vocabulary::new(vec!["a".into()], Some(&[1, 1])).err().unwrap();
        assert!(error.to_string().contains("1 tokens but 2 token types"));
    }
}
