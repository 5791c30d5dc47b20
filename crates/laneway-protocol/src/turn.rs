use crate::ApiError;
use crate::body::{self, Body, Content, Part, RawMessage};
use crate::loose::{List, Object};
use crate::prompt::{Prompt, Prompts};
use crate::settings::{LogprobStyle, MAX_CHOICES, TurnSettings, validate};

/// A valid request for `POST /v1/chat/completions`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTurn {
    /// The model's name as given, not yet resolved.
    pub model: String,
    /// At least one message.
    pub messages: Vec<Message>,
    pub settings: TurnSettings,
}

/// A valid request for `POST /v1/completions`.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionTurn {
    /// The model's name as given, not yet resolved.
    pub model: String,
    /// At least one prompt, none empty; with `settings.choices` at most [`MAX_CHOICES`] answers.
    pub prompts: Vec<Prompt>,
    pub settings: TurnSettings,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    /// Text parts joined without a separator.
    pub content: String,
}

/// Who said a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `system` or `developer`.
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The name chat templates know.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl ChatTurn {
    /// Reads and validates a JSON body.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut body = body::read(bytes)?;
        let model = model(&mut body)?;
        let List(messages) = body.messages.take().ok_or_else(|| required("messages"))?;
        if messages.is_empty() {
            return Err(ApiError::field("messages", "`messages` must hold at least one message"));
        }
        let messages = messages.into_iter().enumerate().map(message).collect::<Result<_, _>>()?;
        let settings = validate(&mut body, LogprobStyle::Chat)?;
        Ok(Self { model, messages, settings })
    }
}

impl CompletionTurn {
    /// Reads and validates a JSON body.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut body = body::read(bytes)?;
        let model = model(&mut body)?;
        let Prompts(prompts) = body.prompt.take().ok_or_else(|| required("prompt"))?;
        if prompts.is_empty() || prompts.iter().any(Prompt::is_empty) {
            return Err(ApiError::field("prompt", "`prompt` must not be empty"));
        }
        let settings = validate(&mut body, LogprobStyle::Completion)?;
        if prompts.len().saturating_mul(settings.choices as usize) > MAX_CHOICES {
            let message =
                format!("{} prompts times n = {} are over {MAX_CHOICES} answers", prompts.len(), settings.choices);
            return Err(ApiError::field("prompt", message));
        }
        Ok(Self { model, prompts, settings })
    }
}

fn required(param: &str) -> ApiError {
    ApiError::field(param, format!("`{param}` is required"))
}

fn model(body: &mut Body) -> Result<String, ApiError> {
    body.model.take().filter(|name| !name.is_empty()).ok_or_else(|| required("model"))
}

fn message((index, Object(raw)): (usize, Object<RawMessage>)) -> Result<Message, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let role = match raw.role.as_deref() {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        Some(_) => {
            return Err(ApiError::field(
                at("role"),
                format!("`{}` must be system, developer, user, assistant or tool", at("role")),
            ));
        }
        None => return Err(required(&at("role"))),
    };
    for (field, calls) in [("tool_calls", &raw.tool_calls), ("function_call", &raw.function_call)] {
        if calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
            return Err(ApiError::unsupported(at(field), "tool calls are not supported by this server"));
        }
    }
    let content = match raw.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(List(parts))) => join(parts, &at("content"))?,
        None if role == Role::Assistant => String::new(),
        None => return Err(required(&at("content"))),
    };
    Ok(Message { role, content })
}

fn join(parts: Vec<Object<Part>>, at: &str) -> Result<String, ApiError> {
    if parts.is_empty() {
        return Err(ApiError::field(at, format!("`{at}` must hold at least one part")));
    }
    let mut joined = String::new();
    for (index, Object(part)) in parts.into_iter().enumerate() {
        match part.kind.as_deref() {
            Some("text" | "input_text" | "output_text") => {
                let text = part.text.ok_or_else(|| required(&format!("{at}[{index}].text")))?;
                joined.push_str(&text);
            }
            Some(kind) => {
                let shown: String = kind.chars().take(40).collect();
                let message = format!("this model reads text only, not `{shown}` parts");
                return Err(ApiError::unsupported(format!("{at}[{index}].type"), message));
            }
            None => return Err(required(&format!("{at}[{index}].type"))),
        }
    }
    Ok(joined)
}
