//! The engine without weights.

use std::collections::{HashSet, VecDeque};

use super::hash::{self, Seen};
use super::{Faults, VOCABULARY};
use crate::engine::{Block, Drafted, Pass, Row};
use crate::{Engine, EngineError, EngineLimits, Sampled, Sampling, StepOutcome, StepPlan, Token};

#[derive(Clone, Copy, Default)]
struct FakeLane {
    seed: u64,
    sampled: u32,
    /// What the drafts of its last step said.
    memory: Option<u64>,
}

/// The engine without weights.
pub struct FakeEngine {
    limits: EngineLimits,
    faults: Faults,
    kv: Vec<Option<u64>>,
    /// Lanes, and behind them the branches of reads.
    lanes: Vec<FakeLane>,
    in_flight: VecDeque<InFlight>,
}

struct InFlight {
    lanes: Vec<usize>,
    outcome: Result<StepOutcome, EngineError>,
}

impl FakeEngine {
    /// An engine with empty pages.
    pub fn new(limits: EngineLimits, faults: Faults) -> Self {
        Self {
            kv: vec![None; limits.pages * limits.page_positions],
            lanes: vec![FakeLane::default(); limits.lanes + limits.branches],
            in_flight: VecDeque::new(),
            limits,
            faults,
        }
    }

    fn compute(&mut self, plan: &StepPlan) -> Result<StepOutcome, EngineError> {
        self.check(plan)?;
        let page = self.limits.page_positions;
        for copy in &plan.copies {
            let from = copy.from as usize * page;
            self.kv.copy_within(from..from + page, copy.to as usize * page);
        }
        let tokens: Vec<u32> = plan.rows.iter().map(|row| self.token(row)).collect();
        let mut written = HashSet::new();
        for (index, row) in plan.rows.iter().enumerate() {
            let slot = self.slot(plan, row.lane, row.position as usize)?;
            if !written.insert(slot) {
                return Err(bad("two rows write to one position of a page"));
            }
            self.kv[slot] = Some(match row.block {
                None => u64::from(tokens[index]),
                Some(block) => {
                    let offset = (row.position - block.start) as usize;
                    let all = &tokens[index - offset..index - offset + block.len as usize];
                    hash::block_entry(plan.pass, offset, all, self.memory(row.lane, block)?)
                }
            });
        }
        let poison = self.faults.poisoned();
        if tokens.iter().any(|token| Some(*token) == poison) {
            return Err(EngineError::Step("poisoned token".to_owned()));
        }
        self.predict(plan, &tokens)
    }

    fn predict(&mut self, plan: &StepPlan, tokens: &[u32]) -> Result<StepOutcome, EngineError> {
        let mut outcome = StepOutcome::default();
        let blind = self.faults.is_blind();
        for &index in &plan.samples {
            let row = plan.rows[index as usize];
            let seen = self.entries(plan, row.lane, row.position as usize + 1)?;
            let token = hash::token(hash::visible(self.lanes[row.lane].seed, seen.into_iter()));
            self.lanes[row.lane].sampled = token;
            let logprob = -(token as f32);
            outcome.sampled.push(Sampled { lane: row.lane, token, logprob, top: vec![(token, logprob)] });
        }
        for label in &plan.labels {
            let seen = self.seen(plan, label.row as usize, tokens)?.all;
            let logit = |token: &u32| if blind { f32::NAN } else { hash::logit(seen, *token) };
            outcome.labels.push(label.tokens.iter().map(logit).collect());
        }
        let canvas = self.limits.canvas;
        for draft in &plan.drafts {
            let canvas = canvas.ok_or_else(|| bad("drafts without a canvas"))?;
            let drafted = hash::drafted(self.seen(plan, draft.row as usize, tokens)?, draft, &canvas);
            let entropy = if blind { f32::NAN } else { drafted.entropy };
            outcome.drafts.push(Drafted { entropy, ..drafted });
        }
        let drafted: HashSet<usize> = plan.drafts.iter().map(|draft| plan.rows[draft.row as usize].lane).collect();
        for lane in drafted {
            let drafts = plan.drafts.iter().zip(&outcome.drafts);
            let own = drafts.filter(|(draft, _)| plan.rows[draft.row as usize].lane == lane);
            self.lanes[lane].memory = Some(hash::memory(own));
        }
        Ok(outcome)
    }

    fn seen(&self, plan: &StepPlan, index: usize, tokens: &[u32]) -> Result<Seen, EngineError> {
        let row = plan.rows[index];
        let position = row.position as usize;
        let Some(block) = row.block else {
            let seen = self.entries(plan, row.lane, position + 1)?;
            let all = hash::visible(0, seen.into_iter());
            return Ok(Seen { all, before: all, token: tokens[index] });
        };
        let seen = self.entries(plan, row.lane, (block.start + block.len) as usize)?;
        Ok(Seen::new(block, position, tokens[index], &seen))
    }

    fn memory(&self, lane: usize, block: Block) -> Result<Option<u64>, EngineError> {
        match self.lanes[lane].memory {
            _ if !block.is_conditioned => Ok(None),
            None => Err(bad("conditioned on nothing")),
            memory => Ok(memory),
        }
    }

    fn token(&self, row: &Row) -> u32 {
        match row.token {
            Token::Known(token) => token,
            Token::Sampled => self.lanes[row.lane].sampled,
        }
    }

    fn entries(&self, plan: &StepPlan, lane: usize, end: usize) -> Result<Vec<Option<u64>>, EngineError> {
        (0..end).map(|position| Ok(self.kv[self.slot(plan, lane, position)?])).collect()
    }

    fn page_range(&self, page: u32, positions: usize) -> Result<std::ops::Range<usize>, EngineError> {
        let start = page as usize * self.limits.page_positions;
        let is_page = (page as usize) < self.limits.pages && positions <= self.limits.page_positions;
        is_page.then_some(start..start + positions).ok_or_else(|| bad("page outside the memory"))
    }

    fn slot(&self, plan: &StepPlan, lane: usize, position: usize) -> Result<usize, EngineError> {
        let page = plan.tables[lane].get(position / self.limits.page_positions);
        let page = *page.ok_or_else(|| bad("position outside the table"))? as usize;
        let slot = page * self.limits.page_positions + position % self.limits.page_positions;
        (slot < self.kv.len()).then_some(slot).ok_or_else(|| bad("page outside the memory"))
    }

    fn check(&self, plan: &StepPlan) -> Result<(), EngineError> {
        let limits = &self.limits;
        let rows = &plan.rows;
        let require = |is_met: bool, what: &str| if is_met { Ok(()) } else { Err(bad(what)) };
        require(!rows.is_empty() && rows.len() <= limits.max_rows, "row count")?;
        require(plan.tables.len() == self.lanes.len(), "table count")?;
        let pages = |copy: &crate::PageCopy| (copy.from.max(copy.to) as usize) < limits.pages && copy.from != copy.to;
        require(plan.copies.iter().all(pages), "copy of a page")?;
        for (index, row) in rows.iter().enumerate() {
            require(row.lane < self.lanes.len(), "lane")?;
            require((row.position as usize) < limits.context_length, "position outside the context")?;
            let before = index.checked_sub(1).map(|before| rows[before]);
            let follows = before.is_some_and(|b| b.lane == row.lane && b.position + 1 == row.position);
            require(follows || rows[..index].iter().all(|b| b.lane != row.lane), "rows of a lane are not adjacent")?;
            self.check_block(plan, index)?;
        }
        let sampled = plan.samples.iter().map(|row| *row as usize);
        let labels = plan.labels.iter().map(|label| label.row as usize);
        let drafts = plan.drafts.iter().map(|draft| draft.row as usize);
        for mut wanted in [sampled.collect::<Vec<_>>(), labels.collect(), drafts.collect()] {
            require(wanted.is_sorted_by(|a, b| a < b) && wanted.pop() < Some(rows.len()), "wanted rows")?;
        }
        let lanes: HashSet<usize> = plan.samples.iter().map(|row| rows[*row as usize].lane).collect();
        require(lanes.len() == plan.samples.len() && lanes.iter().all(|lane| *lane < limits.lanes), "samples")?;
        let known = |label: &crate::LabelRow| !label.tokens.is_empty() && label.tokens.iter().all(|t| *t < VOCABULARY);
        require(plan.labels.iter().all(known), "labels")?;
        let in_range = |draft: &crate::Draft| {
            draft.temperature > 0.0 && draft.temperature.is_finite() && (0.0..=1.0).contains(&draft.draw)
        };
        require(plan.drafts.iter().all(in_range), "drafts")
    }

    /// All rows of a block are in the step, and only a pass over a canvas is conditioned.
    fn check_block(&self, plan: &StepPlan, index: usize) -> Result<(), EngineError> {
        let row = plan.rows[index];
        let Some(block) = row.block else {
            return if plan.pass == Pass::Encode { Ok(()) } else { Err(bad("a canvas without a block")) };
        };
        let first = row.position.checked_sub(block.start).and_then(|offset| index.checked_sub(offset as usize));
        let all = first.and_then(|first| plan.rows.get(first..first + block.len as usize)).unwrap_or_default();
        let is_whole = all
            .iter()
            .zip(block.start..)
            .all(|(other, position)| (other.lane, other.block, other.position) == (row.lane, row.block, position));
        if !is_whole || row.position < block.start || row.position - block.start >= all.len() as u32 {
            return Err(bad("a block in pieces"));
        }
        match self.limits.canvas {
            None => Err(bad("a block without a canvas")),
            Some(canvas) if block.is_conditioned && (!canvas.is_conditioned || plan.pass == Pass::Encode) => {
                Err(bad("conditioning"))
            }
            Some(_) => Ok(()),
        }
    }
}

fn bad(what: &str) -> EngineError {
    EngineError::Step(format!("bad plan: {what}"))
}

impl Engine for FakeEngine {
    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn begin(&mut self, lane: usize, sampling: &Sampling, _: &[u32]) -> Result<(), EngineError> {
        self.faults.check("begin")?;
        if self.in_flight.iter().any(|step| step.lanes.contains(&lane)) {
            return Err(EngineError::Lost(format!("lane {lane} is in a submitted step")));
        }
        self.lanes[lane] = FakeLane { seed: sampling.seed, sampled: VOCABULARY, memory: None };
        Ok(())
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        self.faults.check("submit")?;
        if self.in_flight.len() >= self.limits.depth {
            return Err(EngineError::Lost("too many steps in flight".to_owned()));
        }
        let lanes = plan.rows.iter().map(|row| row.lane).collect();
        let outcome = self.compute(plan);
        self.in_flight.push_back(InFlight { lanes, outcome });
        Ok(())
    }

    async fn read_page(&mut self, page: u32, positions: usize) -> Result<Vec<u8>, EngineError> {
        self.faults.check("read_page")?;
        let range = self.page_range(page, positions)?;
        Ok(self.kv[range].iter().flat_map(|entry| entry.unwrap_or(u64::MAX).to_le_bytes()).collect())
    }

    fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<(), EngineError> {
        self.faults.check("write_page")?;
        let range = self.page_range(page, positions)?;
        let (entries, rest) = content.as_chunks::<8>();
        if entries.len() != range.len() || !rest.is_empty() {
            return Err(bad("page content"));
        }
        for (entry, bytes) in self.kv[range].iter_mut().zip(entries) {
            let value = u64::from_le_bytes(*bytes);
            *entry = (value != u64::MAX).then_some(value);
        }
        Ok(())
    }

    async fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        let step = self.in_flight.pop_front();
        self.faults.check("collect")?;
        step.map_or_else(|| Err(EngineError::Lost("nothing to collect".to_owned())), |step| step.outcome)
    }
}
