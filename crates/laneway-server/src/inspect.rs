//! `laneway inspect`.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use laneway_files::{Array, CanvasContext, DiffusionConfig, LayerConfig, Noise, Value, Weights};

use crate::load::{describe, family_name};
use crate::output::{bytes, print, printable, table, thousands};
use crate::tokenizer::{self, Origin};
use crate::{load, pull};

/// Elements of an array that are shown.
const MAX_ITEMS: usize = 6;

/// Prints metadata, configuration, tensors, and what Laneway can do with them.
pub fn run(model: &str) -> Result<()> {
    let path = pull::resolve(model)?;
    let weights = load::open(&path)?;
    let mut out = String::new();
    let sections = [
        ("File", vec![row("path", path.display().to_string()), row("tensors", sum(&weights))]),
        ("Metadata", metadata(&weights)),
        ("Network", network(&weights)),
        ("Text", text(&weights)),
        ("Formats", formats(&weights)),
        ("Tensors", tensors(&weights)),
        ("Laneway", verdict(&weights)),
    ];
    for (title, rows) in sections.iter().filter(|(_, rows)| !rows.is_empty()) {
        let right: &[usize] = if *title == "Formats" { &[1, 2, 3] } else { &[] };
        let body = table(rows, right);
        let lines = body.lines().map(|line| format!("  {line}\n")).collect::<String>();
        let gap = if out.is_empty() { "" } else { "\n" };
        write!(out, "{gap}{title}\n{lines}")?;
    }
    print(&out)
}

fn row(name: impl Into<String>, value: impl Into<String>) -> Vec<String> {
    vec![name.into(), value.into()]
}

fn sum(weights: &Weights) -> String {
    let parameters: u64 = weights.tensors().iter().map(|tensor| tensor.len() as u64).sum();
    let count = weights.tensors().len();
    format!("{count}, {} parameters in {}", thousands(parameters), bytes(weights.total_bytes()))
}

fn metadata(weights: &Weights) -> Vec<Vec<String>> {
    weights.metadata().iter().map(|(key, value)| row(printable(key), show(value))).collect()
}

fn network(weights: &Weights) -> Vec<Vec<String>> {
    let config = weights.config();
    let mut rows = vec![row("summary", describe(config))];
    // Layers with the same settings are one row.
    let mut kinds: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, layer) in config.layers.iter().enumerate() {
        let text = layer_text(at, layer);
        match kinds.iter_mut().find(|(known, _)| *known == text) {
            Some((_, layers)) => layers.push(at),
            None => kinds.push((text, vec![at])),
        }
    }
    rows.extend(kinds.iter().map(|(text, layers)| row(format!("layers {}", ranges(layers)), text.clone())));
    let head = if config.tied_head { "shares the embedding" } else { "has its own weights" };
    let cap = config.final_softcap.map(|cap| format!(", logits capped at {cap}"));
    rows.push(row("head", head.to_owned() + &cap.unwrap_or_default()));
    if config.per_layer_input > 0 {
        rows.push(row("per-layer inputs", format!("of width {}", config.per_layer_input)));
    }
    if let Some(diffusion) = &config.diffusion {
        rows.push(row("canvas", canvas_text(diffusion)));
    }
    rows
}

fn canvas_text(diffusion: &DiffusionConfig) -> String {
    let noise = match diffusion.noise {
        Noise::Uniform => "any token where nothing is decided".to_owned(),
        Noise::Masked { mask } => format!("token {mask} where nothing is decided"),
    };
    let context = match diffusion.context {
        CanvasContext::Causal => "after a causal prompt",
        CanvasContext::Blocks => "block after block",
        CanvasContext::Whole => "together with the whole prompt",
    };
    format!("{} positions {context}, {noise}", diffusion.canvas_length)
}

fn layer_text(at: usize, layer: &LayerConfig) -> String {
    let reach = layer.window.map_or("sees all".to_owned(), |window| format!("sees {window}"));
    let shared =
        if layer.kv_layer == at { String::new() } else { format!(", keys and values of layer {}", layer.kv_layer) };
    let experts = if layer.has_experts { ", experts" } else { "" };
    format!(
        "{reach}, {} heads on {} of width {}, feed-forward {}{experts}{shared}",
        layer.heads, layer.kv_heads, layer.head_dim, layer.ff
    )
}

fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let parts = parts.iter().map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
    parts.collect::<Vec<_>>().join(",")
}

fn text(weights: &Weights) -> Vec<Vec<String>> {
    let (tokenizer, origin) = match tokenizer::of(weights) {
        Ok(found) => found,
        Err(error) => return vec![row("tokenizer", format!("not usable: {error:#}"))],
    };
    let from = match origin {
        Origin::Metadata => "from the metadata",
        Origin::Json => "from tokenizer.json",
        Origin::Ids => "none in the files, token ids only",
    };
    let piece = |id: u32| format!("{} ({id})", tokenizer.token_piece(id).unwrap_or_default());
    let ends = tokenizer.end_of_generation().iter().map(|&id| piece(id)).collect::<Vec<_>>().join(", ");
    let template = match tokenizer::template(weights, &tokenizer, false) {
        Ok(Some(_)) if weights.chat_template().or(tokenizer.chat_template()).is_some() => "from the files".to_owned(),
        Ok(Some(_)) => "built-in, by the vocabulary".to_owned(),
        Ok(None) => "none".to_owned(),
        Err(error) => format!("not usable: {error:#}"),
    };
    let start = match tokenizer.bos() {
        Some(id) if tokenizer.adds_bos() => piece(id),
        _ => "nothing".to_owned(),
    };
    vec![
        row("tokenizer", format!("{} tokens, {from}", tokenizer.vocab_size())),
        row("prompts start with", start),
        row("answers end at", ends),
        row("chat template", template),
    ]
}

fn formats(weights: &Weights) -> Vec<Vec<String>> {
    let mut by_format: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for tensor in weights.tensors() {
        let entry = by_format.entry(tensor.format.name()).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.len() as u64, entry.2 + tensor.byte_len() as u64);
    }
    let line = |(name, (count, elements, size)): (&str, (u64, u64, u64))| {
        vec![name.to_owned(), format!("{count} tensors"), format!("{} elements", thousands(elements)), bytes(size)]
    };
    by_format.into_iter().map(line).collect()
}

fn tensors(weights: &Weights) -> Vec<Vec<String>> {
    let line = |tensor: &laneway_files::Tensor| {
        let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ");
        vec![printable(&tensor.name), tensor.format.name().to_owned(), shape, bytes(tensor.byte_len() as u64)]
    };
    weights.tensors().iter().map(line).collect()
}

fn verdict(weights: &Weights) -> Vec<Vec<String>> {
    let config = weights.config();
    let family = family_name(config.family);
    if let Err(error) = laneway_engine::check(weights) {
        return vec![row("runs", format!("not: {error}"))];
    }
    let page = 2
        * 4
        * config
            .layers
            .iter()
            .enumerate()
            .filter(|(at, layer)| layer.kv_layer == *at)
            .map(|(_, l)| l.kv_heads * l.head_dim)
            .sum::<usize>();
    let mut rows = vec![row("runs", format!("{family} on cpu and gpu devices, all formats stay as they are"))];
    rows.push(row(
        "memory",
        format!("{} for weights, {} for each position of context", bytes(weights.total_bytes()), bytes(page as u64)),
    ));
    if let Ok((tokenizer, origin)) = tokenizer::of(weights) {
        let chats = matches!(tokenizer::template(weights, &tokenizer, false), Ok(Some(_)));
        let endpoints = match (origin, chats) {
            (Origin::Ids, _) => "/v1/completions with token ids",
            (_, true) => "/v1/chat/completions and /v1/completions",
            (_, false) => "/v1/completions",
        };
        rows.push(row("serves", endpoints));
    }
    rows
}

fn show(value: &Value) -> String {
    match value {
        Value::Unsigned(number) => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Float(number) => format!("{}", *number as f32),
        Value::Bool(flag) => flag.to_string(),
        Value::String(text) => printable(text),
        Value::Array(array) => show_array(array),
    }
}

fn show_array(array: &Array) -> String {
    fn first<T>(items: &[T], show: impl Fn(&T) -> String) -> Vec<String> {
        items.iter().take(MAX_ITEMS).map(show).collect()
    }
    let shown = match array {
        Array::Unsigned(items) => first(items, u64::to_string),
        Array::Signed(items) => first(items, i64::to_string),
        Array::Float(items) => first(items, f32::to_string),
        Array::Double(items) => first(items, f64::to_string),
        Array::Bool(items) => first(items, bool::to_string),
        Array::String(items) => first(items, |item| format!("\"{}\"", printable(item))),
        Array::Nested(items) => first(items, |item| format!("[{} items]", item.len())),
    };
    let more = if array.len() > MAX_ITEMS { format!(", … {} in all", array.len()) } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_abbreviated() {
        let array = Array::Unsigned((0..9).collect());
        assert_eq!(show_array(&array), "[0, 1, 2, 3, 4, 5, … 9 in all]");
        assert_eq!(show_array(&Array::Float(vec![0.5])), "[0.5]");
        let long = printable(&"x".repeat(100));
        assert!(long.starts_with("xxx") && long.ends_with("… 100 characters in all"), "{long}");
        assert_eq!(printable("a\n\x1b[2Jb"), "a⏎\u{FFFD}[2Jb");
    }

    #[test]
    fn layer_numbers_are_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
