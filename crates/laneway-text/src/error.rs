/// Why a tokenizer or chat template could not be built or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// `tokenizer.ggml.model` names an algorithm this crate does not have.
    #[error("tokenizer model `{0}` is not supported (supported: gpt2, llama, gemma4)")]
    UnsupportedModel(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer this crate does not have.
    #[error("pre-tokenizer `{name}` is not supported (supported: {supported})")]
    UnsupportedPreTokenizer { name: String, supported: &'static str },
    /// The vocabulary, scores, merges or special ids contradict each other.
    #[error("invalid vocabulary: {0}")]
    InvalidVocabulary(String),
    /// `tokenizer.json` or `tokenizer_config.json` is not of the expected form.
    #[error("invalid tokenizer.json: {0}")]
    InvalidTokenizerJson(String),
    /// `tokenizer.json` is well formed, but of a kind this crate does not have.
    #[error(
        "tokenizer.json with {0} is not supported (supported: byte-level BPE with the gpt-2, \
         smollm, llama-bpe or qwen2 split; BPE with byte_fallback and `▁` for spaces)"
    )]
    UnsupportedTokenizerJson(String),
    /// The model has no chat template and none of the built-in ones fits its vocabulary.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template is not valid Jinja.
    #[error("chat template does not parse: {0}")]
    TemplateSyntax(String),
    /// The template refused the messages with `raise_exception`.
    #[error("chat template refused the messages: {0}")]
    TemplateRefused(String),
    /// The template failed, ran too long or produced too much text.
    #[error("chat template failed: {0}")]
    TemplateFailed(String),
}
