//! What a model can decide, and deciding without a server.

use std::sync::Arc;

use anyhow::{Result, anyhow};

use laneway_decisions::{PartLogits, ReadPart, Reader, ReaderOptions, Readout, Temperatures};
use laneway_protocol::systemone::{Answers, DecisionRequest, ReadUsage};
use laneway_session::canvas::CanvasLimits;
use laneway_session::{Cancel, Read, ReadAnswer, Source, systemone_runnable};
use laneway_text::{ChatTemplate, Tokenizer};
use tokio::sync::oneshot;

use crate::host::Host;
use crate::load::TextSide;
use crate::settings::Usage;
use crate::tokenizer::Origin;

/// The reader of a model with this text side, or why it answers no decisions.
pub fn reader(
    tokenizer: &Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    origin: Origin,
    (canvas, lanes): (Option<CanvasLimits>, usize),
    options: ReaderOptions,
) -> Result<Arc<Reader>, String> {
    if origin == Origin::Ids {
        return Err("it has no tokenizer".to_owned());
    }
    // No stage boundaries: a model is always whole here.
    if canvas.is_some() && !systemone_runnable(true, false, false, lanes) {
        return Err(format!("a canvas is read on exactly one lane, and it has {lanes}"));
    }
    let readout = canvas.map_or(Readout::Autoregressive, Readout::Canvas);
    let reader = Reader::new(tokenizer.clone(), template, readout, options);
    reader.map(Arc::new).map_err(|error| error.to_string())
}

/// What a model's file says that logits of decisions are divided by: `ARCH.decision.temperature.noul`, `.choice`, `.score`.
///
/// `number` looks a key up.
pub fn temperatures(architecture: &str, number: impl Fn(&str) -> Option<f64>) -> Temperatures {
    let usual = Temperatures::default();
    let stated = |kind: &str, usual| number(&format!("{architecture}.decision.temperature.{kind}")).unwrap_or(usual);
    Temperatures {
        noul: stated("noul", usual.noul),
        choice: stated("choice", usual.choice),
        score: stated("score", usual.score),
    }
}

/// Answers with what they cost.
pub struct Decided {
    pub answers: Answers,
    pub usage: ReadUsage,
}

/// Answers a request on the host's worker.
pub async fn decide(host: &Host, text: &TextSide, request: &DecisionRequest) -> Result<Decided> {
    let reader =
        text.reader.as_ref().map_err(|reason| Usage(format!("{} answers no decisions: {reason}", text.name)))?;
    let plan = reader.plan(request, text.context_length).map_err(|error| Usage(error.to_string()))?;
    let mut usage = ReadUsage { input_tokens: plan.input_tokens() as u64, ..ReadUsage::default() };
    let mut logits = Vec::<PartLogits>::new();
    let mut parts = plan.parts().to_vec();
    while !parts.is_empty() {
        let first = logits.is_empty();
        for part in std::mem::take(&mut parts) {
            let answer = read(host, part).await?;
            if first {
                usage.cached_tokens += answer.cached_tokens as u64;
            }
            usage.computed_tokens += answer.computed_tokens as u64;
            logits.push(answer.logits);
        }
        if first {
            parts = plan.more(&logits).unwrap_or_default();
        }
    }
    usage.cached_tokens = usage.cached_tokens.min(usage.input_tokens);
    let answers = Answers::new(request, plan.readings(&logits)?);
    let answers = answers.ok_or_else(|| anyhow!("the readings do not match the questions"))?;
    Ok(Decided { answers, usage })
}

async fn read(host: &Host, part: ReadPart) -> Result<ReadAnswer> {
    let (sender, receiver) = oneshot::channel();
    let read = Read {
        prompt: part.prompt,
        branches: part.branches,
        // Nobody listens any more when the program is ending.
        answer: Box::new(move |result| drop(sender.send(result))),
        cancel: Cancel::new(),
        deadline_ms: None,
        source: Source::LocalChat,
        namespace: 0,
    };
    host.worker.read(host.request.clone(), read)?;
    Ok(receiver.await.map_err(|_| anyhow!("the engine has stopped"))??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperatures_are_those_of_the_file_where_it_has_some() {
        let read = temperatures("llama", |key| (key == "llama.decision.temperature.choice").then_some(1.91));
        assert_eq!((read.noul, read.choice, read.score), (1.0, 1.91, 1.0));
    }
}
