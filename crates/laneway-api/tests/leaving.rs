//! Clients that leave, and a server that ends.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Reply, Script, Server, chat_body, post};
use laneway_api::{ApiOptions, ServeOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn waiting(free_tokens: usize) -> Script {
    Script { free_tokens, ..Script::default() }
}

#[tokio::test]
async fn leaving_before_the_first_token_stops_the_turn() {
    for members in ["", r#","stream":true"#, r#","n":3"#, r#","n":3,"stream":true"#] {
        let turns = if members.contains('n') && members.contains('3') { 3 } else { 1 };
        let server = Server::start(waiting(0)).await;
        let mut stream = server.connect().await;
        stream.write_all(post("/v1/chat/completions", &chat_body(members)).as_bytes()).await.expect("the server reads");
        server.service.wait_for_running(turns).await;
        drop(stream);
        server.service.wait_for_cancelled(turns).await;
        server.service.wait_for_running(0).await;
    }
}

#[tokio::test]
async fn leaving_in_the_middle_of_a_stream_stops_the_turn() {
    let server = Server::start(waiting(2)).await;
    let mut stream = server.connect().await;
    let body = chat_body(r#","seed":0,"stream":true"#);
    stream.write_all(post("/v1/chat/completions", &body).as_bytes()).await.expect("the server reads");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("\"!\"") {
        assert_ne!(stream.read_buf(&mut seen).await.expect("readable"), 0);
    }
    drop(stream);
    server.service.wait_for_cancelled(1).await;
}

#[tokio::test]
async fn leaving_in_the_middle_of_a_whole_answer_stops_the_turn() {
    let server = Server::start(waiting(2)).await;
    let mut stream = server.connect().await;
    stream
        .write_all(post("/v1/completions", r#"{"model":"tiny","prompt":"a"}"#).as_bytes())
        .await
        .expect("the server reads");
    server.service.wait_for_running(1).await;
    stream.shutdown().await.expect("the socket closes");
    server.service.wait_for_cancelled(1).await;
}

#[tokio::test]
async fn a_complete_answer_cancels_nothing() {
    let server = Server::start(Script::default()).await;
    for _ in 0..20 {
        assert_eq!(server.chat(r#","stream":true"#).await.status, 200);
    }
    server.service.wait_for_running(0).await;
    server.service.wait_for_cancelled(0).await;
}

#[tokio::test]
async fn shutting_down_lets_running_turns_finish() {
    let mut server = Server::start(waiting(1)).await;
    let mut stream = server.connect().await;
    stream
        .write_all(post("/v1/chat/completions", &chat_body(r#","seed":1"#)).as_bytes())
        .await
        .expect("the server reads");
    server.service.wait_for_running(1).await;
    server.shut_down();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!server.ended.is_finished());
    server.service.release(100);
    let reply = Reply::read(&mut stream).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], " tea?");
    server.ended.await.expect("the server ends");
}

#[tokio::test]
async fn turns_that_outlast_the_grace_time_are_told_so() {
    let serving = ServeOptions { grace_time: Duration::from_millis(50), ..ServeOptions::default() };
    let mut server = Server::start_with(waiting(1), ApiOptions::default(), serving).await;
    let mut whole = server.connect().await;
    whole.write_all(post("/v1/chat/completions", &chat_body("")).as_bytes()).await.expect("the server reads");
    let mut streamed = server.connect().await;
    streamed
        .write_all(post("/v1/chat/completions", &chat_body(r#","stream":true"#)).as_bytes())
        .await
        .expect("the server reads");
    server.service.wait_for_running(2).await;
    server.shut_down();
    let whole = Reply::read(&mut whole).await;
    assert_eq!((whole.status, whole.json()["error"]["code"].as_str()), (503, Some("shutting_down")));
    let events = Reply::read(&mut streamed).await.events();
    assert_eq!(events.last().expect("an event")["error"]["code"], "shutting_down");
    server.service.wait_for_cancelled(2).await;
    server.ended.await.expect("the server ends");
}

#[tokio::test]
async fn idle_connections_do_not_delay_the_end() {
    let mut server = Server::start(Script::default()).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("the server reads");
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.expect("readable");
    server.shut_down();
    tokio::time::timeout(Duration::from_secs(20), server.ended).await.expect("no grace time passes").expect("it ends");
}
