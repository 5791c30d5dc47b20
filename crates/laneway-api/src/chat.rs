use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use laneway_protocol::chat::{
    AssistantMessage, ChatChoice, ChatChunk, ChatCompletion, ChatLogprobs, ChunkChoice, Delta, TokenLogprob,
};
use laneway_protocol::{ApiError, ChatTurn, FinishReason, Message, TurnSettings, Usage};
use laneway_text::{ChatMessage, RenderOptions, TextError};

use crate::answer::{Choice, Head, Shape, deliver, unix_now_s};
use crate::body;
use crate::refusal::Refusal;
use crate::render::rendered;
use crate::state::{ApiState, TextModel};
use crate::turns::{News, TokenPrompt, Turns, cache_namespace};

/// `POST /v1/chat/completions`.
pub(crate) async fn answer(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, Refusal> {
    let (model, settings, prompt) = prompt(&state, request).await?;
    let shape = ChatShape {
        head: Head::new("chatcmpl", &model, settings.delivery),
        wants_logprobs: settings.top_logprobs.is_some(),
    };
    model.prepare(cache_namespace(&settings), &prompt.ids).await;
    let turns = Turns::start(state, model, vec![prompt], &settings)?;
    Ok(deliver(turns, shape, settings.delivery).await?)
}

/// `POST /v1/chat/completions/render`: the prompt of such a request, and nothing more.
pub(crate) async fn render(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, Refusal> {
    let (_, _, prompt) = prompt(&state, request).await?;
    Ok(rendered(vec![prompt])?)
}

async fn prompt(state: &ApiState, request: Request) -> Result<(Arc<TextModel>, TurnSettings, TokenPrompt), ApiError> {
    let bytes = body::read(request, state).await?;
    let length = bytes.len();
    let ChatTurn { model, messages, settings } = state.tokenise(length, move || ChatTurn::from_json(&bytes)).await??;
    let model = state.admit(&model)?;
    let (written, thinking) = (model.clone(), settings.thinking);
    let prompt = state.tokenise(length, move || write(&written, &messages, thinking)).await??;
    Ok((model, settings, prompt))
}

fn write(model: &TextModel, messages: &[Message], thinking: bool) -> Result<TokenPrompt, ApiError> {
    let template = model.template.as_ref().ok_or_else(|| {
        let message = format!("{} has no chat template; use /v1/completions", model.info.id);
        ApiError::unsupported("model", message)
    })?;
    let messages: Vec<ChatMessage> =
        messages.iter().map(|message| ChatMessage::new(message.role.as_str(), message.content.as_str())).collect();
    let options = RenderOptions {
        add_generation_prompt: true,
        now_unix_s: i64::try_from(unix_now_s()).ok(),
        extra: std::iter::once(("enable_thinking".to_owned(), thinking.into())).collect(),
    };
    let ids = model.tokenizer.encode_chat(template, &messages, &options).map_err(|error| refused(&error))?;
    Ok(TokenPrompt { ids, param: "messages", continues: false, is_chat: true })
}

fn refused(error: &TextError) -> ApiError {
    let message = match error {
        TextError::TemplateRefused(reason) => {
            format!("the chat template refuses these messages: {reason}")
        }
        other => format!("the chat template cannot write these messages: {other}"),
    };
    ApiError::field("messages", message)
}

struct ChatShape {
    head: Head,
    wants_logprobs: bool,
}

impl ChatShape {
    fn logprobs(&self, tokens: Vec<TokenLogprob>) -> Option<ChatLogprobs> {
        self.wants_logprobs.then_some(ChatLogprobs { content: tokens, refusal: None })
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Option<Usage>>) -> ChatChunk {
        ChatChunk {
            id: self.head.id.clone(),
            object: "chat.completion.chunk",
            created: self.head.created,
            model: self.head.model.clone(),
            system_fingerprint: self.head.fingerprint.clone(),
            choices,
            usage,
            x_laneway_draft: None,
        }
    }
}

impl Shape for ChatShape {
    type Whole = ChatCompletion;
    type Chunk = ChatChunk;

    fn whole(&self, choices: Vec<Choice>, usage: Usage) -> ChatCompletion {
        let choices = choices.into_iter().zip(0..).map(|(choice, index)| ChatChoice {
            index,
            message: AssistantMessage {
                role: "assistant",
                content: choice.text,
                reasoning_content: Some(choice.reasoning).filter(|text| !text.is_empty()),
                refusal: None,
            },
            logprobs: self.logprobs(choice.tokens),
            finish_reason: choice.finish.unwrap_or(FinishReason::Stop),
        });
        ChatCompletion {
            id: self.head.id.clone(),
            object: "chat.completion",
            created: self.head.created,
            model: self.head.model.clone(),
            system_fingerprint: self.head.fingerprint.clone(),
            choices: choices.collect(),
            usage,
        }
    }

    fn opening(&self, choice: u32) -> Option<ChatChunk> {
        let opened = ChunkChoice { index: choice, delta: Delta::role(), logprobs: None, finish_reason: None };
        Some(self.chunk(vec![opened], self.head.usage))
    }

    fn news(&mut self, news: News) -> ChatChunk {
        if news.draft.is_some() {
            return ChatChunk { x_laneway_draft: news.draft, ..self.chunk(Vec::new(), self.head.usage) };
        }
        let logprobs = if news.tokens.is_empty() { None } else { self.logprobs(news.tokens) };
        let delta = match (news.finish, news.reasoning) {
            (Some(_), _) => Delta::default(),
            (None, true) => Delta::reasoning(news.text),
            (None, false) => Delta::text(news.text),
        };
        let choice = ChunkChoice { index: news.choice, delta, logprobs, finish_reason: news.finish };
        self.chunk(vec![choice], self.head.usage)
    }

    fn usage(&self, usage: Usage) -> ChatChunk {
        self.chunk(Vec::new(), Some(Some(usage)))
    }
}
