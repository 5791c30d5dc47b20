use std::sync::Arc;

use laneway_session::{Decoded, Decoder, StopReason};
use laneway_text::{Detokenizer, StopMatcher, Tokenizer};

/// Tokens that open and close a model's thoughts, and whether the channel's name follows the first.
const CHANNELS: [(&str, &str, bool); 2] = [("<|channel>", "<channel|>", true), ("<think>", "</think>", false)];
/// The channel that holds thoughts.
const THOUGHT: &str = "thought";
/// Bytes without a line break after which a channel has no name: it is text that nothing may hold back.
const LONGEST_NAME: usize = 64;
/// Tokens at the end of a prompt among which a channel that goes on in the answer is opened.
const OPENING: usize = 16;

/// Turns generated tokens into text that is safe to send: whole characters, nothing of a stop string.
pub struct TextDecoder {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    channel: Option<Channel>,
}

/// Where the model's thoughts begin and end.
struct Channel {
    opens: u32,
    closes: u32,
    is_named: bool,
    place: Place,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Answer,
    /// The answer's first text after a channel, whose leading line breaks are no part of it.
    AnswerStart,
    /// The channel's name so far.
    Name(String),
    /// The same for a thought.
    ThoughtStart,
    Thought,
}

impl TextDecoder {
    /// A decoder for one answer that ends before any of `stops`.
    pub fn new(tokenizer: Arc<Tokenizer>, detokenizer: Detokenizer, stops: Vec<String>) -> Self {
        Self { tokenizer, detokenizer, stops: StopMatcher::new(stops), channel: None }
    }

    /// Tells thoughts from the answer, where the vocabulary has tokens for it; stop strings end only the answer.
    pub fn with_channels(mut self) -> Self {
        let channel = |(opens, closes, is_named): (&str, &str, bool)| {
            let (opens, closes) = (self.tokenizer.token_id(opens)?, self.tokenizer.token_id(closes)?);
            Some(Channel { opens, closes, is_named, place: Place::Answer })
        };
        self.channel = CHANNELS.into_iter().find_map(channel);
        self
    }

    /// Begins inside the channel that a prompt ends with, where a template opens one.
    pub fn after(mut self, prompt: &[u32]) -> Self {
        let Some(channel) = &mut self.channel else { return self };
        let end = &prompt[prompt.len().saturating_sub(OPENING)..];
        let Some(at) = end.iter().rposition(|token| *token == channel.opens) else { return self };
        let text = self.tokenizer.decode(&end[at + 1..], false);
        channel.place = match text.split_once('\n').filter(|_| channel.is_named) {
            Some((name, rest)) if name.trim() == THOUGHT && rest.trim().is_empty() => Place::ThoughtStart,
            None if channel.is_named && THOUGHT.starts_with(&text) => Place::Name(text),
            None if !channel.is_named && text.trim().is_empty() => Place::ThoughtStart,
            _ => return self,
        };
        self
    }

    /// Text that is held back, when a channel opens or closes.
    fn held_back(&mut self) -> Decoded {
        let rest = self.detokenizer.finish().unwrap_or_default();
        let mut decoded = self.place(rest);
        if !decoded.reasoning {
            let last = self.stops.finish();
            decoded.text.push_str(&last.text);
            decoded.stop = last.hit.map(|_| StopReason::StopString);
        }
        decoded
    }

    fn is_thinking(&self) -> bool {
        let place = self.channel.as_ref().map(|channel| &channel.place);
        matches!(place, Some(Place::Thought | Place::ThoughtStart))
    }

    /// The channel's own part of a piece of text.
    fn place(&mut self, piece: String) -> Decoded {
        let Some(channel) = &mut self.channel else { return self.answer(piece) };
        match &mut channel.place {
            Place::Answer => self.answer(piece),
            Place::AnswerStart => {
                let text = piece.trim_start_matches('\n').to_owned();
                if !text.is_empty() {
                    channel.place = Place::Answer;
                }
                self.answer(text)
            }
            Place::Name(name) => {
                name.push_str(&piece);
                let (text, place) = match name.split_once('\n') {
                    Some((name, text)) if name.trim() == THOUGHT => (text.to_owned(), Place::ThoughtStart),
                    Some((_, text)) => (text.to_owned(), Place::AnswerStart),
                    None if name.len() > LONGEST_NAME => (std::mem::take(name), Place::Answer),
                    None => return Decoded::default(),
                };
                channel.place = place;
                self.place(text)
            }
            Place::ThoughtStart => {
                let text = piece.trim_start_matches('\n').to_owned();
                if !text.is_empty() {
                    channel.place = Place::Thought;
                }
                Decoded { text, reasoning: true, stop: None }
            }
            Place::Thought => Decoded { text: piece, reasoning: true, stop: None },
        }
    }

    fn answer(&mut self, piece: String) -> Decoded {
        let step = self.stops.push(&piece);
        Decoded { text: step.text, reasoning: false, stop: step.hit.map(|_| StopReason::StopString) }
    }
}

impl Channel {
    /// The place after `token`, if it opens or closes the channel.
    fn after(&self, token: u32) -> Option<Place> {
        match token {
            token if token == self.opens && self.is_named => Some(Place::Name(String::new())),
            token if token == self.opens => Some(Place::ThoughtStart),
            token if token == self.closes => Some(Place::AnswerStart),
            _ => None,
        }
    }
}

impl Decoder for TextDecoder {
    fn token(&mut self, token: u32) -> Decoded {
        if self.tokenizer.end_of_generation().contains(&token) {
            // What is held back then belongs to where the answer broke off.
            return Decoded { stop: Some(StopReason::Eos), reasoning: self.is_thinking(), ..Decoded::default() };
        }
        if let Some(place) = self.channel.as_ref().and_then(|channel| channel.after(token)) {
            let decoded = self.held_back();
            self.channel.iter_mut().for_each(|channel| channel.place = place.clone());
            return decoded;
        }
        let piece = self.detokenizer.push(&self.tokenizer, token).unwrap_or_default();
        self.place(piece)
    }

    fn finish(&mut self) -> String {
        self.held_back().text
    }
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
