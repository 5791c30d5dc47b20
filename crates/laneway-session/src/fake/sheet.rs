//! The same predictions without pages, steps and lanes: what an answer must be.

use super::hash::{self, Seen};
use crate::canvas::{CanvasLimits, Denoising};
use crate::denoise::Canvas;
use crate::engine::{Draft, Drafted, EngineLimits, Pass};
use crate::random::SplitMix64;
use crate::read::{Branch, BranchKind};

/// K/V of one sequence.
#[derive(Clone)]
struct Sheet {
    entries: Vec<Option<u64>>,
}

impl Sheet {
    /// The tokens that are encoded before anything else happens.
    fn new(tokens: &[u32], limits: &EngineLimits) -> Self {
        let encoded = &tokens[..limits.encoded(tokens.len())];
        let Some(canvas) = limits.canvas.filter(|canvas| canvas.grain() > 1) else {
            return Self { entries: encoded.iter().map(|token| Some(u64::from(*token))).collect() };
        };
        let blocks = encoded.chunks(canvas.length);
        let entry = |block: &[u32], offset| Some(hash::block_entry(Pass::Encode, offset, block, None));
        let entries = blocks.flat_map(|block| (0..block.len()).map(move |offset| entry(block, offset)));
        Self { entries: entries.collect() }
    }

    /// What every row of a pass over the tokens behind the sheet predicts from.
    fn denoise(&self, tokens: &[u32], canvas: &CanvasLimits, memory: Option<u64>) -> Vec<Seen> {
        let (base, end) = (self.entries.len(), self.entries.len() + tokens.len());
        let block = |position| canvas.revised_block(position, base, end, memory.is_some());
        let mut entries = self.entries.clone();
        for position in base..end {
            let start = block(position).start as usize;
            let all = &tokens[start - base..start - base + block(position).len as usize];
            entries.push(Some(hash::block_entry(Pass::Denoise, position - start, all, memory)));
        }
        let seen = |(position, token): (usize, &u32)| {
            let block = block(position);
            Seen::new(block, position, *token, &entries[..(block.start + block.len) as usize])
        };
        (base..end).zip(tokens).map(seen).collect()
    }
}

/// The first `count` tokens of the canvases that follow `prompt` when nothing ends the answer.
///
/// # Panics
/// When the engine has no canvas.
pub fn canvases(limits: &EngineLimits, denoising: Denoising, seed: u64, prompt: &[u32], count: usize) -> Vec<u32> {
    let canvas = limits.canvas.expect("the engine has a canvas");
    let mut tokens = prompt.to_vec();
    let mut rng = SplitMix64::new(seed);
    while tokens.len() < prompt.len() + count {
        let start = canvas.start(tokens.len());
        let mut revised = Canvas::new(denoising, &canvas, &tokens[start..], canvas.length, rng);
        revise(&mut revised, &tokens[..start], limits, &canvas);
        tokens.extend(revised.finals().map(|(token, _)| token));
        rng = revised.into_rng();
    }
    tokens[prompt.len()..prompt.len() + count].to_vec()
}

fn revise(revised: &mut Canvas, before: &[u32], limits: &EngineLimits, canvas: &CanvasLimits) {
    let sheet = Sheet::new(before, limits);
    let first = before.len() - sheet.entries.len();
    let mut memory = None;
    loop {
        let temperature = revised.divisor();
        let tokens = [&before[sheet.entries.len()..], revised.tokens()].concat();
        let seen = sheet.denoise(&tokens, canvas, memory.filter(|_| revised.is_conditioned()));
        let shift = usize::from(canvas.shift);
        let asked = revised.ask().into_iter();
        let drafts: Vec<Draft> =
            asked.map(|(position, draw)| Draft { row: (first + position - shift) as u32, temperature, draw }).collect();
        let drafted: Vec<Drafted> =
            drafts.iter().map(|draft| hash::drafted(seen[draft.row as usize], draft, canvas)).collect();
        memory = Some(hash::memory(drafts.iter().zip(&drafted)));
        if revised.revise(&drafted).expect("drafts are numbers") {
            return;
        }
    }
}

/// The logits that a read must yield, by branch, slot and label.
pub fn logits(limits: &EngineLimits, prompt: &[u32], branches: &[Branch]) -> Vec<Vec<Vec<f32>>> {
    let sheet = Sheet::new(prompt, limits);
    branches.iter().map(|branch| branch_logits(limits, prompt, branch, &sheet)).collect()
}

fn branch_logits(limits: &EngineLimits, prompt: &[u32], branch: &Branch, sheet: &Sheet) -> Vec<Vec<f32>> {
    let (base, rest) = (sheet.entries.len(), prompt.len() - sheet.entries.len());
    let read = |hash: &dyn Fn(usize) -> u64| -> Vec<Vec<f32>> {
        let slots = branch.slots.iter();
        slots.map(|slot| slot.labels.iter().map(|label| hash::logit(hash(slot.row), *label)).collect()).collect()
    };
    let (BranchKind::Canvas { passes }, Some(canvas)) = (branch.kind, limits.canvas) else {
        return read(&|row| {
            let seen = branch.tokens[..=row].iter().map(|token| Some(u64::from(*token)));
            hash::visible(0, sheet.entries.iter().copied().chain(seen))
        });
    };
    let mut tokens = [&prompt[base..], &branch.tokens].concat();
    let mut memory = None;
    for pass in 1..=passes {
        let seen = sheet.denoise(&tokens, &canvas, memory);
        let read = read(&|row| seen[rest + row - usize::from(canvas.shift)].all);
        if pass == passes {
            return read;
        }
        for (slot, logits) in branch.slots.iter().zip(&read) {
            let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            tokens[rest + slot.row] = slot.labels[best.unwrap_or(0)];
        }
        if canvas.is_conditioned {
            let drafts: Vec<Draft> =
                (0..seen.len() as u32).map(|row| Draft { row, temperature: 1.0, draw: 0.0 }).collect();
            let drafted: Vec<Drafted> =
                drafts.iter().map(|draft| hash::drafted(seen[draft.row as usize], draft, &canvas)).collect();
            memory = Some(hash::memory(drafts.iter().zip(&drafted)));
        }
    }
    Vec::new()
}
