//! Text to token ids and back.
//!
//! [`Tokenizer`] is built from GGUF metadata ([`TokenizerSource`]) or a
//! `tokenizer.json`; [`ChatTemplate`] turns messages into a prompt;
//! [`Detokenizer`] and [`StopMatcher`] turn a stream of ids into text that is
//! safe to send. The crate reads no files, has no clock and runs no threads.
#![forbid(unsafe_code)]

mod bpe;
mod detokenize;
mod error;
mod fallback;
mod merge;
mod pretokenize;
mod sentencepiece;
mod special;
mod stop;
mod template;
mod template_functions;
mod tokenizer;
mod tokenizer_json;
mod vocabulary;

pub use detokenize::Detokenizer;
pub use error::TextError;
pub use stop::{StopMatcher, StopStep};
pub use template::{ChatMessage, ChatTemplate, RenderOptions};
pub use tokenizer::{EncodeOptions, Tokenizer, TokenizerSource};
