//! What is read for a request, and what the logits of it say.

use std::collections::BTreeSet;
use std::sync::Arc;

use laneway_protocol::systemone::{Distribution, Reading, entropy};
use laneway_session::Branch;
use laneway_session::canvas::CanvasLimits;

use crate::agenda::{Agenda, Asked, Kind};
use crate::canvas::Canvas;
use crate::error::ReadError;
use crate::options::Temperatures;
use crate::prior::Priors;

use crate::tree::{Tree, Unreadable, log_sum};
use crate::words::WordsPlace;

/// A canvas is read again if the entropy of one of its slots is over this many nats.
const UNSURE: f64 = 0.1;
/// How often.
const MORE_SAMPLES: u64 = 3;
/// What stands for the log of no probability where logs are averaged or divided by a prior.
const LEAST_LOG: f64 = -80.0;

/// One read: a prompt and what is read after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPart {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// At least one.
    pub branches: Vec<Branch>,
}

/// Logits of a [`ReadPart`] by branch, slot and label.
pub type PartLogits = Vec<Vec<Vec<f32>>>;

/// The reads of a request; see [`Reader::plan`](crate::Reader::plan).
pub struct Plan {
    pub(crate) agenda: Agenda,
    pub(crate) parts: Vec<ReadPart>,
    pub(crate) looks: Vec<Look>,
    pub(crate) temperatures: Temperatures,
    pub(crate) input_tokens: usize,
    /// By item, where it is divided by a prior that is known.
    pub(crate) known_priors: Vec<Option<Arc<[f64]>>>,
    /// Orders of each item; 0 where no read is needed.
    pub(crate) orders: Vec<usize>,
    pub(crate) priors: Priors,
    pub(crate) canvases: Option<Noisy>,
}

/// What is needed to fill canvases anew.
pub(crate) struct Noisy {
    pub limits: CanvasLimits,
    pub canvases: Vec<Canvas>,
    /// Whether unsure ones are read again.
    pub is_auto: bool,
}

/// One view of an item's distribution.
pub(crate) struct Look {
    pub item: usize,
    pub order: usize,
    pub part: usize,
    pub lens: Lens,
    /// Whether the state was left out.
    pub is_prior: bool,
}

/// How logits become probabilities.
pub(crate) enum Lens {
    Tree(Tree),
    Words(WordsPlace),
}

/// What a look saw.
struct View {
    item: usize,
    order: usize,
    is_prior: bool,
    /// Logs of the probabilities by outcome.
    logs: Vec<f64>,
}

/// Reads and the looks into them.
struct Round {
    parts: Vec<ReadPart>,
    looks: Vec<Look>,
}

/// Logs of an item's probabilities by sample, for each order.
type Samples = Vec<Vec<Vec<f64>>>;

impl Plan {
    /// The reads to run, in any order; none if every question has but one answer.
    pub fn parts(&self) -> &[ReadPart] {
        &self.parts
    }

    /// Tokens of the prompt once, and of each different question that follows it once; canvases, further orders and
    /// reads without the state are not counted. Canvases of several questions have a prompt of their own beside those
    /// of one.
    pub fn input_tokens(&self) -> usize {
        self.input_tokens
    }

    /// Further reads that the logits of [`parts`](Self::parts) ask for: those of canvases with an unsure slot.
    pub fn more(&self, logits: &[PartLogits]) -> Option<Vec<ReadPart>> {
        Some(self.again(logits).ok()??.parts)
    }

    /// The reading of each question in the order of the request.
    ///
    /// `logits` are those of [`parts`](Self::parts), then those of [`more`](Self::more) if they were read.
    ///
    /// # Errors
    /// Logits of another shape, or that give no finite probabilities.
    pub fn readings(&self, logits: &[PartLogits]) -> Result<Vec<Reading>, ReadError> {
        let mut views = self.views(&self.looks, logits)?;
        let expected = match self.again(logits.get(..self.parts.len()).ok_or(ReadError::Mismatch)?)? {
            Some(Round { parts, looks }) if logits.len() > self.parts.len() => {
                views.extend(self.views(&looks, logits)?);
                self.parts.len() + parts.len()
            }
            _ => self.parts.len(),
        };
        if logits.len() != expected {
            return Err(ReadError::Mismatch);
        }
        let measured = self.measured(views)?;
        let reading = |asked: &Asked| {
            let measured = &measured[asked.item];
            let weights = asked.outcomes.iter().map(|&outcome| measured.probabilities[outcome]).collect();
            let failed = || ReadError::NotFinite { question: self.agenda.id(asked.item) };
            let mut reading = Reading::new(Distribution::new(weights).ok_or_else(failed)?).with_entropy();
            if self.canvases.is_some() && measured.samples > 0 {
                reading = reading.with_samples(measured.samples);
            }
            Ok(match measured.std_error {
                Some(std_error) => reading.with_std_error(std_error),
                None => reading,
            })
        };
        self.agenda.asked.iter().map(reading).collect()
    }

    /// The canvases to read again, with the looks into them.
    fn again(&self, logits: &[PartLogits]) -> Result<Option<Round>, ReadError> {
        let Some(noisy) = self.canvases.as_ref().filter(|noisy| noisy.is_auto) else { return Ok(None) };
        let mut unsure = BTreeSet::new();
        for View { item, order, logs, .. } in self.views(&self.looks, logits)? {
            let weights: Vec<f64> = logs.iter().map(|log| log.exp()).collect();
            if entropy(&weights) > UNSURE {
                unsure.insert((item, order));
            }
        }
        let (mut parts, mut looks) = (Vec::new(), Vec::new());
        for (index, first) in self.parts.iter().enumerate() {
            let mut part = ReadPart { prompt: first.prompt.clone(), branches: Vec::new() };
            for canvas in noisy.canvases.iter().filter(|canvas| canvas.part == index) {
                if canvas.looks().any(|look| unsure.contains(&look)) {
                    for sample in 1..=MORE_SAMPLES {
                        let at = (self.parts.len() + parts.len(), part.branches.len());
                        let (branch, seen) = canvas.fill(&noisy.limits, sample, at.0, at.1);
                        part.branches.push(branch);
                        looks.extend(seen);
                    }
                }
            }
            if !part.branches.is_empty() {
                parts.push(part);
            }
        }
        Ok((!parts.is_empty()).then_some(Round { parts, looks }))
    }

    fn views(&self, looks: &[Look], logits: &[PartLogits]) -> Result<Vec<View>, ReadError> {
        let view = |look: &Look| {
            let item = &self.agenda.items[look.item];
            let part = logits.get(look.part).ok_or(ReadError::Mismatch)?;
            let temperature = self.temperatures.of(item.kind);
            let logs = match &look.lens {
                Lens::Tree(tree) => tree.log_probabilities(item.outcomes.len(), part, temperature),
                Lens::Words(words) => words.log_probabilities(part, temperature),
            };
            let logs = logs.map_err(|error| match error {
                Unreadable::Mismatch => ReadError::Mismatch,
                Unreadable::NotFinite => ReadError::NotFinite { question: self.agenda.id(look.item) },
            })?;
            Ok(View { item: look.item, order: look.order, is_prior: look.is_prior, logs })
        };
        looks.iter().map(view).collect()
    }

    fn measured(&self, views: Vec<View>) -> Result<Vec<Measured>, ReadError> {
        let empty = || self.orders.iter().map(|&orders| vec![Vec::new(); orders]).collect::<Vec<Samples>>();
        let (mut with_state, mut without) = (empty(), empty());
        for View { item, order, is_prior, logs } in views {
            let samples = if is_prior { &mut without } else { &mut with_state };
            samples[item][order].push(logs);
        }
        let item = |(index, (seen, unseen)): (usize, (Samples, Samples))| {
            let item = &self.agenda.items[index];
            if seen.is_empty() {
                return Ok(Measured { probabilities: vec![1.0], samples: 0, std_error: None });
            }
            let mut logs = combined(&seen).ok_or(ReadError::Mismatch)?;
            let prior = match &self.known_priors[index] {
                Some(known) => Some(known.clone()),
                None if unseen.iter().any(|samples| !samples.is_empty()) => {
                    let orders = unseen.len();
                    // Nothing is random without a canvas: each look is a view of its own.
                    let views: Samples = unseen.into_iter().flatten().map(|logs| vec![logs]).collect();
                    let logs: Arc<[f64]> = combined(&views).ok_or(ReadError::Mismatch)?.into();
                    self.priors.put(item, orders, logs.clone());
                    Some(logs)
                }
                None => None,
            };
            if let Some(prior) = prior {
                logs.iter_mut()
                    .zip(prior.iter())
                    .for_each(|(log, prior)| *log = log.max(LEAST_LOG) - prior.max(LEAST_LOG));
                normalise(&mut logs);
            }
            let probabilities: Vec<f64> = logs.iter().map(|log| log.exp()).collect();
            let std_error = std_error(&seen, item.kind, &probabilities);
            let samples = seen.iter().map(Vec::len).max().unwrap_or(0) as u32;
            Ok(Measured { probabilities, samples, std_error })
        };
        with_state.into_iter().zip(without).enumerate().map(item).collect()
    }
}

/// What was found out about an item.
struct Measured {
    probabilities: Vec<f64>,
    samples: u32,
    std_error: Option<f64>,
}

/// The mean over samples, then the geometric mean over orders; `None` if an order has no sample.
fn combined(samples: &Samples) -> Option<Vec<f64>> {
    let orders = samples.iter().map(|order| mean(order)).collect::<Option<Vec<_>>>()?;
    let [first, others @ ..] = orders.as_slice() else { return None };
    if others.is_empty() {
        return Some(first.clone());
    }
    let outcome =
        |index: usize| orders.iter().map(|logs| logs[index].max(LEAST_LOG)).sum::<f64>() / orders.len() as f64;
    let mut logs: Vec<f64> = (0..first.len()).map(outcome).collect();
    normalise(&mut logs);
    Some(logs)
}

fn mean(samples: &[Vec<f64>]) -> Option<Vec<f64>> {
    let first = samples.first()?;
    let count = (samples.len() as f64).ln();
    let outcome = |index| log_sum(&samples.iter().map(|logs: &Vec<f64>| logs[index]).collect::<Vec<_>>()) - count;
    Some((0..first.len()).map(outcome).collect())
}

fn normalise(logs: &mut [f64]) {
    let total = log_sum(logs);
    logs.iter_mut().for_each(|log| *log -= total);
}

/// The standard error of the noul, of the chosen option's probability, or of the score; of the mean over orders where
/// there are several. None where an order has one sample.
fn std_error(samples: &Samples, kind: Kind, probabilities: &[f64]) -> Option<f64> {
    let top = (0..probabilities.len()).fold(0, |top, it| if probabilities[it] > probabilities[top] { it } else { top });
    let number = |logs: &Vec<f64>| match kind {
        Kind::Noul => logs[0].exp(),
        Kind::Choice => logs[top].exp(),
        Kind::Score => logs.iter().enumerate().map(|(level, log)| level as f64 * log.exp()).sum(),
    };
    let mut variance = 0.0;
    for order in samples {
        if order.len() < 2 {
            return None;
        }
        let count = order.len() as f64;
        let numbers: Vec<f64> = order.iter().map(number).collect();
        let mean = numbers.iter().sum::<f64>() / count;
        variance += numbers.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (count - 1.0) / count;
    }
    Some(variance.sqrt() / samples.len() as f64)
}
