use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

/// What a completion continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text, tokenised by the server.
    Text(String),
    /// Token ids, not yet checked against a vocabulary.
    Ids(Vec<u32>),
}

impl Prompt {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        }
    }
}

/// The `prompt` field: a string, token ids, or a list of either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompts(pub Vec<Prompt>);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PromptsVisitor;
        impl<'de> Visitor<'de> for PromptsVisitor {
            type Value = Prompts;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string, a list of strings, token ids, or lists of token ids")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(value.to_owned())]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
                let (mut prompts, mut ids) = (Vec::new(), Vec::new());
                while let Some(item) = seq.next_element()? {
                    match item {
                        Item::Id(id) => ids.push(id),
                        Item::Prompt(prompt) => prompts.push(prompt),
                    }
                    if !ids.is_empty() && !prompts.is_empty() {
                        return Err(de::Error::custom("token ids and prompts cannot be mixed in one list"));
                    }
                }
                if !ids.is_empty() {
                    prompts.push(Prompt::Ids(ids));
                }
                Ok(Prompts(prompts))
            }
        }
        deserializer.deserialize_any(PromptsVisitor)
    }
}

enum Item {
    Id(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemVisitor;
        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = Item;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string, a token id, or a list of token ids")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Item, E> {
                u32::try_from(value)
                    .map(Item::Id)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &"a token id"))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Item, E> {
                Ok(Item::Prompt(Prompt::Text(value.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element()? {
                    ids.push(id);
                }
                Ok(Item::Prompt(Prompt::Ids(ids)))
            }
        }
        deserializer.deserialize_any(ItemVisitor)
    }
}
