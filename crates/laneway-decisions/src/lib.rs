//! System One decisions: questions into reads, logits into probabilities.
//!
//! A [`Reader`] is made once for a served model. [`Reader::plan`] turns a request into a [`Plan`]: prompts, and branches
//! after them with the places and label tokens whose logits decide. Whoever runs the reads hands the logits back to
//! [`Plan::readings`]; [`decide`] does both around a function that runs a read.
//!
//! A canvas model reads all questions at once: its prompt lists them, and a canvas holds the answers with a token of
//! noise in place of each label. That is one read for a dozen questions, and each may sway the others. A question that
//! wants to be alone, or every one with [`ReaderOptions::isolated`], gets a prompt and a canvas of its own: the prompt
//! says the state first, so that these reads share what was computed for it, and nothing else in the request can change
//! the answer.
//!
//! A model that predicts the next token reads each question by itself in any case: its prompt ends with the state, and
//! each branch holds one question up to where the label would follow. A model too small to follow labels can tell the
//! options of a choice apart by their words ([`ChoiceLabels::Words`]).
//!
//! Ids of questions never enter a prompt, and neither does the order of the questions: they are asked in an order of
//! their own content, equal ones once.
//!
//! The crate does no I/O and has no clock; equal requests give equal plans.
#![forbid(unsafe_code)]

mod agenda;
mod canvas;
mod causal;
mod decide;
mod error;
mod labels;
mod layout;
mod noise;
mod options;
mod order;
mod plan;
mod prior;
mod prompt;
mod reader;
mod seed;
mod sheet;
mod stem;
mod tree;
mod wording;
mod words;

pub use decide::decide;
pub use error::{DecideError, PlanError, ReadError, ReaderError};
pub use options::{ChoiceLabels, NoulLabels, ReaderOptions, ScoreLabels, Temperatures};
pub use plan::{PartLogits, Plan, ReadPart};
pub use reader::{Reader, Readout};
