//! `laneway pull` from a server in this test that misbehaves.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{laneway, refusal, scratch};

/// SHA-256 of `content()`, as `sha256sum` computes it.
const SHA256: &str = "8afc4a44fc7d03fa0d3e638522c6f7acd413d940af1084545eace4037f798ddb";

fn content() -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend((0..200_000u32).map(|i| (i * 31 % 251) as u8));
    bytes
}

/// How one request is answered.
#[derive(Clone)]
enum Reply {
    /// The file, or the part asked for.
    File,
    /// As `File`, but the connection breaks after so many bytes.
    Cut(usize),
    /// As `File`, with a pause in the middle.
    Slow,
    /// Other bytes of the same length.
    Garbage,
    /// A sign-in page with this content type.
    Page(&'static str),
    Redirect,
    Status(&'static str),
}

/// A server that gives these replies in turn, and then the file.
struct Hub {
    address: String,
    /// The range header of each request.
    ranges: Arc<Mutex<Vec<Option<String>>>>,
}

impl Hub {
    fn start(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let replies = Arc::new(Mutex::new(replies.iter().cloned().collect::<VecDeque<_>>()));
        let seen = ranges.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, replies) = (seen.clone(), replies.clone());
                std::thread::spawn(move || answer(stream.unwrap(), &seen, &replies));
            }
        });
        Self { address, ranges }
    }

    fn pull(&self, cache: &Path) -> Output {
        self.command(cache).output().unwrap()
    }

    fn command(&self, cache: &Path) -> std::process::Command {
        let mut command = laneway(&["pull", "hf:owner/repo/m.gguf"]);
        command.env("HF_ENDPOINT", format!("http://{}", self.address)).env("LANEWAY_CACHE", cache);
        command
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.ranges.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, seen: &Mutex<Vec<Option<String>>>, replies: &Mutex<VecDeque<Reply>>) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let range = head.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("range: ").map(str::to_owned));
    seen.lock().unwrap().push(range.clone());
    let reply = replies.lock().unwrap().pop_front().unwrap_or(Reply::File);
    let mut bytes = content();
    let total = bytes.len();
    if let Reply::Garbage = reply {
        bytes[5..].fill(7);
    }
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let mut head = match &reply {
        Reply::Page(kind) => {
            bytes = b"<!DOCTYPE html><p>Please sign in".to_vec();
            format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n")
        }
        Reply::Redirect => {
            bytes.clear();
            "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n".to_owned()
        }
        Reply::Status(status) => {
            bytes.clear();
            format!("HTTP/1.1 {status}\r\n")
        }
        _ => match from {
            Some(from) => {
                bytes.drain(..from);
                format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{total}\r\n", total - 1)
            }
            None => "HTTP/1.1 200 OK\r\n".to_owned(),
        },
    };
    if !matches!(reply, Reply::Page(_)) {
        head += &format!("X-Linked-Etag: \"{SHA256}\"\r\nX-Linked-Size: {total}\r\n");
    }
    head += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
    stream.write_all(head.as_bytes()).unwrap();
    let sent = match reply {
        Reply::Cut(count) => count,
        Reply::Slow => {
            stream.write_all(&bytes[..1000]).unwrap();
            std::thread::sleep(Duration::from_millis(1500));
            bytes.drain(..1000);
            bytes.len()
        }
        _ => bytes.len(),
    };
    // A client that has seen enough may have left.
    drop(stream.write_all(&bytes[..sent]));
}

fn file_of(cache: &Path) -> PathBuf {
    cache.join("hf/owner/repo/m.gguf")
}

fn check_whole(output: &Output, cache: &Path) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read(file_of(cache)).unwrap(), content());
    assert!(!cache.join("hf/owner/repo/m.gguf.partial").exists());
}

fn rest(from: usize) -> Option<String> {
    Some(format!("bytes={from}-"))
}

#[test]
fn a_file_comes_with_one_request_and_is_not_fetched_again() {
    let cache = scratch("pull-plain");
    let hub = Hub::start(&[]);
    check_whole(&hub.pull(&cache), &cache);
    check_whole(&hub.pull(&cache), &cache);
    assert_eq!(hub.ranges(), [None]);
}

#[test]
fn an_interrupted_download_goes_on_where_it_stopped() {
    let cache = scratch("pull-cut");
    let hub = Hub::start(&[Reply::Redirect, Reply::Cut(50_000), Reply::Cut(30_000)]);
    check_whole(&hub.pull(&cache), &cache);
    assert_eq!(hub.ranges(), [None, None, rest(50_000), rest(80_000)]);
}

#[test]
fn a_killed_download_goes_on_when_run_again() {
    let cache = scratch("pull-killed");
    let hub = Hub::start(&[Reply::Slow]);
    let mut child = hub.command(&cache).spawn().unwrap();
    let partial = cache.join("hf/owner/repo/m.gguf.partial");
    while !std::fs::metadata(&partial).is_ok_and(|metadata| metadata.len() == 1000) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!file_of(&cache).exists());
    check_whole(&hub.pull(&cache), &cache);
    assert_eq!(hub.ranges(), [None, None, rest(1000)]);
}

#[test]
fn a_corrupted_file_is_refused() {
    let cache = scratch("pull-garbage");
    let hub = Hub::start(&[Reply::Garbage]);
    let output = hub.pull(&cache);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("arrived corrupted"), "{text}");
    assert!(!file_of(&cache).exists());
    check_whole(&hub.pull(&cache), &cache);
}

#[test]
fn a_corrupted_beginning_is_discarded() {
    let cache = scratch("pull-bad-start");
    std::fs::create_dir_all(cache.join("hf/owner/repo")).unwrap();
    std::fs::write(cache.join("hf/owner/repo/m.gguf.partial"), [7; 9000]).unwrap();
    let hub = Hub::start(&[]);
    check_whole(&hub.pull(&cache), &cache);
    assert_eq!(hub.ranges(), [None, rest(9000), None]);
}

#[test]
fn a_web_page_is_no_model() {
    let cache = scratch("pull-page");
    for kind in ["text/html; charset=utf-8", "application/octet-stream"] {
        let output = Hub::start(&[Reply::Page(kind)]).pull(&cache);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains("is a web page, not a file"), "{text}");
        assert!(!file_of(&cache).exists());
    }
}

#[test]
fn refusals_are_told_and_busy_servers_asked_again() {
    let cache = scratch("pull-status");
    let output = Hub::start(&[Reply::Status("404 Not Found")]).pull(&cache);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("404"), "{text}");
    let output = Hub::start(&[Reply::Status("403 Forbidden")]).pull(&cache);
    assert!(String::from_utf8_lossy(&output.stderr).contains("licence agreement"));
    let hub = Hub::start(&[Reply::Status("503 Service Unavailable")]);
    check_whole(&hub.pull(&cache), &cache);
}

#[test]
fn two_pulls_at_once_fetch_the_file_once() {
    let cache = scratch("pull-twice");
    let hub = Hub::start(&[Reply::Slow]);
    let pulls: Vec<_> =
        (0..2).map(|_| hub.command(&cache).stderr(std::process::Stdio::piped()).spawn().unwrap()).collect();
    for pull in pulls {
        check_whole(&pull.wait_with_output().unwrap(), &cache);
    }
    assert_eq!(hub.ranges(), [None]);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let file = scratch("pull-no-cache").join("file");
    std::fs::write(&file, "").unwrap();
    let (code, text) = refusal(&Hub::start(&[]).pull(&file));
    assert!(code == Some(1) && text.contains(file.to_str().unwrap()), "{text}");
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let cache = scratch("pull-nobody");
    let mut command = laneway(&["pull", "hf:owner/repo/m.gguf"]);
    let output = command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("LANEWAY_CACHE", cache).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("127.0.0.1:9 cannot be reached"), "{text}");
}
