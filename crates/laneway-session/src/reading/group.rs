//! Branches that are read together, and what becomes of their logits.

use super::Reading;
use crate::EngineLimits;
use crate::engine::{Draft, LabelRow, Pass, Row, StepPlan, Token};
use crate::lanes::Fork;
use crate::read::BranchKind;
use crate::turn::TurnError;

/// Branches of one kind that share their steps.
pub(crate) struct Group {
    pub members: Vec<Member>,
    pub kind: BranchKind,
    /// The first position of every member.
    base: usize,
    /// Passes made over canvases.
    passes: u32,
    /// Rows computed of a causal branch that is too long for a step and alone.
    done: usize,
}

/// One branch: its place and its tokens from the first position on.
pub(crate) struct Member {
    branch: usize,
    tokens: Vec<u32>,
    /// None for the one on the lane's own pages.
    pub fork: Option<Fork>,
}

impl Group {
    pub fn new(kind: BranchKind, base: usize) -> Self {
        Self { members: Vec::new(), kind, base, passes: 0, done: 0 }
    }

    /// Rows the next step has of it.
    pub fn rows(&self, max_rows: usize) -> usize {
        self.members.iter().map(|member| self.span(member, max_rows).len()).sum()
    }

    fn span(&self, member: &Member, max_rows: usize) -> std::ops::Range<usize> {
        self.done..member.tokens.len().min(self.done + max_rows)
    }

    /// Canvases make this many passes.
    fn all_passes(&self) -> u32 {
        match self.kind {
            BranchKind::Causal => 1,
            BranchKind::Canvas { passes } => passes,
        }
    }
}

impl Reading {
    /// Branches that are not read, of the same kind as the first of them.
    pub fn unread(&self) -> impl Iterator<Item = usize> {
        let unread = |index: &usize| self.logits[*index].is_empty();
        let first = (0..self.branches.len()).find(unread);
        let kind = first.map(|index| self.branches[index].kind);
        (0..self.branches.len()).filter(unread).filter(move |&index| Some(self.branches[index].kind) == kind)
    }

    pub fn kind(&self, branch: usize) -> BranchKind {
        self.branches[branch].kind
    }

    /// A branch whose first position is `base`: where the prompt goes on beyond it, its rest belongs to the branch.
    pub fn member(&self, branch: usize, base: usize, fork: Option<Fork>) -> Member {
        let tokens = [&self.prompt[base..], &self.branches[branch].tokens].concat();
        Member { branch, tokens, fork }
    }

    /// The end of a branch in positions.
    pub fn end(&self, branch: usize) -> usize {
        self.prompt.len() + self.branches[branch].tokens.len()
    }

    /// Adds the next step of a group to an empty plan.
    pub fn plan(&self, group: &mut Group, lane: usize, limits: &EngineLimits, plan: &mut StepPlan) {
        let canvas = limits.canvas.filter(|_| group.kind != BranchKind::Causal);
        let is_last = group.passes + 1 >= group.all_passes();
        let base = group.base;
        plan.pass = if canvas.is_some() { Pass::Denoise } else { Pass::Encode };
        for member in &mut group.members {
            plan.copies.extend(member.fork.as_mut().and_then(|fork| fork.copy.take()));
        }
        for member in &group.members {
            let span = group.span(member, limits.max_rows);
            let first = plan.rows.len();
            for index in span.clone() {
                let end = base + member.tokens.len();
                plan.rows.push(Row {
                    token: Token::Known(member.tokens[index]),
                    position: (base + index) as u32,
                    lane: member.fork.as_ref().map_or(lane, |fork| fork.slot),
                    block: canvas.map(|canvas| {
                        let is_conditioned = canvas.is_conditioned && group.passes > 0;
                        canvas.revised_block(base + index, base, end, is_conditioned)
                    }),
                });
            }
            for slot in &self.branches[member.branch].slots {
                let index = self.row(group, slot.row, limits);
                if span.contains(&index) {
                    let row = (first + index - span.start) as u32;
                    plan.labels.push(LabelRow { row, tokens: slot.labels.clone() });
                }
            }
        }
        if !is_last && canvas.is_some_and(|canvas| canvas.is_conditioned) {
            plan.drafts = (0..plan.rows.len() as u32).map(|row| Draft { row, temperature: 1.0, draw: 0.0 }).collect();
        }
    }

    /// Takes the logits that a step yielded; says whether the group is read.
    ///
    /// # Errors
    /// When a logit is not a number.
    pub fn take(&mut self, group: &mut Group, limits: &EngineLimits, labels: Vec<Vec<f32>>) -> Result<bool, TurnError> {
        let is_last = group.passes + 1 >= group.all_passes();
        let mut labels = labels.into_iter();
        let rows = group.rows(limits.max_rows);
        self.computed(rows);
        for index in 0..group.members.len() {
            let span = group.span(&group.members[index], limits.max_rows);
            let branch = group.members[index].branch;
            for slot in 0..self.branches[branch].slots.len() {
                let place = self.branches[branch].slots[slot].row;
                if !span.contains(&self.row(group, place, limits)) {
                    continue;
                }
                let logits = labels.next().unwrap_or_default();
                if logits.iter().any(|logit| logit.is_nan()) {
                    return Err(TurnError::Engine(format!("a logit of branch {branch} is not a number")));
                }
                if is_last {
                    self.logits[branch].push(logits);
                } else {
                    let likeliest = self.branches[branch].slots[slot].labels[argmax(&logits)];
                    let place = self.prompt.len() - group.base + place;
                    group.members[index].tokens[place] = likeliest;
                }
            }
        }
        group.done += limits.max_rows;
        let is_through = group.members.iter().all(|member| member.tokens.len() <= group.done);
        if is_through {
            group.passes += 1;
            group.done = 0;
        }
        Ok(group.passes >= group.all_passes())
    }

    /// The row of a group's member, counted from its first position, that predicts a place of the branch.
    fn row(&self, group: &Group, place: usize, limits: &EngineLimits) -> usize {
        let is_shifted = group.kind != BranchKind::Causal && limits.canvas.is_some_and(|canvas| canvas.shift);
        self.prompt.len() - group.base + place - usize::from(is_shifted)
    }
}

/// The place of the greatest, the first of equal ones.
fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best
}
