use laneway_text::TextError;

/// Why a model cannot answer decisions.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReaderError {
    /// A temperature is not a positive number.
    #[error("the temperature of {kind} questions is {value}; it must be over 0 and finite")]
    Temperature { kind: &'static str, value: f64 },
    /// The canvas has no position, or the vocabulary no token.
    #[error("a canvas of {length} positions over {vocabulary} tokens cannot hold an answer")]
    Canvas { length: usize, vocabulary: u32 },
    /// The shortest answer does not fit the canvas.
    #[error("the shortest answer takes {tokens} tokens of canvas; this model's has {canvas}")]
    CanvasTooSmall { tokens: usize, canvas: usize },
    /// A token that canvases hold is none of the model's.
    #[error("canvases hold the {what} {token}; the vocabulary has {vocabulary} tokens")]
    OutsideVocabulary { what: &'static str, token: u32, vocabulary: u32 },
    /// Not even two labels are tokens of their own where an answer stands.
    #[error("the tokenizer has no labels that stand for themselves where an answer does")]
    NoLabels,
    /// The chat template failed.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Why a request cannot be read by this model; all are the caller's to mend.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// An option that would change the answers, and that the model does not have.
    #[error("`{field}` is not supported by this model: {reason}")]
    Unsupported { field: &'static str, reason: &'static str },
    /// The tokenizer does not have that many labels.
    #[error("question `{question}` has {options} options; the tokenizer of this model has labels for {labels}")]
    TooManyOptions { question: String, options: usize, labels: usize },
    /// A question's labels do not differ in exactly one token of the answer.
    #[error("question `{question}` cannot be read: its labels change {tokens} tokens of the answer, not exactly one")]
    Slot { question: String, tokens: usize },
    /// One question's answer is longer than a canvas.
    #[error("question `{question}` needs {tokens} tokens of canvas; this model's has {canvas}")]
    CanvasTooSmall { question: String, tokens: usize, canvas: usize },
    /// State and questions are longer than the context.
    #[error("the state and its questions take {tokens} tokens; the context holds {context}")]
    TooLong { tokens: usize, context: usize },
    /// All prompts together are longer than a request may ask for.
    #[error(
        "the questions need prompts of {tokens} tokens in all, a request may have {most}; ask fewer, or fewer orders"
    )]
    TooMuch { tokens: usize, most: usize },
    /// The prompt came out without tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The chat template refused or failed.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Why logits give no answer; none is the caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The logits are not those that were asked for.
    #[error("the logits of a read do not match its plan")]
    Mismatch,
    /// A logit is not a number, infinite, or all of a slot are minus infinity.
    #[error("the model gave no usable logits for question `{question}`")]
    NotFinite { question: String },
}

/// Why a decision was not made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecideError<E> {
    /// The request cannot be read by this model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A read failed.
    #[error("a read failed: {0}")]
    Read(E),
    /// The logits of the reads give no answer.
    #[error(transparent)]
    Logits(#[from] ReadError),
}
