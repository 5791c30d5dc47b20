//! Real tokenizers and reference ids for the tests of this folder.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use laneway_text::TokenizerSource;
use serde_json::Value;

/// A JSON file of the workspace's shared fixtures.
pub fn fixture(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures");
    serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

/// The tokenizer of `name` in the folder that LANEWAY_TEST_MODELS names, if it is there.
pub fn model(name: &str) -> Option<TokenizerSource> {
    let path = PathBuf::from(std::env::var_os("LANEWAY_TEST_MODELS")?).join(name);
    if !path.exists() {
        eprintln!("{} is missing: this test checks nothing", path.display());
        return None;
    }
    let header = fs::read(path).unwrap();
    Some(source(&mut Reader(&header)))
}

struct Reader<'f>(&'f [u8]);

enum Item {
    Number(f64),
    Text(String),
    List(Vec<Item>),
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_first_chunk().unwrap();
        self.0 = tail;
        *head
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn item(&mut self, kind: u32) -> Item {
        Item::Number(match kind {
            0 | 7 => f64::from(self.take::<1>()[0]),
            4 => f64::from(self.u32()),
            5 => f64::from(i32::from_le_bytes(self.take())),
            6 => f64::from(f32::from_le_bytes(self.take())),
            10 => self.u64() as f64,
            8 => return Item::Text(self.text()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                return Item::List((0..count).map(|_| self.item(kind)).collect());
            }
            _ => panic!("metadata type {kind} is not used by the test models"),
        })
    }
}

fn source(file: &mut Reader) -> TokenizerSource {
    assert_eq!((&file.take(), file.u32()), (b"GGUF", 3));
    let (_tensors, keys) = (file.u64(), file.u64());
    let mut map = HashMap::new();
    for _ in 0..keys {
        let key = file.text();
        let kind = file.u32();
        map.insert(key, file.item(kind));
    }
    let mut get = |key: &str| map.remove(&format!("tokenizer.{key}"));
    let mut list = |key: &str| match get(key) {
        Some(Item::List(items)) => Some(items),
        _ => None,
    };
    let texts = |items: Option<Vec<Item>>| items.into_iter().flatten().map(text).collect();
    let tokens = texts(list("ggml.tokens"));
    let merges = texts(list("ggml.merges"));
    let scores = list("ggml.scores");
    let token_types = list("ggml.token_type");
    let mut id = |key: &str| get(&format!("ggml.{key}")).map(|item| number(item) as u32);
    TokenizerSource {
        tokens,
        merges,
        scores: scores.map(|items| items.into_iter().map(|i| number(i) as f32).collect()),
        token_types: token_types.map(|items| items.into_iter().map(|i| number(i) as i32).collect()),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        eot: id("eot_token_id"),
        add_bos: id("add_bos_token") == Some(1),
        add_eos: id("add_eos_token") == Some(1),
        add_space_prefix: id("add_space_prefix") == Some(1),
        model: text(get("ggml.model").unwrap()),
        pre: get("ggml.pre").map(text),
        chat_template: get("chat_template").map(text),
    }
}

fn text(item: Item) -> String {
    match item {
        Item::Text(text) => text,
        _ => panic!("expected text"),
    }
}

fn number(item: Item) -> f64 {
    match item {
        Item::Number(number) => number,
        _ => panic!("expected a number"),
    }
}
