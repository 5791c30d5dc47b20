use std::sync::Arc;

use laneway_session::{Decoded, Decoder, StopReason};
use laneway_text::{Detokenizer, StopMatcher, Tokenizer};

/// Tokens that open and close a model's thoughts, and whether the channel's name follows the first.
const CHANNELS: [(&str, &str, bool); 2] = [("<|channel>", "<channel|>", true), ("<think>", "</think>", false)];
/// The channel that holds thoughts.
const THOUGHT: &str = "thought";

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

    /// Text that is held back, when a channel opens or closes.
    fn held_back(&mut self) -> Decoded {
        let rest = self.detokenizer.finish().unwrap_or_default();
        let mut decoded = self.place(rest);
        if !decoded.reasoning {
            decoded.text.push_str(&self.stops.finish().text);
        }
        decoded
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
                let Some((name, text)) = name.split_once('\n') else { return Decoded::default() };
                let (is_thought, text) = (name.trim() == THOUGHT, text.to_owned());
                channel.place = if is_thought { Place::Thought } else { Place::AnswerStart };
                self.place(text)
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
            token if token == self.opens => Some(Place::Thought),
            token if token == self.closes => Some(Place::AnswerStart),
            _ => None,
        }
    }
}

impl Decoder for TextDecoder {
    fn token(&mut self, token: u32) -> Decoded {
        if self.tokenizer.end_of_generation().contains(&token) {
            return Decoded { stop: Some(StopReason::Eos), ..Decoded::default() };
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
