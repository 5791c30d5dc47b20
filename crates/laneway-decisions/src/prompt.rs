//! Messages into token ids, with whatever the request says kept from steering the template.

use std::sync::Arc;

use laneway_text::{ChatMessage, ChatTemplate, EncodeOptions, RenderOptions, TextError, Tokenizer};
use serde_json::{Map, Value};

use crate::wording::{self, Frame};

/// Markup of an empty thought, which models of the Gemma 4 family expect before an answer without thinking.
const EMPTY_THOUGHT: &str = "<|channel>thought\n<channel|>";
/// Texts of tokens that close a turn, the most specific first.
const TURN_CLOSE: [&str; 4] = ["<turn|>", "<end_of_turn>", "<|im_end|>", "<|eot_id|>"];

/// How a model is addressed.
pub(crate) struct Prompter {
    pub tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    has_system: bool,
}

impl Prompter {
    /// # Errors
    /// The template fails on the simplest conversation.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Option<ChatTemplate>) -> Result<Self, TextError> {
        let mut prompter = Self { tokenizer, template, has_system: true };
        prompter.has_system = prompter.ids(Some("S"), "U").is_ok();
        prompter.ids(None, "U")?;
        Ok(prompter)
    }

    /// The ids of a conversation up to where the model's answer begins, thinking off.
    pub fn ids(&self, system: Option<&str>, user: &str) -> Result<Vec<u32>, TextError> {
        match &self.template {
            Some(template) => self.tokenizer.encode_chat(template, &self.messages(system, user), &options()),
            None => Ok(self.bare(&plain(system, user))),
        }
    }

    /// The ids of a question after a state.
    pub fn framed(&self, frame: &Frame, state: &str, question: &str) -> Result<Vec<u32>, TextError> {
        let user = frame.user(state, question);
        if frame.is_turn { self.ids(frame.system, &user) } else { Ok(self.bare(&user)) }
    }

    /// The first token of a word after bare text.
    pub fn first_token(&self, before: &str, word: &str) -> Option<u32> {
        let (before, whole) = (self.bare(before), self.bare(&format!("{before} {word}")));
        let first = *whole.strip_prefix(before.as_slice())?.first()?;
        // A space of its own begins any word.
        let is_word = !self.tokenizer.decode(&[first], false).trim().is_empty();
        is_word.then_some(first)
    }

    fn bare(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, EncodeOptions { add_bos: true, parse_special: false })
    }

    /// The ids of an answer right after a conversation that holds nothing of a request; none where a token of the
    /// prompt would reach into the answer.
    pub fn continuation(&self, neutral: &Neutral, answer: &str) -> Option<Vec<u32>> {
        let whole = self.neutral_ids(&format!("{}{answer}", neutral.text));
        let rest = whole.strip_prefix(neutral.ids.as_slice())?;
        (!rest.is_empty()).then(|| rest.to_vec())
    }

    /// A short conversation whose answer begins as `opening` does.
    pub fn neutral(&self, opening: &str) -> Result<Neutral, TextError> {
        let user = wording::TEXT_FRAME.user("-", "-");
        let mut text = match &self.template {
            Some(template) => template.render(&self.messages(None, &user), &options())?,
            None => plain(None, &user),
        };
        text += opening;
        Ok(Neutral { ids: self.neutral_ids(&text), text })
    }

    /// The tokens of an empty thought where this model wants one and its template writes none.
    pub fn missing_thought(&self) -> Result<Vec<u32>, TextError> {
        let markup = ["<|channel>", "<channel|>"];
        if self.template.is_none() || markup.iter().any(|piece| self.tokenizer.token_id(piece).is_none()) {
            return Ok(Vec::new());
        }
        let thought = self.tokenizer.encode(EMPTY_THOUGHT, EncodeOptions { add_bos: false, parse_special: true });
        let prompt = self.ids(None, "U")?;
        Ok(if prompt.ends_with(&thought) { Vec::new() } else { thought })
    }

    /// The token that closes the model's turn.
    pub fn turn_close(&self) -> Option<u32> {
        let ends = self.tokenizer.end_of_generation();
        let by_text = TURN_CLOSE.iter().filter_map(|piece| self.tokenizer.token_id(piece));
        by_text.filter(|id| ends.contains(id)).chain(self.tokenizer.eos()).chain(ends.iter().copied()).next()
    }

    fn neutral_ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, EncodeOptions { add_bos: true, parse_special: self.template.is_some() })
    }

    fn messages(&self, system: Option<&str>, user: &str) -> Vec<ChatMessage> {
        match system {
            Some(system) if self.has_system => vec![untrusted("system", system), untrusted("user", user)],
            Some(system) => vec![untrusted("user", &format!("{system}\n\n{user}"))],
            None => vec![untrusted("user", user)],
        }
    }
}

/// A prompt's text and ids, the text of labels still to come.
pub(crate) struct Neutral {
    text: String,
    pub ids: Vec<u32>,
}

/// A message whose text stays text: a system message is otherwise trusted with markup, and here a stranger's question
/// is in it. Keys beside the role and the content win over them, and are guarded in roles without trust.
fn untrusted(role: &str, content: &str) -> ChatMessage {
    let mut message = ChatMessage::new("user", "");
    message.extra.insert("role".into(), Value::from(role));
    message.extra.insert("content".into(), Value::from(content));
    message
}

fn options() -> RenderOptions {
    let extra = Map::from_iter([("enable_thinking".to_owned(), Value::from(false))]);
    RenderOptions { add_generation_prompt: true, extra, now_unix_s: None }
}

fn plain(system: Option<&str>, user: &str) -> String {
    let system = system.map(|text| format!("{text}\n\n")).unwrap_or_default();
    format!("{system}{user}{}", wording::plain_closing())
}
