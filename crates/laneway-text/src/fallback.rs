use crate::Tokenizer;

const CHATML: &str = include_str!("templates/chatml.jinja");
const GEMMA: &str = include_str!("templates/gemma.jinja");
const GEMMA4: &str = include_str!("templates/gemma4.jinja");

/// The built-in template whose turn marker is a token of the vocabulary.
pub(crate) fn template(tokenizer: &Tokenizer) -> Option<&'static str> {
    let markers = [("<|turn>", GEMMA4), ("<|im_start|>", CHATML), ("<start_of_turn>", GEMMA)];
    markers.into_iter().find_map(|(marker, template)| tokenizer.token_id(marker).map(|_| template))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ChatMessage, ChatTemplate, RenderOptions, TextError, TokenizerSource};

    fn template_for(marker: &str) -> Result<ChatTemplate, TextError> {
        let tokens = ["<bos>", marker].map(String::from).to_vec();
        let source = TokenizerSource { model: "gemma4".into(), tokens, bos: Some(0), ..Default::default() };
        ChatTemplate::of_tokenizer(&Tokenizer::new(source)?)
    }

    fn check(marker: &str, messages: &[(&str, &str)], variables: serde_json::Value, expected: &str) {
        let messages: Vec<_> = messages.iter().map(|(r, c)| ChatMessage::new(*r, *c)).collect();
        let options = RenderOptions {
            add_generation_prompt: true,
            extra: variables.as_object().unwrap().clone(),
            now_unix_s: None,
        };
        let rendered = template_for(marker).unwrap().render(&messages, &options).unwrap();
        assert_eq!(rendered, expected);
    }

    #[test]
    fn chatml_turns() {
        check(
            "<|im_start|>",
            &[("system", "Be brief."), ("user", "Hi")],
            json!({}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        );
    }

    #[test]
    fn gemma_puts_the_system_text_before_the_first_user_text() {
        check(
            "<start_of_turn>",
            &[("system", "Be brief."), ("user", " Hi "), ("assistant", "Yo"), ("user", "Bye")],
            json!({}),
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n\
             <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        );
    }

    #[test]
    fn gemma_refuses_roles_that_do_not_alternate() {
        let messages = [ChatMessage::new("user", "a"), ChatMessage::new("user", "b")];
        let template = template_for("<start_of_turn>").unwrap();
        let result = template.render(&messages, &RenderOptions::default());
        assert!(matches!(result, Err(TextError::TemplateRefused(_))), "{result:?}");
    }

    #[test]
    fn gemma4_without_thinking_opens_an_empty_thought() {
        check(
            "<|turn>",
            &[("user", "Why is the sky blue?")],
            json!({}),
            "<bos><|turn>user\nWhy is the sky blue?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        );
    }

    #[test]
    fn gemma4_with_thinking_asks_for_it_in_the_system_turn() {
        check(
            "<|turn>",
            &[("user", "Hi")],
            json!({"enable_thinking": true}),
            "<bos><|turn>system\n<|think|><turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n",
        );
    }

    #[test]
    fn gemma4_leaves_earlier_thoughts_out() {
        let answer = "<|channel>thought\nhm<channel|>Yo<|channel>thought\nah<channel|>!";
        check(
            "<|turn>",
            &[("developer", "Be brief."), ("user", "Hi"), ("assistant", answer), ("user", "Bye")],
            json!({}),
            "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nYo!<turn|>\n\
             <|turn>user\nBye<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        );
    }

    #[test]
    fn a_vocabulary_without_turns_has_no_template() {
        assert_eq!(template_for("x").err(), Some(TextError::NoTemplate));
    }
}
