use crate::clock::precise_ms;
use crate::driver::Driver;
use crate::error::WebError;
use laneway_session::{Engine, EngineError, Row, StepPlan, Token};

/// What decode steps of one lane cost; medians, because other work on the machine only ever adds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Host time to prepare the plan: kernels compiled or found, bind groups made. Almost none if it was kept.
    pub plan_us: f64,
    /// Host time to write a step's inputs, encode and submit it.
    pub submit_us: f64,
    /// From the end of a submission until its token is read.
    pub wait_ms: f64,
    /// Between tokens with the next step submitted before the last token is read.
    pub per_token_ms: f64,
    /// Kernel launches of a step.
    pub dispatches: usize,
}

/// Times `count` decode steps, first one by one, then with one in flight; the lane's positions are overwritten.
pub async fn measure(driver: &mut Driver, count: usize) -> Result<Timings, WebError> {
    let count = count.max(1);
    let engine = driver.borrow_engine()?;
    let limits = engine.limits();
    // One step before the clock starts: the device compiles kernels when it first runs them.
    if count >= limits.turn_positions() {
        return Err(WebError::Steps { steps: count, limit: limits.turn_positions() - 1 });
    }
    let pages: Vec<u32> = (0..limits.pages as u32).collect();
    let step = |position: usize| StepPlan {
        rows: vec![Row {
            token: if position == 0 { Token::Known(0) } else { Token::Sampled },
            position: position as u32,
            lane: 0,
            block: None,
        }],
        tables: vec![pages[..=position / limits.page_positions].to_vec()],
        samples: vec![0],
        ..StepPlan::default()
    };

    let began = precise_ms();
    let cost = engine.decode_cost().unwrap_or_default();
    let plan_us = 1e3 * (precise_ms() - began);
    run(engine, &step(0)).await?;

    let (mut submitting, mut waiting) = (Vec::new(), Vec::new());
    for position in 1..=count {
        let began = precise_ms();
        engine.submit(&step(position))?;
        let submitted = precise_ms();
        engine.collect().await?;
        submitting.push(submitted - began);
        waiting.push(precise_ms() - submitted);
    }

    run(engine, &step(0)).await?;
    engine.submit(&step(1))?;
    let mut apart = Vec::new();
    let mut last = precise_ms();
    for position in 2..=count {
        engine.submit(&step(position))?;
        engine.collect().await?;
        apart.push(precise_ms() - last);
        last += apart[apart.len() - 1];
    }
    engine.collect().await?;
    apart.push(precise_ms() - last);
    Ok(Timings {
        plan_us,
        submit_us: 1e3 * median(submitting),
        wait_ms: median(waiting),
        per_token_ms: median(apart),
        dispatches: cost.dispatches,
    })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

async fn run(engine: &mut impl Engine, step: &StepPlan) -> Result<(), EngineError> {
    engine.submit(step)?;
    engine.collect().await.map(drop)
}
