use std::borrow::Cow;

use crate::bpe::{ByteLevelBpe, CharacterBpe, byte_of_char};
use crate::merge::Merger;
use crate::sentencepiece::SentencePiece;
use crate::special::{Fragment, SpecialTokens, without_breakers};
use crate::template::{ChatMessage, ChatTemplate, RenderOptions};
use crate::vocabulary::{TokenKind, Vocabulary, byte_of};
use crate::{TextError, tokenizer_json};

/// Texts of tokens that end a generation, whatever the file's end-of-sequence id is.
const END_OF_GENERATION: [&str; 8] = [
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_turn>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
];

/// What a tokenizer is built from: the `tokenizer.*` keys of a GGUF file.
#[derive(Debug, Clone, Default)]
pub struct TokenizerSource {
    /// `tokenizer.ggml.model`: `gpt2`, `llama` or `gemma4`.
    pub model: String,
    /// `tokenizer.ggml.pre`, used by `gpt2` only.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    /// One per token; needed by `llama`.
    pub scores: Option<Vec<f32>>,
    /// One per token, numbered as in GGUF; absent means all are ordinary text or bytes.
    pub token_types: Option<Vec<i32>>,
    /// `left right`, best first; used by `gpt2` and `gemma4`.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Stands for text without tokens, which is dropped if this is absent or a control token.
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    /// End of a turn (`tokenizer.ggml.eot_token_id`).
    pub eot: Option<u32>,
    /// Whether prompts start with the `bos` token.
    pub add_bos: bool,
    /// Whether training texts ended with the `eos` token; prompts never do.
    pub add_eos: bool,
    /// Whether text gets a leading space (`llama` and `gemma4`); absent in a `llama` file means yes.
    pub add_space_prefix: bool,
    /// The Jinja source of the chat template.
    pub chat_template: Option<String>,
}

/// How [`Tokenizer::encode`] treats its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Start with the `bos` token if the model wants one and the text does not have it already.
    pub add_bos: bool,
    /// Recognise special tokens written in the text. Never set this for untrusted text.
    pub parse_special: bool,
}

/// Maps text to token ids and back for one model.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    special: SpecialTokens,
    end_of_generation: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    chat_template: Option<String>,
}

enum Algorithm {
    ByteLevel(ByteLevelBpe),
    SentencePiece(SentencePiece),
    Character(CharacterBpe),
}

impl Tokenizer {
    /// Builds a tokenizer from GGUF metadata.
    ///
    /// # Errors
    /// An unsupported `model` or `pre`, lists of differing lengths, special ids outside the
    /// vocabulary, merges that are no pairs.
    pub fn new(source: TokenizerSource) -> Result<Self, TextError> {
        check_special_ids(&source)?;
        let vocabulary = Vocabulary::new(source.tokens, source.token_types.as_deref())?;
        let merges = &source.merges;
        // Some byte-level files name their end-of-text token here: text must never become that.
        let unknown = source.unk.filter(|&id| vocabulary.kind(id) != Some(TokenKind::Control));
        let algorithm = match source.model.as_str() {
            "gpt2" => {
                let pre = source.pre.as_deref();
                Algorithm::ByteLevel(ByteLevelBpe::new(merges, pre, unknown, &vocabulary)?)
            }
            "llama" => {
                let scores = source.scores.as_deref().unwrap_or_default();
                Algorithm::SentencePiece(SentencePiece::new(scores, unknown, &vocabulary)?)
            }
            "gemma4" => Algorithm::Character(CharacterBpe::new(merges, unknown, &vocabulary)?),
            _ => return Err(TextError::UnsupportedModel(source.model)),
        };
        let end_of_generation = end_of_generation(&vocabulary, source.eos, source.eot);
        let special = SpecialTokens::new(&vocabulary, |id, text| {
            end_of_generation.contains(&id) || text.starts_with("<|") || text.ends_with("|>")
        })?;
        Ok(Self {
            add_space_prefix: source.add_space_prefix && !matches!(algorithm, Algorithm::ByteLevel(_)),
            vocabulary,
            algorithm,
            special,
            end_of_generation,
            bos: source.bos,
            eos: source.eos,
            pad: source.pad,
            add_bos: source.add_bos,
            add_eos: source.add_eos,
            chat_template: source.chat_template,
        })
    }

    /// Builds a tokenizer from the texts of `tokenizer.json` and, where there is one,
    /// `tokenizer_config.json`.
    ///
    /// Unicode normalisation (NFC) that the file may ask for is not applied.
    ///
    /// # Errors
    /// Files that are not JSON of the expected form; kinds other than byte-level BPE and BPE with
    /// byte fallback.
    pub fn from_tokenizer_json(tokenizer_json: &str, tokenizer_config_json: Option<&str>) -> Result<Self, TextError> {
        Self::new(tokenizer_json::source(tokenizer_json, tokenizer_config_json)?)
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        self.encode_with(text, options, |text| Cow::Borrowed(text))
    }

    /// Renders `messages` with `template` and encodes the prompt with special tokens recognised.
    ///
    /// Special tokens written in messages stay text, except in those of the roles
    /// `assistant`, `model`, `system` and `developer`, which the caller is trusted with.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::render`].
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[ChatMessage],
        options: &RenderOptions,
    ) -> Result<Vec<u32>, TextError> {
        let guarded: Vec<ChatMessage> = messages.iter().map(|m| self.guarded(m)).collect();
        let prompt = template.render(&guarded, options)?;
        let options = EncodeOptions { add_bos: true, parse_special: true };
        Ok(self.encode_with(&prompt, options, without_breakers))
    }

    /// The text of `ids`, with invalid UTF-8 replaced by U+FFFD.
    ///
    /// With `skip_special` the tokens of [`is_special`](Self::is_special) are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = ids.iter().filter(|&&id| !skip_special || !self.is_special(id));
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        shown.for_each(|&id| bytes.extend_from_slice(&self.token_bytes(id)));
        let prefix = usize::from(self.add_space_prefix && bytes.first() == Some(&b' '));
        String::from_utf8_lossy(&bytes[prefix..]).into_owned()
    }

    /// The bytes that a token stands for; none if the id is outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let (Some(text), Some(kind)) = (self.vocabulary.text(id), self.vocabulary.kind(id)) else {
            return Cow::Borrowed(&[]);
        };
        let verbatim = matches!(kind, TokenKind::Control | TokenKind::Unknown);
        match (&self.algorithm, kind) {
            _ if verbatim => Cow::Borrowed(text.as_bytes()),
            (Algorithm::ByteLevel(_), TokenKind::UserDefined) => Cow::Borrowed(text.as_bytes()),
            (Algorithm::ByteLevel(_), _) => Cow::Owned(bytes_of_written(text)),
            (_, TokenKind::Byte) => match byte_of(text) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(text.as_bytes()),
            },
            _ if text.contains('▁') => Cow::Owned(text.replace('▁', " ").into_bytes()),
            _ => Cow::Borrowed(text.as_bytes()),
        }
    }

    /// A token as the vocabulary writes it.
    pub fn token_piece(&self, id: u32) -> Option<&str> {
        self.vocabulary.text(id)
    }

    /// The id of the token that the vocabulary writes as `piece`.
    pub fn token_id(&self, piece: &str) -> Option<u32> {
        self.vocabulary.id(piece)
    }

    /// Tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The padding token.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Whether prompts of this model start with the `bos` token.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether training texts of this model ended with the `eos` token.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether text gets a leading space, which decoding takes off again.
    pub fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Whether a token is control or unknown, or ends a generation, and so is no part of an answer.
    pub fn is_special(&self, id: u32) -> bool {
        let kind = self.vocabulary.kind(id);
        matches!(kind, Some(TokenKind::Control | TokenKind::Unknown)) || self.end_of_generation.contains(&id)
    }

    /// The tokens after which a model has finished its answer, in ascending order.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// The Jinja source of the model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    fn encode_with(&self, text: &str, options: EncodeOptions, clean: fn(&str) -> Cow<'_, str>) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        let bos = self.bos.filter(|_| options.add_bos && self.add_bos);
        ids.extend(bos);
        let mut merger = Merger::default();
        for fragment in self.special.fragments(text, options.parse_special) {
            match fragment {
                Fragment::Token(id) if ids.len() == 1 && Some(id) == bos => {}
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_text(&clean(text), &mut merger, &mut ids),
            }
        }
        ids
    }

    fn encode_text(&self, text: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        let vocabulary = &self.vocabulary;
        match &self.algorithm {
            Algorithm::ByteLevel(bpe) => bpe.encode(text, vocabulary, merger, ids),
            Algorithm::SentencePiece(spm) => {
                spm.encode(&self.with_visible_spaces(text), vocabulary, merger, ids);
            }
            Algorithm::Character(bpe) => {
                bpe.encode(&self.with_visible_spaces(text), vocabulary, merger, ids);
            }
        }
    }

    fn with_visible_spaces(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + text.len() / 2);
        if self.add_space_prefix {
            out.push('▁');
        }
        for (index, part) in text.split(' ').enumerate() {
            if index > 0 {
                out.push('▁');
            }
            out.push_str(part);
        }
        out
    }

    fn guarded(&self, message: &ChatMessage) -> ChatMessage {
        let mut message = message.clone();
        if !matches!(message.role.as_str(), "assistant" | "model" | "system" | "developer") {
            message.role = self.special.neutralised(&message.role);
            message.content = self.special.neutralised(&message.content);
            for value in message.extra.values_mut() {
                self.guard_value(value);
            }
        }
        message
    }

    fn guard_value(&self, value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) => *text = self.special.neutralised(text),
            serde_json::Value::Array(items) => items.iter_mut().for_each(|v| self.guard_value(v)),
            serde_json::Value::Object(map) => map.values_mut().for_each(|v| self.guard_value(v)),
            _ => {}
        }
    }
}

/// The bytes of a token written in the byte-level alphabet; other characters stand for themselves.
fn bytes_of_written(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte_of_char(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn check_special_ids(source: &TokenizerSource) -> Result<(), TextError> {
    let ids = [
        ("bos", source.bos),
        ("eos", source.eos),
        ("unknown", source.unk),
        ("padding", source.pad),
        ("eot", source.eot),
    ];
    for (name, id) in ids {
        if let Some(id) = id
            && id as usize >= source.tokens.len()
        {
            return Err(TextError::InvalidVocabulary(format!(
                "{name} token id {id} is outside the {} tokens",
                source.tokens.len()
            )));
        }
    }
    Ok(())
}

fn end_of_generation(vocabulary: &Vocabulary, eos: Option<u32>, eot: Option<u32>) -> Vec<u32> {
    let by_text = END_OF_GENERATION.iter().filter_map(|text| vocabulary.id(text));
    let mut ids: Vec<u32> = by_text.chain(eos).chain(eot).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
