//! How the body of a decision request may come: packed, as a form, from a page of another origin.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Read;

use common::deciding::{CAUSAL, body, expected, start};
use common::{Server, Setup, Watched};
use flate2::Compression;
use flate2::read::{DeflateEncoder, GzEncoder, ZlibEncoder};
use laneway_api::ApiOptions;
use serde_json::json;

const PATH: &str = "/v1/systemone";
const JSON: &str = "content-type: application/json\r\n";

fn packed(mut packer: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    packer.read_to_end(&mut bytes).unwrap();
    bytes
}

fn packings(text: &[u8]) -> [(&'static str, Vec<u8>); 5] {
    let level = Compression::default();
    [
        ("gzip", packed(GzEncoder::new(text, level))),
        ("deflate", packed(ZlibEncoder::new(text, level))),
        ("deflate", packed(DeflateEncoder::new(text, level))),
        ("zstd", ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)),
        ("Zstd, identity", ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Uncompressed)),
    ]
}

#[tokio::test]
async fn packed_bodies_are_read() {
    let server = start(&Setup::new(CAUSAL)).await;
    let body = body("a state that is worth packing. ".repeat(50));
    for (coding, bytes) in packings(body.to_string().as_bytes()) {
        let reply = server.post_with(PATH, &format!("{JSON}content-encoding: {coding}\r\n"), &bytes).await;
        assert_eq!(reply.status, 200, "{coding}: {}", reply.body);
        assert_eq!(reply.json()["answers"], expected(&CAUSAL, &body), "{coding}");
    }
    let chat = br#"{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}"#;
    for (coding, bytes) in packings(chat) {
        let lines = format!("{JSON}content-encoding: {coding}\r\n");
        assert_eq!(server.post_with("/v1/chat/completions", &lines, &bytes).await.status, 200, "{coding}");
    }
}

/// A request is never answered with 5xx, whatever was sent.
#[tokio::test]
async fn bombs_and_broken_packings_are_refused() {
    let options = ApiOptions { body_limit_bytes: 100_000, ..ApiOptions::default() };
    let server = start(&Setup { options, ..Setup::new(CAUSAL) }).await;
    let send = async |coding: &str, bytes: &[u8]| {
        let reply = server.post_with(PATH, &format!("{JSON}content-encoding: {coding}\r\n"), bytes).await;
        assert_eq!(reply.json()["detail"]["error_type"], "api_usage_error", "{}", reply.body);
        reply.status
    };
    for (coding, bytes) in &packings(&vec![b' '; 5_000_000])[..4] {
        assert!(bytes.len() < 100_000, "{coding}");
        assert_eq!(send(coding, bytes).await, 413, "{coding}");
    }
    // A window of a terabyte, and 128 KiB in every four bytes.
    let mut bomb = vec![0x28, 0xB5, 0x2F, 0xFD, 0, 30 << 3];
    bomb.extend([2, 0, 16, b' '].repeat(20_000));
    assert_eq!(send("zstd", &bomb).await, 413);
    for coding in ["gzip", "deflate", "zstd"] {
        for bytes in [&b"{\"state\":1}"[..], b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x78\x9c\xff"] {
            assert_eq!(send(coding, bytes).await, 400, "{coding} {bytes:?}");
        }
    }
    for coding in ["br", "gzip, br", "gzip, gzip, gzip", "compress", "é"] {
        assert_eq!(send(coding, b"{}").await, 415, "{coding}");
    }
    assert_eq!(server.get("/health").await.status, 200);
}

fn form(parts: &[(&str, &str)]) -> (String, Vec<u8>) {
    let mut bytes = String::new();
    for (name, content) in parts {
        bytes += &format!("--b0\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{content}\r\n");
    }
    ("content-type: multipart/form-data; boundary=b0\r\n".into(), (bytes + "--b0--\r\n").into_bytes())
}

#[tokio::test]
async fn the_request_part_of_a_form_is_read() {
    let server = start(&Setup::new(CAUSAL)).await;
    let body = body("as a form");
    let text = body.to_string();
    for parts in [vec![("request", text.as_str())], vec![("other", "x"), ("request", &text), ("asset-0", "\u{1}")]] {
        let (lines, bytes) = form(&parts);
        let reply = server.post_with(PATH, &lines, &bytes).await;
        assert_eq!(reply.json()["answers"], expected(&CAUSAL, &body), "{}", reply.body);
    }
    let (lines, bytes) = form(&[("request", &text)]);
    let zipped = packed(GzEncoder::new(&bytes[..], Compression::default()));
    assert_eq!(server.post_with(PATH, &format!("{lines}content-encoding: gzip\r\n"), &zipped).await.status, 200);
    for (lines, bytes) in [
        form(&[("asset-0", "x")]),
        form(&[]),
        ("content-type: multipart/form-data\r\n".into(), bytes.clone()),
        (lines.clone(), b"--b0\r\n".to_vec()),
    ] {
        let reply = server.post_with(PATH, &lines, &bytes).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.json()["detail"]["error_type"], "api_usage_error");
    }
    let (lines, bytes) = form(&[("request", r#"{"state":1}"#)]);
    assert_eq!(server.post_with(PATH, &lines, &bytes).await.status, 422);
    assert_eq!(server.post_with("/v1/decisions", &lines, &bytes).await.status, 415);
}

#[tokio::test]
async fn bodies_that_no_browser_asks_about_are_refused() {
    let options = ApiOptions { cors_origins: vec!["https://app.example".into()], ..ApiOptions::default() };
    let server = start(&Setup { options, ..Setup::new(CAUSAL) }).await;
    let text = body("x").to_string();
    let json =
        async |server: &Server<Watched>, lines: &str| server.post_with(PATH, lines, text.as_bytes()).await.status;
    assert_eq!(json(&server, "").await, 200);
    assert_eq!(json(&server, "origin: https://app.example\r\n").await, 415);
    assert_eq!(json(&server, &format!("origin: https://app.example\r\n{JSON}")).await, 200);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "text/plain; application/json", "\u{e9}/json"] {
        assert_eq!(json(&server, &format!("content-type: {kind}\r\n")).await, 415, "{kind}");
    }
    let (lines, bytes) = form(&[("request", &text)]);
    for (origin, status) in
        [("https://app.example", 200), ("http://x", 200), ("https://evil.example", 403), ("null", 403)]
    {
        let reply = server.post_with(PATH, &format!("{lines}origin: {origin}\r\n"), &bytes).await;
        assert_eq!(reply.status, status, "{origin}: {}", reply.body);
        if status == 403 {
            assert_eq!(reply.json()["detail"]["error_type"], "permission_error");
        }
    }
}

#[tokio::test]
async fn a_browsers_preflight_is_answered() {
    let asked = "authorization,content-type,x-typesafe-sdk,x-typesafe-runtime,x-typesafe-retry-count";
    let preflight = |origin: &str| {
        format!(
            "OPTIONS {PATH} HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\naccess-control-request-method: POST\r\n\
             access-control-request-headers: {asked}\r\naccess-control-request-private-network: true\r\n\
             connection: close\r\n\r\n"
        )
    };
    let options = ApiOptions {
        cors_origins: vec!["https://app.example".into()],
        api_key: Some("secret".into()),
        ..ApiOptions::default()
    };
    let server = start(&Setup { options, ..Setup::new(CAUSAL) }).await;
    let reply = server.raw(preflight("https://app.example").as_bytes()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(reply.header("access-control-allow-headers"), Some(asked));
    assert_eq!(reply.header("access-control-allow-private-network"), Some("true"));
    assert!(reply.header("access-control-allow-methods").unwrap().contains("post"));
    let evil = server.raw(preflight("https://evil.example").as_bytes()).await;
    assert_eq!(evil.header("access-control-allow-origin"), None);

    let lines = format!("{JSON}origin: https://app.example\r\nauthorization: Bearer secret\r\n");
    let reply = server.post_with(PATH, &lines, body("x").to_string().as_bytes()).await;
    assert_eq!(reply.status, 200);
    let exposed = reply.header("access-control-expose-headers").unwrap();
    for name in ["x-request-id", "x-typesafe-request-id", "retry-after", "retry-after-ms", "server-timing"] {
        assert!(exposed.split(',').any(|found| found == name), "{name}: {exposed}");
    }
    let closed = start(&Setup::new(CAUSAL)).await;
    assert_eq!(
        closed.raw(preflight("https://app.example").as_bytes()).await.header("access-control-allow-origin"),
        None
    );
}

#[tokio::test]
async fn a_large_body_is_read_off_the_sockets_thread() {
    let server = start(&Setup::new(CAUSAL)).await;
    let body = json!({"state": "x", "padding": "y".repeat(1 << 20), "questions": {"q": {"type": "noul"}}});
    assert_eq!(server.post(PATH, &body.to_string()).await.status, 200);
}
