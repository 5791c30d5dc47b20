//! Thousands of short sessions with clients that leave, bad requests, bursts, and a server that is ended and killed in
//! between: afterwards lanes, pages, queue and memory are where they were.
//!
//! `LANEWAY_SOAK_SESSIONS` sets how many sessions each model has; 6000 by default.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Server, fixture, scratch};

/// Server processes of a run, every other one killed without warning.
const LIVES: u64 = 4;
/// Rounds of a life; in the last the server ends in the middle.
const ROUNDS: u64 = 4;
const CLIENTS: u64 = 10;
/// Prompts whose answers are known.
const KNOWN: u64 = 6;
/// How much memory may grow from the first round of a life to the last whole one.
const GROWTH_KIB: u64 = 12 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Token after token, prompts of ids; sessions are stored.
    Causal,
    /// Canvas after canvas, with chats and decisions.
    Canvas,
}

/// A small generator, so that a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// What all clients of a run count.
#[derive(Default)]
struct Tally {
    sessions: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    bad: AtomicU64,
    left: AtomicU64,
    cut: AtomicU64,
}

struct Run<'a> {
    kind: Kind,
    server: &'a Server,
    known: &'a [String],
    tally: &'a Tally,
    ending: AtomicBool,
}

impl Kind {
    fn start(self, checkpoints: &Path) -> Server {
        match self {
            Self::Causal => {
                let folder = checkpoints.to_str().unwrap();
                let stores = ["--checkpoints", folder, "--checkpoint-min", "64", "--checkpoint-budget", "8M"];
                let serving = ["--device", "cpu", "--lanes", "3", "--queue", "6", "--threads", "1"];
                Server::start(&fixture("llama_tiny_gguf/model.gguf"), &[&serving[..], &stores].concat())
            }
            Self::Canvas => {
                let serving = ["--device", "cpu", "--queue", "6", "--threads", "1", "--ctx", "4096"];
                Server::start(&fixture("diffusion_chat_tiny"), &serving)
            }
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Causal => "/v1/completions",
            Self::Canvas => "/v1/chat/completions",
        }
    }

    /// One of the requests whose answers are known.
    fn known(self, number: u64) -> Value {
        self.body(&mut Random(number), number, 24, 0)
    }

    /// Prompts of a family share their beginning.
    fn body(self, random: &mut Random, family: u64, max_tokens: u64, tail: u64) -> Value {
        match self {
            Self::Causal => {
                let shared = (0..80 + family * 31).map(|n| (n * (37 + family) + 5) % 500);
                let prompt: Vec<u64> = shared.chain((0..tail).map(|_| random.below(500))).collect();
                json!({"model": "llama_tiny_gguf", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
            }
            Self::Canvas => {
                let words = ["Hello", "why", "ten", "sea"];
                let tail: Vec<_> = (0..tail / 8).map(|_| words[random.below(4) as usize]).collect();
                let content = format!("Hello {family} {}", tail.join(" "));
                let messages = json!([{"role": "user", "content": content}]);
                json!({"model": "diffusion_chat_tiny", "messages": messages, "max_tokens": max_tokens, "seed": 7})
            }
        }
    }
}

/// A request on a connection of its own, and what comes back until it ends or breaks.
fn exchange(server: &Server, path: &str, body: &str) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    send(server, path, body)?.read_to_end(&mut answer)?;
    Ok(answer)
}

fn send(server: &Server, path: &str, body: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(&server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n");
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes())?;
    Ok(stream)
}

fn status(answer: &[u8]) -> u16 {
    let line = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
    line.rsplit(' ').next().unwrap_or_default().parse().unwrap_or(0)
}

impl Run<'_> {
    fn session(&self, random: &mut Random) {
        self.tally.sessions.fetch_add(1, SeqCst);
        match random.below(12) {
            0..4 => self.answered(random),
            4..7 => self.leaves(random),
            7 => self.bad(random),
            8 if random.is(8) => self.bursts(random),
            9 if self.kind == Kind::Canvas => self.decides(random),
            _ => self.streams(random),
        }
    }

    /// The status, or none when the server that is being ended did not answer.
    fn ask(&self, path: &str, body: &Value) -> Option<(u16, String)> {
        match exchange(self.server, path, &body.to_string()) {
            Ok(answer) if !answer.is_empty() => {
                let status = status(&answer);
                let told = String::from_utf8_lossy(&answer).into_owned();
                let closing = status == 503 && self.ending.load(SeqCst);
                // A decision that is refused for want of room has a status of its own.
                let full = if path == "/v1/systemone" { 529 } else { 429 };
                assert!([200, 400, 404, 413, full].contains(&status) || closing, "{told}");
                if status == full {
                    self.tally.refused.fetch_add(1, SeqCst);
                    // As a client does that was told to come back; else most of a run is refusals.
                    std::thread::sleep(Duration::from_millis(20));
                    assert!(told.to_ascii_lowercase().contains("retry-after: "), "{told}");
                }
                (!closing).then_some((status, told))
            }
            broken => {
                assert!(self.ending.load(SeqCst), "the server broke off: {broken:?}");
                self.tally.cut.fetch_add(1, SeqCst);
                None
            }
        }
    }

    fn answered(&self, random: &mut Random) {
        let number = random.below(KNOWN);
        let Some((200, told)) = self.ask(self.kind.path(), &self.kind.known(number)) else { return };
        let body = told.split_once("\r\n\r\n").unwrap().1;
        let answer: Value = match serde_json::from_str(body) {
            Ok(answer) => answer,
            // Killed in the middle of it.
            Err(error) => return assert!(self.ending.load(SeqCst), "{error}: {body}"),
        };
        assert_eq!(answer["choices"].to_string(), self.known[number as usize], "prompt {number}");
        self.tally.answered.fetch_add(1, SeqCst);
    }

    fn streams(&self, random: &mut Random) {
        let (family, tokens, tail) = (random.below(KNOWN), 1 + random.below(60), random.below(90));
        let mut body = self.kind.body(random, family, tokens, tail);
        body["stream"] = true.into();
        if let Some((200, told)) = self.ask(self.kind.path(), &body) {
            let whole = told.contains("data: [DONE]") && told.contains("\"finish_reason\":\"");
            assert!(whole || self.ending.load(SeqCst), "{told}");
            self.tally.answered.fetch_add(u64::from(whole), SeqCst);
        }
    }

    /// Reads nothing, some, or half a request's worth, and is gone.
    fn leaves(&self, random: &mut Random) {
        self.tally.left.fetch_add(1, SeqCst);
        let (family, tail) = (random.below(KNOWN), random.below(90));
        let mut body = self.kind.body(random, family, 250, tail);
        body["stream"] = random.is(2).into();
        let body = body.to_string();
        let sent = if random.is(6) { &body[..body.len() / 2] } else { &body[..] };
        let Ok(mut stream) = TcpStream::connect(&self.server.address) else {
            return assert!(self.ending.load(SeqCst), "nobody listens");
        };
        let head = format!("POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", self.kind.path(), body.len());
        let told = stream.write_all(format!("{head}content-type: application/json\r\n\r\n{sent}").as_bytes());
        assert!(told.is_ok() || self.ending.load(SeqCst), "{told:?}");
        drop(stream.set_read_timeout(Some(Duration::from_millis(1 + random.below(12)))));
        drop(stream.read(&mut vec![0; 1 + random.below(4000) as usize]));
    }

    fn bad(&self, random: &mut Random) {
        let bodies = [
            json!({"model": "nothing-like-it", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}),
            json!({"prompt": 5, "messages": 5}),
            json!([]),
            self.kind.body(random, 0, 0, 20_000),
        ];
        if let Some((status, told)) = self.ask(self.kind.path(), &bodies[random.below(4) as usize]) {
            assert!(matches!(status, 400 | 404 | 413), "{told}");
            self.tally.bad.fetch_add(1, SeqCst);
        }
    }

    /// More at once than there is room for; all are answered or refused, but for one whose client leaves.
    fn bursts(&self, random: &mut Random) {
        let body = self.kind.body(random, 1, 12, 0).to_string();
        let mut streams: Vec<_> = (0..12).map(|_| send(self.server, self.kind.path(), &body)).collect();
        drop(streams.swap_remove(random.below(12) as usize));
        for stream in streams {
            let mut answer = Vec::new();
            let read = stream.and_then(|mut stream| stream.read_to_end(&mut answer));
            let refused = status(&answer) == 429;
            self.tally.refused.fetch_add(u64::from(refused), SeqCst);
            let fine = read.is_ok() && (refused || status(&answer) == 200);
            assert!(fine || self.ending.load(SeqCst), "{read:?} {}", String::from_utf8_lossy(&answer));
        }
    }

    fn decides(&self, random: &mut Random) {
        let state = format!("ticket {}", random.below(40));
        let angry = json!({"type": "noul", "instructions": "Is the writer angry?"});
        let body = json!({"model": "jev-latest", "state": state, "questions": {"angry": angry}});
        if let Some((200, told)) = self.ask("/v1/systemone", &body) {
            assert!(told.contains("\"answers\"") || self.ending.load(SeqCst), "{told}");
            self.tally.answered.fetch_add(1, SeqCst);
        }
    }

    /// Clients until so many sessions have begun; the server is sent the signal in the middle if there is one.
    fn round(&self, seed: u64, sessions: u64, signal: Option<&str>) {
        let (begun, sent) = (AtomicU64::new(0), Mutex::new(false));
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (begun, sent) = (&begun, &sent);
                let mut random = Random(seed * 1000 + client);
                scope.spawn(move || {
                    loop {
                        let number = begun.fetch_add(1, SeqCst);
                        if number >= sessions {
                            return;
                        }
                        if let Some(signal) = signal.filter(|_| number >= sessions / 2) {
                            let mut sent = sent.lock().unwrap();
                            if !std::mem::replace(&mut *sent, true) {
                                self.ending.store(true, SeqCst);
                                let id = self.server.child.id().to_string();
                                assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
                            }
                        }
                        self.session(&mut random);
                    }
                });
            }
        });
    }
}

/// Nothing waits, runs or is held, every turn is accounted for, and nothing was the server's fault.
fn check_rest(server: &Server) {
    let started = Instant::now();
    let text = loop {
        let text = server.request("GET", "/metrics", "").1;
        let value = |name: &str| -> f64 {
            let line =
                text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        let held = ["vllm:num_requests_running", "vllm:num_requests_waiting", "laneway_lanes_active"];
        if held.iter().all(|name| value(name) == 0.0) && value("vllm:kv_cache_usage_perc") == 0.0 {
            break text;
        }
        assert!(started.elapsed() < PATIENCE, "something is held:\n{text}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let turns = |stage: &str| -> u64 {
        let lines = text.lines().filter(|line| line.starts_with("laneway_turns_total{"));
        let of_stage = lines.filter(|line| line.contains(&format!("stage=\"{stage}\"")));
        of_stage.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    assert_eq!(turns("queued"), turns("started") + turns("rejected"), "{text}");
    assert_eq!(turns("started"), turns("finished") + turns("failed"), "{text}");
    let faults = text.lines().filter(|line| line.starts_with("laneway_http_requests_total") && line.contains("=\"50"));
    assert_eq!(faults.collect::<Vec<_>>(), [""; 0]);
}

fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn soak(kind: Kind, name: &str) {
    let sessions: u64 = std::env::var("LANEWAY_SOAK_SESSIONS").map_or(6000, |count| count.parse().unwrap());
    let (folder, started, tally) = (scratch(name), Instant::now(), Tally::default());
    let known: Vec<String> = {
        let server = kind.start(&scratch(&format!("{name}-known")));
        let answer = |number| {
            let (status, answer) = server.post(kind.path(), &kind.known(number));
            assert_eq!(status, 200, "{answer}");
            answer["choices"].to_string()
        };
        (0..KNOWN).map(answer).collect()
    };
    let mut memory = Vec::new();
    for life in 0..LIVES {
        let mut server = kind.start(&folder);
        let mut first_kib = None;
        let run = Run { kind, server: &server, known: &known, tally: &tally, ending: AtomicBool::new(false) };
        for round in 0..ROUNDS - 1 {
            run.round(life * ROUNDS + round, sessions / LIVES / ROUNDS, None);
            check_rest(&server);
            first_kib = first_kib.or(Some(resident_kib(&server)));
        }
        let (first, last) = (first_kib.unwrap(), resident_kib(&server));
        memory.push((first, last));
        assert!(last.saturating_sub(first) < GROWTH_KIB, "memory grew: {memory:?} KiB");
        let signal = if life % 2 == 0 { "TERM" } else { "KILL" };
        run.round(life * ROUNDS + ROUNDS, sessions / LIVES / ROUNDS, Some(signal));
        let code = server.child.wait().unwrap().code();
        assert_eq!(code, (signal == "TERM").then_some(0), "life {life}");
    }
    let quarantine = folder.join("quarantine");
    assert!(!quarantine.exists() || std::fs::read_dir(quarantine).unwrap().count() == 0, "a checkpoint is damaged");
    let count = |count: &AtomicU64| count.load(SeqCst);
    println!(
        "{:?}: {} sessions, {} answered, {} refused, {} bad, {} left, {} cut off by a restart; resident {memory:?} KiB",
        started.elapsed(),
        count(&tally.sessions),
        count(&tally.answered),
        count(&tally.refused),
        count(&tally.bad),
        count(&tally.left),
        count(&tally.cut),
    );
    let kinds = [&tally.answered, &tally.refused, &tally.bad, &tally.left, &tally.cut];
    assert!(kinds.iter().all(|kind| count(kind) > 0), "something never happened");
}

/// G32, G55, G61
#[test]
fn sessions_of_an_autoregressive_model_leave_nothing_behind() {
    soak(Kind::Causal, "soak-causal");
}

/// G32
#[test]
fn sessions_of_a_diffusion_model_leave_nothing_behind() {
    soak(Kind::Canvas, "soak-canvas");
}
