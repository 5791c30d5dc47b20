//! Conversations that grow while their server is killed, again and again, also while it starts.
//!
//! `LANEWAY_CHAOS_ROUNDS` sets how many kills; 20 by default.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Server, fixture, laneway, scratch};

const MODEL: &str = "chaos-model";
/// Tokens of a stored page.
const PAGE: u64 = 256;
const CONTEXT: usize = 4096;
/// Past this a conversation starts anew.
const LONGEST: usize = 2600;
const CONVERSATIONS: usize = 4;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What one client says, turn after turn.
struct Conversation {
    /// Prompt of the turn that was answered last.
    prompt: Vec<u32>,
    answer: Option<Vec<String>>,
    /// Tokens of it that were found in the store after a kill.
    durable: u64,
    random: Random,
}

impl Conversation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let prompt = (0..600 + random.below(60)).map(|_| 5 + random.below(490) as u32).collect();
        Self { prompt, answer: None, durable: 0, random }
    }

    /// The prompt of the next turn: all that was said, and more.
    fn next(&mut self) -> Vec<u32> {
        let Some(said) = &self.answer else { return self.prompt.clone() };
        let said = said.iter().map(|token| token.trim_matches(['<', '>']).parse::<u32>().unwrap());
        let mut prompt: Vec<u32> = self.prompt.iter().copied().chain(said).collect();
        prompt.extend((0..90 + self.random.below(200)).map(|_| 5 + self.random.below(490) as u32));
        prompt
    }
}

/// A model with room for long conversations.
fn model() -> PathBuf {
    let folder = scratch("chaos").join(MODEL);
    std::fs::create_dir(&folder).unwrap();
    let from = fixture("llama_tiny");
    std::fs::copy(from.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = CONTEXT.into();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder
}

fn arguments(folder: &Path) -> Vec<&str> {
    ["--device", "cpu", "--threads", "1", "--admin-key", "adm", "--checkpoints", folder.to_str().unwrap()].into()
}

/// Tokens and cached tokens of an answer; none when the server went away.
fn complete(server: &Server, prompt: &[u32]) -> Option<(Vec<String>, u64)> {
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 10, "temperature": 0, "logprobs": 1});
    let mut stream = std::net::TcpStream::connect(&server.address).ok()?;
    let body = body.to_string();
    let head = format!("POST /v1/completions HTTP/1.0\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
    let sent = format!("{head}content-type: application/json\r\n\r\n{body}");
    std::io::Write::write_all(&mut stream, sent.as_bytes()).ok()?;
    let mut told = String::new();
    stream.read_to_string(&mut told).ok()?;
    let answer: Value = serde_json::from_str(told.split_once("\r\n\r\n")?.1).ok()?;
    let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let tokens = tokens.iter().map(|token| token.as_str().unwrap().to_owned()).collect();
    Some((tokens, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()))
}

fn files(folder: &Path, within: &str) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(folder.join(within)).into_iter().flatten();
    listed.map(|entry| entry.unwrap().path()).collect()
}

/// Every conversation goes on where it was stored, with the answers of a server that was never killed.
fn check(server: &Server, reference: &Server, folder: &Path, talks: &mut [Conversation]) -> u64 {
    let mut found = 0;
    for (number, talk) in talks.iter_mut().enumerate() {
        let (answer, cached) = complete(server, &talk.prompt).expect("the server answers");
        assert_eq!(Some(answer), complete(reference, &talk.prompt).map(|told| told.0), "conversation {number}");
        assert!(cached.is_multiple_of(PAGE), "{cached} tokens of conversation {number}");
        assert!(cached >= talk.durable, "{} tokens of conversation {number} became {cached}", talk.durable);
        found += u64::from(cached > talk.durable);
        talk.durable = cached;
    }
    let damaged = files(folder, "quarantine");
    assert!(damaged.is_empty(), "something was damaged: {damaged:?}");
    found
}

/// G55, L109
#[test]
fn conversations_that_grow_survive_every_kill() {
    let rounds: u64 = std::env::var("LANEWAY_CHAOS_ROUNDS").map_or(20, |rounds| rounds.parse().unwrap());
    let (model, folder) = (model(), scratch("chaos-checkpoints"));
    let reference = Server::start(&model, &["--device", "cpu", "--threads", "1"]);
    let mut random = Random(1);
    let mut talks: Vec<_> = (0..CONVERSATIONS as u64).map(Conversation::new).collect();
    let (mut grown, mut turns, mut begun) = (0, 0, CONVERSATIONS as u64);
    for round in 0..rounds {
        if round % 4 == 3 {
            let given = ["serve", "--port", "0", "--model", model.to_str().unwrap()];
            let mut command = laneway(&[&given[..], &arguments(&folder)].concat());
            let mut early = command.stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            early.kill().unwrap();
            early.wait().unwrap();
        }
        let mut server = Server::start(&model, &arguments(&folder));
        grown += check(&server, &reference, &folder, &mut talks);
        let over = AtomicBool::new(false);
        let wait = Duration::from_micros(random.below(120_000));
        turns += std::thread::scope(|scope| {
            let clients = talks.iter_mut().map(|talk| {
                let (server, over) = (&server, &over);
                scope.spawn(move || {
                    let mut turns = 0;
                    while !over.load(SeqCst) && talk.prompt.len() < LONGEST {
                        let prompt = talk.next();
                        let Some((answer, _)) = complete(server, &prompt) else { break };
                        (talk.prompt, talk.answer) = (prompt, Some(answer));
                        turns += 1;
                    }
                    turns
                })
            });
            let clients: Vec<_> = clients.collect();
            std::thread::sleep(wait);
            over.store(true, SeqCst);
            let id = server.child.id().to_string();
            assert!(std::process::Command::new("kill").args(["-s", "KILL", &id]).status().unwrap().success());
            clients.into_iter().map(|client| client.join().unwrap()).sum::<u64>()
        });
        assert_eq!(server.child.wait().unwrap().code(), None, "it ended by itself");
        for talk in talks.iter_mut().filter(|talk| talk.prompt.len() >= LONGEST) {
            *talk = Conversation::new(1000 + begun);
            begun += 1;
        }
    }
    let server = Server::start(&model, &arguments(&folder));
    grown += check(&server, &reference, &folder, &mut talks);
    let stored = server.admin_json("GET", "/admin/checkpoints").1["data"].as_array().unwrap().len() as u64;
    // A kill may leave the beginning of what was just stored, and the next page takes it away.
    assert!(stored <= 2 * begun, "{stored} checkpoints of {begun} conversations");
    let left: Vec<_> = ["pages", "manifests", "uses"].into_iter().flat_map(|within| files(&folder, within)).collect();
    let is_temporary = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(".tmp");
    assert!(!left.iter().any(is_temporary), "{left:?}");
    println!("{rounds} kills, {turns} turns of {begun} conversations: {grown} times more was stored after a kill");
    assert!(grown > rounds / 20, "hardly anything was ever stored");
}
