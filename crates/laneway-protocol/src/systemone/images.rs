//! Images, official (`assets`) and third-party (`images`): their shape is checked, then they are refused.

use serde_json::{Map, Value, json};

use crate::shape::{At, Errors};
use crate::systemone::{DecisionError, State};

const MOST_IMAGES: usize = 8;
/// Most bytes gone through in search of placeholders; beyond that, the refusal alone has to do.
const MOST_SEARCHED: usize = 1 << 28;

/// Checks the shape of a request's images and refuses them.
///
/// `state` has been taken out of `body`, whose text had `len` bytes.
pub(crate) fn refuse_images(
    body: &Map<String, Value>,
    state: Option<&State>,
    len: usize,
    errors: &mut Errors,
    refusals: &mut Vec<DecisionError>,
) {
    let at = At::BODY;
    if let Some(assets) = body.get("assets").filter(|assets| !assets.is_null()) {
        check_assets(at.field("assets"), assets, body, state, len, errors);
        refusals.push(refusal("assets"));
    }
    if let Some(images) = body.get("images").filter(|images| !images.is_null())
        && check_images(at.field("images"), images, errors) > 0
    {
        refusals.push(refusal("images"));
    }
}

fn refusal(field: &str) -> DecisionError {
    DecisionError::sentence(format!("{field} are not supported: this model reads text only"))
}

fn check_assets(
    at: At,
    assets: &Value,
    body: &Map<String, Value>,
    state: Option<&State>,
    len: usize,
    errors: &mut Errors,
) {
    let Some(assets) = errors.object(at, assets) else { return };
    if assets.is_empty() {
        errors.too_short(at, "Dictionary", 1, 0);
    }
    let searchable = assets.len().saturating_mul(len) <= MOST_SEARCHED;
    for (placeholder, asset) in assets {
        let at = at.field(placeholder);
        if placeholder.is_empty() {
            errors.empty_string(at);
        } else if searchable && !is_used(placeholder, body, state) {
            errors.push(at, "value_error", "Value error, the placeholder appears nowhere in the request", None);
        }
        check_asset(at, asset, errors);
    }
}

fn check_asset(at: At, asset: &Value, errors: &mut Errors) {
    let Some(asset) = errors.object(at, asset) else { return };
    let given = |name: &str| asset.get(name).filter(|value| !value.is_null());
    if let Some(kind) = given("type").filter(|kind| **kind != "image") {
        literal(at.field("type"), "'image'", kind, errors);
    }
    let part = given("part").map(|part| errors.string(at.field("part"), part));
    if part.is_some() {
        return;
    }
    match given("format") {
        None => errors.missing(at.field("format")),
        Some(format) if ["png", "jpg", "jpeg"].iter().any(|known| format == known) => {}
        Some(format) => literal(at.field("format"), "'png', 'jpg' or 'jpeg'", format, errors),
    }
    match given("data_base64") {
        None => errors.missing(at.field("data_base64")),
        Some(data) => check_base64(at.field("data_base64"), data, errors),
    }
}

/// Returns the number of images.
fn check_images(at: At, images: &Value, errors: &mut Errors) -> usize {
    let Some(images) = errors.list(at, images) else { return 0 };
    if images.len() > MOST_IMAGES {
        errors.too_long(at, "List", MOST_IMAGES, images.len());
    }
    for (index, image) in images.iter().enumerate() {
        let at = at.index(index);
        match image {
            Value::String(text) => match text.strip_prefix("data:") {
                Some(rest) if rest.split_once(";base64,").is_some_and(|(_, data)| is_base64(data)) => {}
                None if is_base64(text) => {}
                _ => base64_error(at, image, errors),
            },
            Value::Object(image) => {
                match image.get("content_type") {
                    None => errors.missing(at.field("content_type")),
                    Some(kind) => drop(errors.string(at.field("content_type"), kind)),
                }
                match image.get("base64") {
                    None => errors.missing(at.field("base64")),
                    Some(data) => check_base64(at.field("base64"), data, errors),
                }
            }
            other => errors.push(at, "union_type", "Input should be a valid string or dictionary", Some(other)),
        }
    }
    images.len()
}

fn literal(at: At, expected: &str, value: &Value, errors: &mut Errors) {
    let ctx = Some(json!({"expected": expected}));
    errors.push_with(at, "literal_error", format!("Input should be {expected}"), Some(value), ctx);
}

fn check_base64(at: At, value: &Value, errors: &mut Errors) {
    if errors.string(at, value).is_some_and(|text| !is_base64(text)) {
        base64_error(at, value, errors);
    }
}

fn base64_error(at: At, value: &Value, errors: &mut Errors) {
    errors.push(at, "value_error", "Value error, the image data must be valid base64", Some(value));
}

/// Whether the text is padded base64 of the standard alphabet, and not empty.
fn is_base64(text: &str) -> bool {
    let data = text.trim_end_matches('=');
    !data.is_empty()
        && text.len() - data.len() <= 2
        && text.len().is_multiple_of(4)
        && data.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}

fn is_used(placeholder: &str, body: &Map<String, Value>, state: Option<&State>) -> bool {
    let in_state = match state {
        Some(State::Text(text)) => text.contains(placeholder),
        Some(State::Json(value)) => mentions(value, placeholder),
        None => false,
    };
    let questions = body.get("questions").and_then(Value::as_object);
    in_state
        || questions.into_iter().flat_map(Map::values).any(|question| {
            ["instructions", "criteria"]
                .iter()
                .filter_map(|field| question.get(field))
                .any(|value| mentions(value, placeholder))
        })
}

fn mentions(value: &Value, placeholder: &str) -> bool {
    match value {
        Value::String(text) => text.contains(placeholder),
        Value::Array(list) => list.iter().any(|element| mentions(element, placeholder)),
        Value::Object(map) => {
            map.iter().any(|(key, member)| key.contains(placeholder) || mentions(member, placeholder))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded_and_of_the_standard_alphabet() {
        for (text, expected) in [
            ("aGk=", true),
            ("aA==", true),
            ("+/+/", true),
            ("", false),
            ("====", false),
            ("a===", false),
            ("aGk", false),
            ("a-_=", false),
            ("aG k", false),
            ("aG=k", false),
            ("aGké", false),
        ] {
            assert_eq!(is_base64(text), expected, "{text}");
        }
    }
}
