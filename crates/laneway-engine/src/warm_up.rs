use laneway_session::canvas::CanvasLimits;
use laneway_session::{Block, Engine, EngineError, LabelRow, Pass, Row, Sampling, StepPlan, Token};

use crate::{Body, ModelEngine};

/// What an engine did before its first turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// Nothing: a stage alone cannot answer, and nothing is compiled for the whole.
    Skipped,
    /// One token, so that the next one finds its kernels compiled and its plans made.
    Decode,
    /// A read of one canvas, for the same reason.
    Canvas,
}

impl ModelEngine {
    /// Makes one small step, so that the first turn does not pay for what every later one finds; no lane is taken, and
    /// what the step writes is written over by whoever gets its pages.
    ///
    /// # Errors
    /// When the device cannot even do that.
    pub async fn warm_up(&mut self) -> Result<WarmUp, EngineError> {
        if matches!(self.body, Body::Staged(_)) {
            return Ok(WarmUp::Skipped);
        }
        let limits = self.limits;
        let (plan, done) = match &limits.canvas {
            None => (decode(), WarmUp::Decode),
            Some(canvas) => (read(canvas, limits.page_positions), WarmUp::Canvas),
        };
        let mut tables = vec![Vec::new(); limits.lanes + limits.branches];
        tables[0] = plan.tables.into_iter().flatten().collect();
        self.begin(0, &Sampling::default(), &[0])?;
        self.submit(&StepPlan { tables, ..plan })?;
        self.collect().await?;
        Ok(done)
    }
}

fn decode() -> StepPlan {
    let row = Row { token: Token::Known(0), position: 0, lane: 0, block: None };
    StepPlan { rows: vec![row], tables: vec![vec![0]], samples: vec![0], ..StepPlan::default() }
}

fn read(canvas: &CanvasLimits, page_positions: usize) -> StepPlan {
    let len = canvas.length as u32;
    let block = Some(Block { start: 0, len, is_conditioned: false });
    let rows = (0..len).map(|position| Row { token: Token::Known(canvas.pad), position, lane: 0, block });
    StepPlan {
        pass: Pass::Denoise,
        rows: rows.collect(),
        tables: vec![(0..canvas.length.div_ceil(page_positions) as u32).collect()],
        labels: vec![LabelRow { row: len - 1, tokens: vec![0, 1] }],
        ..StepPlan::default()
    }
}
