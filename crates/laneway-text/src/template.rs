use std::collections::BTreeMap;
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use regex::Regex;
use serde::Serialize;
use serde_json::Map;

use crate::template_functions::{Refusal, raise_exception, strftime, tojson};
use crate::{TextError, Tokenizer, fallback};

/// Work and memory one rendering may use; about 64 bytes of text per unit (256 MB in all).
const FUEL: u64 = 1 << 22;
/// Templates of real models stay below 50 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
const NAME: &str = "chat";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: String,
    /// Further keys that the template may read (`tool_calls`, `name`); they win over the above.
    #[serde(skip)]
    pub extra: Map<String, serde_json::Value>,
}

impl ChatMessage {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }
}

/// What a template is rendered with besides the messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RenderOptions {
    /// End with the beginning of the model's answer.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, `tools`, `documents`).
    pub extra: Map<String, serde_json::Value>,
    /// Seconds since 1970, UTC, for templates that write the date; they get none without it.
    pub now_unix_s: Option<i64>,
}

/// A model's chat template, parsed.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Parses a Jinja template; `bos` and `eos` are the texts of the model's tokens.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("{} bytes exceed {MAX_SOURCE_BYTES}", source.len());
            return Err(TextError::TemplateSyntax(message));
        }
        let mut environment = environment();
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| TextError::TemplateSyntax(describe(&e)))?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The template of a model's file, or a built-in one that fits its vocabulary.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] if there is neither; [`TextError::TemplateSyntax`].
    pub fn of_tokenizer(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let source = match tokenizer.chat_template() {
            Some(source) => source,
            None => fallback::template(tokenizer).ok_or(TextError::NoTemplate)?,
        };
        let piece = |id: Option<u32>| id.and_then(|id| tokenizer.token_piece(id));
        let (bos, eos) = (piece(tokenizer.bos()), piece(tokenizer.eos()));
        Self::new(source, bos.unwrap_or_default(), eos.unwrap_or_default())
    }

    /// The prompt for `messages`.
    ///
    /// Special tokens written in the messages become those tokens if the prompt is encoded with
    /// `parse_special`; [`Tokenizer::encode_chat`] prevents that.
    ///
    /// # Errors
    /// [`TextError::TemplateRefused`] with the template's own words, or
    /// [`TextError::TemplateFailed`].
    pub fn render(&self, messages: &[ChatMessage], options: &RenderOptions) -> Result<String, TextError> {
        let template = self.environment.get_template(NAME);
        template.and_then(|template| template.render(self.variables(messages, options))).map_err(|e| render_error(&e))
    }

    fn variables(&self, messages: &[ChatMessage], options: &RenderOptions) -> Value {
        let messages: Vec<_> = messages.iter().map(message_value).collect();
        // Reference renderers define these two even when there are none.
        let mut variables =
            BTreeMap::from([("tools".to_owned(), Value::from(())), ("documents".to_owned(), Value::from(()))]);
        let extra = options.extra.iter();
        variables.extend(extra.map(|(key, value)| (key.clone(), Serde(value).into())));
        variables.extend([
            ("messages".to_owned(), messages.into()),
            ("bos_token".to_owned(), Value::from(self.bos.as_str())),
            ("eos_token".to_owned(), Value::from(self.eos.as_str())),
            ("add_generation_prompt".to_owned(), options.add_generation_prompt.into()),
        ]);
        if let Some(now) = options.now_unix_s {
            let strftime_now = move |format: &str| strftime(format, now);
            variables.insert("strftime_now".to_owned(), Value::from_function(strftime_now));
        }
        variables.into()
    }
}

fn environment() -> Environment<'static> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.expect("the standard delimiters do not clash");
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment
}

/// `{% generation %}` marks what training learns from; for a prompt the block is just its body.
fn without_generation_tags(source: &str) -> String {
    static TAG: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("the pattern is valid"));
    TAG.replace_all(source, |tag: &regex::Captures| {
        let word = if tag.get(2).is_some() { "endif" } else { "if true" };
        format!("{}{word}{}", &tag[1], &tag[3])
    })
    .into_owned()
}

fn message_value(message: &ChatMessage) -> Value {
    let mut map = Map::new();
    map.insert("role".to_owned(), message.role.as_str().into());
    map.insert("content".to_owned(), message.content.as_str().into());
    map.extend(message.extra.clone());
    Serde(map).into()
}

fn render_error(error: &Error) -> TextError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Refusal(message)) = cause.downcast_ref() {
            return TextError::TemplateRefused(message.clone());
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TextError::TemplateFailed("it runs too long or writes too much".into()),
        _ => TextError::TemplateFailed(describe(error)),
    }
}

fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, variables: serde_json::Value) -> Result<String, TextError> {
        let serde_json::Value::Object(extra) = variables else {
            panic!("variables are a map");
        };
        let options = RenderOptions { extra, now_unix_s: Some(0), ..Default::default() };
        let messages = [ChatMessage::new("user", " Hi ")];
        ChatTemplate::new(source, "<s>", "</s>")?.render(&messages, &options)
    }

    fn check(source: &str, expected: &str) {
        let variables = json!({"x": {"b": "<é'", "a": [1, 2.5, null]}});
        assert_eq!(render(source, variables).as_deref(), Ok(expected), "{source}");
    }

    #[test]
    fn templates_render_as_the_reference_renderer_does() {
        check("{{ bos_token }}{{ messages[0].content.strip().upper() }}{{ eos_token }}", "<s>HI</s>");
        check("{{ messages[0]['role'].startswith('us') }}", "True");
        check("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
        check(
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "013",
        );
        check("{{ x | tojson }}", r#"{"b": "<é'", "a": [1, 2.5, null]}"#);
        check("{% if tools is none and missing is not defined %}y{% endif %}", "y");
        check("{% for k, v in x.items() %}{{ k }}{% endfor %}", "ba");
        check("{{ x.get('none') is none }}{{ missing }}", "True");
        check("{% generation %}a{%- endgeneration %}", "a");
        check("{{ strftime_now('%Y') }}", "1970");
        check("{% set n = namespace(v=1) %}{% set n.v = n.v + 1 %}{{ n.v }}", "2");
    }

    #[test]
    fn the_date_is_undefined_without_a_time() {
        let template = ChatTemplate::new("{{ strftime_now is defined }}", "", "").unwrap();
        assert_eq!(template.render(&[], &RenderOptions::default()).as_deref(), Ok("False"));
    }

    #[test]
    fn extra_keys_win_over_the_content() {
        let mut message = ChatMessage::new("assistant", "");
        message.extra.insert("content".into(), json!(null));
        message.extra.insert("tool_calls".into(), json!([{"id": "1"}]));
        let source = "{{ messages[0].content is none }}{{ messages[0].tool_calls[0].id }}";
        let template = ChatTemplate::new(source, "", "").unwrap();
        assert_eq!(template.render(&[message], &RenderOptions::default()).as_deref(), Ok("True1"));
    }

    #[test]
    fn errors_carry_their_text() {
        let refused = render("{{ raise_exception('roles must alternate') }}", json!({}));
        assert_eq!(refused, Err(TextError::TemplateRefused("roles must alternate".into())));
        let syntax = render("{% if %}", json!({}));
        assert!(matches!(&syntax, Err(TextError::TemplateSyntax(m)) if m.contains("chat:1")), "{syntax:?}");
        let failed = render("{{ 1 + {} }}", json!({}));
        assert!(matches!(failed, Err(TextError::TemplateFailed(_))), "{failed:?}");
    }

    #[test]
    fn a_refusal_inside_a_macro_keeps_its_text() {
        let source = "{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}";
        assert_eq!(render(source, json!({})), Err(TextError::TemplateRefused("no".into())));
    }

    #[test]
    fn endless_and_huge_templates_end_in_an_error() {
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let huge = "{% set n = namespace(v='aaaaaaaa') %}{% for i in range(99) %}{% set n.v = n.v ~ n.v %}{% endfor %}";
        let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        for source in [endless, huge, recursive] {
            let result = render(source, json!({}));
            assert!(matches!(result, Err(TextError::TemplateFailed(_))), "{source}: {result:?}");
        }
        let long = " ".repeat(MAX_SOURCE_BYTES + 1);
        assert!(matches!(ChatTemplate::new(&long, "", ""), Err(TextError::TemplateSyntax(_))));
    }
}
