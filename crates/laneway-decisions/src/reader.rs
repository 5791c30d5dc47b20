use std::sync::Arc;

use laneway_protocol::systemone::{DecisionRequest, Samples};
use laneway_session::canvas::{CanvasLimits, Noise};
use laneway_text::{ChatTemplate, Tokenizer};

use crate::agenda::{Agenda, Alone, Item, Manner};
use crate::canvas::{self, CanvasStyle};
use crate::causal::{self, Asking, CausalStyle};
use crate::error::{PlanError, ReaderError};
use crate::labels::TextLabels;
use crate::options::{ChoiceLabels, NoulLabels, ReaderOptions, ScoreLabels};
use crate::order::orders;
use crate::plan::{Noisy, Plan};
use crate::prior::Priors;
use crate::prompt::Prompter;
use crate::wording::{ALONE_FRAME, NO_STATE};
use crate::words::{self, Words};

/// How a model gives distributions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Readout {
    /// It predicts the next token.
    Autoregressive,
    /// It revises a canvas.
    Canvas(CanvasLimits),
}

/// Turns requests into reads of one model.
pub struct Reader {
    prompter: Prompter,
    style: Style,
    options: ReaderOptions,
    priors: Priors,
}

enum Style {
    Causal(CausalStyle),
    Canvas(CanvasStyle),
}

impl Reader {
    /// Finds the labels of a model's tokenizer; a model without a template is given plain text.
    ///
    /// # Errors
    /// Temperatures that are not positive, a canvas too short for any answer or with tokens outside its vocabulary, a
    /// template that fails on any conversation, a tokenizer without labels.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        template: Option<ChatTemplate>,
        readout: Readout,
        options: ReaderOptions,
    ) -> Result<Self, ReaderError> {
        options.temperatures.check()?;
        let prompter = Prompter::new(tokenizer, template)?;
        let style = match readout {
            Readout::Autoregressive => Style::Causal(causal_style(&prompter, &options)?),
            Readout::Canvas(limits) => Style::Canvas(CanvasStyle::new(&prompter, limits)?),
        };
        Ok(Self { prompter, style, options, priors: Priors::default() })
    }

    /// What is to be read for a request, by a model with a context of so many tokens.
    ///
    /// # Errors
    /// What this model cannot read, with the question and the numbers; nothing is cut.
    pub fn plan(&self, request: &DecisionRequest, context_length: usize) -> Result<Plan, PlanError> {
        self.check(request)?;
        let corrects = match self.style {
            Style::Causal(_) => request.options.prior_correction || self.options.prior_correction,
            Style::Canvas(_) => false,
        };
        let permutations = request.options.permutations.max(self.options.permutations);
        let alone = match self.style {
            Style::Causal(_) => Alone::Unsaid,
            Style::Canvas(_) if self.options.isolated => Alone::Always,
            Style::Canvas(_) => Alone::AsAsked,
        };
        let agenda = Agenda::new(request, Manner { sorts_options: corrects || permutations > 1, alone });
        let words = |item: &Item| match &self.style {
            Style::Causal(style) => style.words(&self.prompter, item),
            Style::Canvas(_) => None,
        };
        let words: Vec<Option<Words>> = agenda.items.iter().map(words).collect();
        let item_orders = |(item, words): (&Item, &Option<Words>)| match words {
            _ if item.is_forced() => Vec::new(),
            // The options are not shown.
            Some(_) => orders(item, 1),
            None => orders(item, permutations),
        };
        let shown: Vec<Vec<Vec<usize>>> = agenda.items.iter().zip(&words).map(item_orders).collect();
        let mut plan = Plan {
            parts: Vec::new(),
            looks: Vec::new(),
            temperatures: self.options.temperatures,
            input_tokens: 0,
            known_priors: vec![None; agenda.items.len()],
            orders: shown.iter().map(Vec::len).collect(),
            priors: self.priors.clone(),
            canvases: None,
            agenda,
        };
        if plan.orders.iter().all(|orders| *orders == 0) {
            return Ok(plan);
        }
        let state = request.state.text();
        match &self.style {
            Style::Causal(style) => {
                self.plan_causal(style, state.trim(), (&shown, &words), corrects, context_length, &mut plan)?
            }
            Style::Canvas(style) => self.plan_canvas(style, request, &shown, context_length, &mut plan)?,
        }
        Ok(plan)
    }

    /// The text of a plan: each prompt, then its branches with the labels of every slot.
    pub fn describe(&self, plan: &Plan) -> String {
        let text = |ids: &[u32]| self.prompter.tokenizer.decode(ids, false);
        let mut out = String::new();
        for part in plan.parts() {
            out += &format!("=== prompt, {} tokens\n{}\n", part.prompt.len(), text(&part.prompt));
            for branch in &part.branches {
                out += &format!("--- {:?}, {} tokens\n{}\n", branch.kind, branch.tokens.len(), text(&branch.tokens));
                for slot in &branch.slots {
                    let labels: Vec<String> = slot.labels.iter().map(|label| text(&[*label])).collect();
                    out += &format!("  row {}: {labels:?}\n", slot.row);
                }
            }
        }
        out
    }

    /// Refuses what would change the answers and cannot be done.
    fn check(&self, request: &DecisionRequest) -> Result<(), PlanError> {
        let options = &request.options;
        let refuse = |field, reason| Err(PlanError::Unsupported { field, reason });
        if options.think > 0 {
            return refuse("think", "decisions are read without thinking");
        }
        if options.sequential {
            return refuse("sequential", "questions are read independently");
        }
        match &self.style {
            Style::Causal(_) if options.steps != 1 => refuse("steps", "it has no canvas to revise"),
            Style::Causal(_) if !matches!(options.samples, Samples::Auto | Samples::Fixed(1)) => {
                refuse("samples", "its reads have no noise, so all would be equal")
            }
            Style::Canvas(_) if options.prior_correction => {
                refuse("x_prior_correction", "it reads all questions at once")
            }
            Style::Canvas(style)
                if matches!(style.limits.noise, Noise::Masked { .. })
                    && !matches!(options.samples, Samples::Auto | Samples::Fixed(1)) =>
            {
                refuse("samples", "its canvas is masked, so all would be equal")
            }
            _ => Ok(()),
        }
    }

    fn plan_causal(
        &self,
        style: &CausalStyle,
        state: &str,
        (shown, words): (&[Vec<Vec<usize>>], &[Option<Words>]),
        corrects: bool,
        context: usize,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        let mut askings: Vec<Asking> = Vec::new();
        for (index, item) in plan.agenda.items.iter().enumerate() {
            if let Some(words) = &words[index] {
                askings.push(style.asking_words(index, item, words));
                continue;
            }
            for (at, order) in shown[index].iter().enumerate() {
                let refused = |labels| {
                    let question = plan.agenda.id(index);
                    PlanError::TooManyOptions { question, options: order.len(), labels }
                };
                askings.push(style.asking(index, item, at, order).map_err(refused)?);
            }
        }
        plan.input_tokens = self.add_section(style, (state, false), &askings, context, plan)?;
        let is_corrected = |index: usize| corrects || words[index].is_some();
        let known = |(index, item): (usize, &Item)| {
            is_corrected(index).then(|| self.priors.get(item, shown[index].len())).flatten()
        };
        plan.known_priors = plan.agenda.items.iter().enumerate().map(known).collect();
        askings.retain(|asking| is_corrected(asking.item) && plan.known_priors[asking.item].is_none());
        let (by_words, by_labels): (Vec<Asking>, Vec<Asking>) = askings.into_iter().partition(Asking::is_by_words);
        self.add_section(style, (NO_STATE, true), &by_labels, context, plan)?;
        for asking in &by_words {
            let texts = words::stand_ins(&plan.agenda.items[asking.item]);
            let (part, looks) = causal::stand_in_section(&self.prompter, asking, &texts, plan.parts.len(), context)?;
            plan.parts.push(part);
            plan.looks.extend(looks);
        }
        Ok(())
    }

    /// Adds the part of some questions, if there are any, and counts tokens: the state once, first orders once.
    fn add_section(
        &self,
        style: &CausalStyle,
        (state, is_prior): (&str, bool),
        askings: &[Asking],
        context: usize,
        plan: &mut Plan,
    ) -> Result<usize, PlanError> {
        if askings.is_empty() {
            return Ok(0);
        }
        // Bare text of nothing would be a prompt of no tokens.
        let state = if state.is_empty() && !style.frame().is_turn { NO_STATE } else { state };
        let framed: Vec<&Asking> = askings.iter().collect();
        let place = (plan.parts.len(), is_prior);
        let read = causal::section(&self.prompter, &style.opening, state, (style.frame(), &framed), place, context)?;
        let firsts = framed.iter().zip(&read.question_tokens).filter(|(asking, _)| asking.order == 0);
        let input_tokens = read.part.prompt.len() + firsts.map(|(_, tokens)| tokens).sum::<usize>();
        plan.parts.push(read.part);
        plan.looks.extend(read.looks);
        Ok(input_tokens)
    }

    fn plan_canvas(
        &self,
        style: &CanvasStyle,
        request: &DecisionRequest,
        shown: &[Vec<Vec<usize>>],
        context: usize,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        check_size(&self.prompter, request, &plan.agenda, shown, context)?;
        let planned = style.plan(&self.prompter, &plan.agenda, request, shown)?;
        let samples = match request.options.samples {
            Samples::Auto => 1,
            Samples::Fixed(samples) => samples.max(1),
        };
        plan.input_tokens = planned.input_tokens;
        plan.parts = canvas::parts(&planned.prompts);
        for canvas in &planned.canvases {
            for sample in 0..u64::from(samples) {
                let branch = plan.parts[canvas.part].branches.len();
                let (branch, looks) = canvas.fill(&style.limits, sample, canvas.part, branch);
                let tokens = plan.parts[canvas.part].prompt.len().saturating_add(branch.tokens.len());
                if tokens > context {
                    return Err(PlanError::TooLong { tokens, context });
                }
                plan.parts[canvas.part].branches.push(branch);
                plan.looks.extend(looks);
            }
        }
        let is_auto = request.options.samples == Samples::Auto && style.limits.noise == Noise::Uniform;
        plan.canvases = Some(Noisy { limits: style.limits, canvases: planned.canvases, is_auto });
        Ok(())
    }
}

/// Tokens of all prompts of a request together, so that no request can ask for all memory.
const MOST_TOKENS: usize = 1 << 21;

/// Refuses what would be too long before any of it is laid out.
fn check_size(
    prompter: &Prompter,
    request: &DecisionRequest,
    agenda: &Agenda,
    shown: &[Vec<Vec<usize>>],
    context: usize,
) -> Result<(), PlanError> {
    let tokens = prompter.framed(&ALONE_FRAME, request.state.text().trim(), "")?.len();
    if tokens > context {
        return Err(PlanError::TooLong { tokens, context });
    }
    let items = agenda.items.iter().zip(shown);
    let alone: usize = items.clone().filter(|(item, _)| item.alone).map(|(_, orders)| orders.len()).sum();
    let packed = items.filter(|(item, _)| !item.alone).map(|(_, orders)| orders.len()).max().unwrap_or(0);
    let tokens = tokens.saturating_mul(alone.saturating_add(packed));
    if tokens > MOST_TOKENS { Err(PlanError::TooMuch { tokens, most: MOST_TOKENS }) } else { Ok(()) }
}

fn causal_style(prompter: &Prompter, options: &ReaderOptions) -> Result<CausalStyle, ReaderError> {
    let bare = prompter.neutral("")?;
    let neutral = prompter.neutral(&options.answer_opening)?;
    let opening = neutral.ids.strip_prefix(bare.ids.as_slice()).ok_or(ReaderError::NoLabels)?.to_vec();
    let labels = TextLabels::new(prompter, &neutral);
    if labels.letters(2).is_err() {
        return Err(ReaderError::NoLabels);
    }
    let sides_are_letters = options.noul_labels == NoulLabels::Letters;
    let levels_are_letters = options.score_labels == ScoreLabels::Letters;
    let options_are_words = options.choice_labels == ChoiceLabels::Words;
    Ok(CausalStyle { labels, opening, sides_are_letters, levels_are_letters, options_are_words })
}
