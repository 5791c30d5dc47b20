//! The plan of a step.

use super::{Active, Part, Scheduler, Step, Work};
use crate::engine::{Draft, EngineLimits, Pass, Row, StepPlan, Token};
use crate::run::Run;
use crate::task::Task;

impl Scheduler {
    /// The next step, if there is one to submit.
    pub fn plan(&mut self, now: u64) -> Option<StepPlan> {
        if self.in_flight.len() >= self.limits.depth {
            return None;
        }
        let mut parts = self.choose();
        if parts.is_empty() {
            return None;
        }
        let tables = vec![Vec::new(); self.limits.lanes + self.limits.branches];
        let mut plan = StepPlan { tables, ..StepPlan::default() };
        self.counter += 1;
        for part in &mut parts {
            let Some(active) = &mut self.active[part.lane] else {
                continue;
            };
            active.stepped = self.counter;
            plan.copies.extend(self.lanes.take_copy(part.lane));
            match (&mut part.work, &mut active.task) {
                (Work::Encode { .. }, _) => encode(part, active, &self.limits, &mut plan),
                (Work::Revise, Task::Turn(run)) => revise(now, part, run, &self.limits, &mut plan),
                (Work::Read(group), Task::Read(reading)) => {
                    reading.plan(group, part.lane, &self.limits, &mut plan);
                    for fork in group.members.iter().filter_map(|member| member.fork.as_ref()) {
                        let end = end(&plan, fork.slot);
                        plan.tables[fork.slot] = fork.table(end, self.limits.page_positions);
                    }
                }
                (Work::Revise | Work::Read(_), _) => {}
            }
            plan.tables[part.lane] = self.lanes.table(part.lane, end(&plan, part.lane));
        }
        let labels = plan.labels.iter().map(|label| label.tokens.len()).collect();
        self.in_flight.push_back(Step { parts, labels, drafts: plan.drafts.len() });
        self.publish();
        Some(plan)
    }
}

/// Where a table's rows end.
fn end(plan: &StepPlan, lane: usize) -> usize {
    plan.rows.iter().rfind(|row| row.lane == lane).map_or(0, |row| row.position as usize + 1)
}

fn encode(part: &Part, active: &mut Active, limits: &EngineLimits, plan: &mut StepPlan) {
    let end = part.from + part.rows;
    active.planned = end;
    let tokens = active.task.tokens();
    plan.rows.extend((part.from..end).map(|position| Row {
        token: tokens.get(position).map_or(Token::Sampled, |t| Token::Known(*t)),
        position: position as u32,
        lane: part.lane,
        block: limits.canvas.and_then(|canvas| canvas.encoded_block(position)),
    }));
    if part.is_sampled() {
        plan.samples.push(plan.rows.len() as u32 - 1);
    }
}

/// A pass over a canvas that starts at `part.from`; where nothing is cached, over all that comes before it, too.
fn revise(now: u64, part: &Part, run: &mut Run, limits: &EngineLimits, plan: &mut StepPlan) {
    let Some(limits) = limits.canvas else {
        return;
    };
    let end = part.from + part.rows;
    let first = limits.encoded(part.from);
    let before = run.tokens[first..part.from].to_vec();
    let canvas = run.canvas(now, &limits);
    let is_conditioned = canvas.is_conditioned();
    let temperature = canvas.divisor();
    let tokens = before.iter().chain(canvas.tokens()).copied();
    plan.pass = Pass::Denoise;
    plan.rows.extend(tokens.zip(first..).map(|(token, position)| Row {
        token: Token::Known(token),
        position: position as u32,
        lane: part.lane,
        block: Some(limits.revised_block(position, first, end, is_conditioned)),
    }));
    let shift = usize::from(limits.shift);
    plan.drafts.extend(canvas.ask().into_iter().map(|(position, draw)| Draft {
        row: (before.len() + position - shift) as u32,
        temperature,
        draw,
    }));
}
