//! The canvases of a turn.

use super::Run;
use crate::canvas::CanvasLimits;
use crate::denoise::Canvas;
use crate::engine::Drafted;
use crate::turn::{Event, FinishReason, TokenLogprob, TurnError};

impl Run {
    /// The canvas under revision, or the next one; a pass over it begins.
    pub fn canvas(&mut self, now: u64, limits: &CanvasLimits) -> &mut Canvas {
        self.clock.prefilled.get_or_insert(now);
        self.canvas.get_or_insert_with(|| {
            let fixed = &self.tokens[limits.start(self.tokens.len())..];
            let denoising = self.denoising.unwrap_or(limits.denoising);
            Canvas::new(denoising, limits, fixed, limits.length, self.rng.clone())
        })
    }

    /// Whether no pass has been made yet.
    pub fn is_prefilling(&self) -> bool {
        self.clock.prefilled.is_none()
    }

    /// Takes the drafts of a pass; says how the turn ends, if it does.
    ///
    /// A finished canvas is told as text up to the end of the answer, and its tokens follow the turn's.
    pub fn revise(&mut self, now: u64, drafts: &[Drafted]) -> Option<Result<FinishReason, TurnError>> {
        let canvas = self.canvas.as_mut()?;
        let is_finished = match canvas.revise(drafts) {
            Ok(is_finished) => is_finished,
            Err(error) => return Some(Err(TurnError::Engine(error.to_string()))),
        };
        self.outlet.metrics().update(|m| m.passes += 1);
        if self.wants_drafts {
            let tokens = canvas.likeliest()[canvas.fixed()..].to_vec();
            self.outlet.send(Event::Draft { tokens, step: canvas.passes(), entropy: canvas.entropy() });
        }
        if !is_finished {
            return None;
        }
        let canvas = self.canvas.take()?;
        let mut finals = canvas.finals().map(|(token, logprob)| TokenLogprob { token, logprob, top: Vec::new() });
        let end = finals.find_map(|token| self.accept(now, token));
        drop(finals);
        self.rng = canvas.into_rng();
        self.progress(now, self.tokens.len());
        end.map(Ok)
    }
}
