use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use laneway_protocol::chat::TokenLogprob;
use laneway_protocol::completion::{Completion, CompletionChoice, CompletionLogprobs};
use laneway_protocol::{ApiError, CompletionTurn, FinishReason, Prompt, TurnSettings, Usage};
use laneway_text::EncodeOptions;

use crate::answer::{Choice, Head, Shape, deliver};
use crate::body;
use crate::refusal::Refusal;
use crate::render::rendered;
use crate::state::{ApiState, TextModel};
use crate::turns::{News, TokenPrompt, Turns, cache_namespace};

/// OpenAI's default for this endpoint.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// `POST /v1/completions`.
pub(crate) async fn answer(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, Refusal> {
    let (model, mut settings, prompts) = prompts(&state, request).await?;
    settings.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    // Drafts are told by chat chunks only.
    settings.drafts = false;
    let mut shape = CompletionShape {
        head: Head::new("cmpl", &model, settings.delivery),
        wants_logprobs: settings.top_logprobs.is_some(),
        offsets: Vec::new(),
    };
    for prompt in &prompts {
        model.prepare(cache_namespace(&settings), &prompt.ids).await;
    }
    let turns = Turns::start(state, model, prompts, &settings)?;
    shape.offsets = vec![0; turns.choices() as usize];
    Ok(deliver(turns, shape, settings.delivery).await?)
}

/// `POST /v1/completions/render`: the prompt of such a request, and nothing more.
pub(crate) async fn render(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, Refusal> {
    let (_, _, prompts) = prompts(&state, request).await?;
    Ok(rendered(prompts)?)
}

async fn prompts(
    state: &ApiState,
    request: Request,
) -> Result<(Arc<TextModel>, TurnSettings, Vec<TokenPrompt>), ApiError> {
    let bytes = body::read(request, state).await?;
    let length = bytes.len();
    let CompletionTurn { model, prompts, settings } =
        state.tokenise(length, move || CompletionTurn::from_json(&bytes)).await??;
    let model = state.admit(&model)?;
    let encoder = model.clone();
    let encode = move || prompts.into_iter().map(|prompt| encode(&encoder, prompt)).collect::<Result<Vec<_>, _>>();
    let prompts = state.tokenise(length, encode).await??;
    Ok((model, settings, prompts))
}

fn encode(model: &TextModel, prompt: Prompt) -> Result<TokenPrompt, ApiError> {
    let tokenizer = &model.tokenizer;
    let ids = match prompt {
        // Whoever may send ids may also write special tokens.
        Prompt::Text(text) => tokenizer.encode(&text, EncodeOptions { add_bos: true, parse_special: true }),
        Prompt::Ids(ids) => {
            let size = tokenizer.vocab_size();
            if let Some(id) = ids.iter().find(|id| **id as usize >= size) {
                let message = format!("token id {id} is outside this model's vocabulary of {size} tokens");
                return Err(ApiError::field("prompt", message));
            }
            ids
        }
    };
    if ids.is_empty() {
        return Err(ApiError::field("prompt", "`prompt` has no tokens"));
    }
    Ok(TokenPrompt { ids, param: "prompt", continues: true, is_chat: false })
}

struct CompletionShape {
    head: Head,
    wants_logprobs: bool,
    /// Characters sent of each choice.
    offsets: Vec<usize>,
}

impl CompletionShape {
    fn logprobs(&self, tokens: &[TokenLogprob], offset: usize) -> Option<CompletionLogprobs> {
        self.wants_logprobs.then(|| CompletionLogprobs::new(tokens, offset))
    }

    fn object(&self, choices: Vec<CompletionChoice>, usage: Option<Option<Usage>>) -> Completion {
        Completion {
            id: self.head.id.clone(),
            object: "text_completion",
            created: self.head.created,
            model: self.head.model.clone(),
            system_fingerprint: self.head.fingerprint.clone(),
            choices,
            usage,
        }
    }
}

impl Shape for CompletionShape {
    type Whole = Completion;
    type Chunk = Completion;

    fn whole(&self, choices: Vec<Choice>, usage: Usage) -> Completion {
        let choices = choices.into_iter().zip(0..).map(|(choice, index)| CompletionChoice {
            index,
            logprobs: self.logprobs(&choice.tokens, 0),
            text: choice.text,
            finish_reason: Some(choice.finish.unwrap_or(FinishReason::Stop)),
        });
        self.object(choices.collect(), Some(Some(usage)))
    }

    fn opening(&self, _choice: u32) -> Option<Completion> {
        None
    }

    fn news(&mut self, news: News) -> Completion {
        let offset = &mut self.offsets[news.choice as usize];
        let start = *offset;
        *offset += news.text.chars().count();
        let logprobs = if news.tokens.is_empty() { None } else { self.logprobs(&news.tokens, start) };
        let choice = CompletionChoice { text: news.text, index: news.choice, logprobs, finish_reason: news.finish };
        self.object(vec![choice], self.head.usage)
    }

    fn usage(&self, usage: Usage) -> Completion {
        self.object(Vec::new(), Some(Some(usage)))
    }
}
