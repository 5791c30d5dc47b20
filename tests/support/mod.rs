//! What the end-to-end tests share: fixtures, the program, and HTTP/1.1 over a plain socket.

#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A fixture's file or folder.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures").join(name)
}

/// An empty folder for one test.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The program, without what the caller's environment would add.
pub fn laneway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LANEWAY_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> Output {
    laneway(arguments).output().unwrap()
}

/// Its exit code and what it said on stderr, which must be one line.
pub fn refusal(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().count(), 1, "{text}");
    (output.status.code(), text)
}

/// Tensors of a safetensors file, as 32-bit words.
pub fn tensor(path: &Path, name: &str) -> (Vec<usize>, Vec<u32>) {
    let bytes = std::fs::read(path).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let entry = &header[name];
    let at = |index: usize| entry["data_offsets"][index].as_u64().unwrap() as usize + 8 + header_len;
    let words = bytes[at(0)..at(1)].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let shape = entry["shape"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize);
    (shape.collect(), words.collect())
}

/// A running `laneway serve`, killed when dropped.
pub struct Server {
    pub child: Child,
    pub address: String,
    lines: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Starts it on a free port and waits until the model is loaded.
    pub fn start(model: &Path, arguments: &[&str]) -> Self {
        let model = model.to_str().unwrap();
        let mut command = laneway(&["serve", "--port", "0", "--model", model]);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let first = next_line(&mut lines);
        let address = first.split("http://").nth(1).and_then(|rest| rest.split(',').next()).unwrap().to_owned();
        let mut server = Self { child, address, lines };
        while !next_line(&mut server.lines).starts_with("ready") {}
        server
    }

    /// Sends a request on a connection of its own.
    pub fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }

    /// Status and body of an answer.
    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut answer = String::new();
        self.send(method, path, body).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        (status, if chunked { unchunked(body) } else { body.to_owned() })
    }

    /// Status and body of an answer to an operator, whose key is `adm`.
    pub fn admin(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer adm\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        (status, answer.split_off(end + 4))
    }

    /// Status and JSON of an answer to an operator.
    pub fn admin_json(&self, method: &str, path: &str) -> (u16, Value) {
        let (status, body) = self.admin(method, path, b"");
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// Status and JSON of an answer.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.request("POST", path, &body.to_string());
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Asks it to end, by the name of a signal, and waits.
    pub fn end(mut self, signal: &str) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn next_line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    let count = lines.read_line(&mut line).unwrap();
    assert!(count > 0, "the server ended before it was ready");
    line
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole += &rest[..size];
        body = rest.get(size + 2..).unwrap_or_default();
    }
    whole
}
