//! `laneway serve` over a real socket.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Read;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Server, fixture, refusal, run, tensor};

/// A completion of token ids must have the reference's greedy ids, told by the tokens' names.
fn check_greedy(model: &str, reference: &str, device: &str, name_of: fn(u32) -> String) {
    let server = Server::start(&fixture(model), &["--device", device]);
    let reference = fixture(reference).join("reference.safetensors");
    let (_, prompt) = tensor(&reference, "input_ids");
    let (_, greedy) = tensor(&reference, "greedy_ids");
    let id = model.split('/').next().unwrap();
    let mut body =
        json!({ "model": id, "prompt": prompt, "max_tokens": greedy.len(), "temperature": 0, "logprobs": 1 });
    let expected: Vec<_> = greedy.iter().map(|&id| name_of(id)).collect();

    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!(expected), "{model} on {device}");
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(answer["usage"]["completion_tokens"], greedy.len());

    body["stream"] = true.into();
    let (status, stream) = server.request("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{stream}");
    let events: Vec<_> = stream.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let streamed: Vec<_> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .flat_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(Value::from(streamed), json!(expected), "{model} on {device}, streamed");
    assert_eq!(server.end("INT"), Some(0));
}

fn named(id: u32) -> String {
    format!("t{id}")
}

fn bracketed(id: u32) -> String {
    format!("<{id}>")
}

#[test]
fn a_gguf_file_answers_its_greedy_ids_on_the_cpu() {
    check_greedy("llama_tiny_gguf/model.gguf", "llama_tiny", "cpu", named);
    check_greedy("gemma4_moe_tiny_gguf/model.gguf", "gemma4_moe_tiny", "cpu", named);
}

#[test]
fn a_checkpoint_without_tokenizer_answers_its_greedy_ids_on_the_cpu() {
    check_greedy("llama_tiny", "llama_tiny", "cpu", bracketed);
    check_greedy("gemma4_ple_shared_tiny", "gemma4_ple_shared_tiny", "cpu", bracketed);
}

#[test]
fn a_gguf_file_answers_its_greedy_ids_on_software_vulkan() {
    check_greedy("llama_tiny_gguf/model.gguf", "llama_tiny", "lavapipe", named);
}

#[test]
fn a_checkpoint_answers_its_greedy_ids_on_software_vulkan() {
    check_greedy("gemma4_moe_tiny", "gemma4_moe_tiny", "lavapipe", bracketed);
}

#[test]
fn ids_in_brackets_are_prompts_and_other_text_is_refused() {
    let server = Server::start(&fixture("llama_tiny"), &["--device", "cpu"]);
    let body = |prompt: Value| json!({ "model": "llama_tiny", "prompt": prompt, "max_tokens": 3, "temperature": 0 });
    let (_, by_text) = server.post("/v1/completions", &body("<2><431><379>".into()));
    let (_, by_ids) = server.post("/v1/completions", &body(json!([2, 431, 379])));
    assert_eq!(by_text["choices"], by_ids["choices"]);
    assert_eq!(by_text["usage"]["prompt_tokens"], 3);

    let (status, refused) = server.post("/v1/completions", &body("hello".into()));
    assert_eq!((status, &refused["error"]["param"]), (400, &"prompt".into()), "{refused}");
    let (status, refused) = server.post("/v1/completions", &body(json!([512])));
    assert_eq!(status, 400, "{refused}");
    let chat = json!({ "model": "llama_tiny", "messages": [{ "role": "user", "content": "x" }] });
    let (status, refused) = server.post("/v1/chat/completions", &chat);
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("/v1/completions"), "{refused}");
}

#[test]
fn the_chat_page_may_talk_to_its_server_only() {
    let server = Server::start(&fixture("llama_tiny"), &["--device", "cpu", "--api-key", "secret"]);
    let mut page = String::new();
    server.send("GET", "/", "").read_to_string(&mut page).unwrap();
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(body.contains("<title>Laneway</title>") && !body.contains("http://") && !body.contains("https://"));
    assert_eq!(server.request("GET", "/v1/models", "").0, 401);
    assert_eq!(server.request("GET", "/health", "").0, 200);
}

#[test]
fn a_prompt_over_the_context_is_refused_with_both_numbers() {
    let server = Server::start(&fixture("llama_tiny"), &["--device", "cpu", "--ctx", "20"]);
    let prompt: Vec<u32> = (5..30).collect();
    let (status, refused) = server.post("/v1/completions", &json!({ "model": "llama_tiny", "prompt": prompt }));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("25") && message.contains("20"), "{refused}");
}

#[test]
fn sigterm_lets_a_running_answer_end() {
    let server = Server::start(&fixture("llama_tiny"), &["--device", "cpu"]);
    let body =
        json!({ "model": "llama_tiny", "prompt": [2, 431], "max_tokens": 400, "temperature": 0, "stream": true });
    let mut stream = server.send("POST", "/v1/completions", &body.to_string());
    let mut start = [0; 64];
    stream.read_exact(&mut start).unwrap();
    let reader = std::thread::spawn(move || {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    assert_eq!(server.end("TERM"), Some(0));
    let rest = reader.join().unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
}

#[test]
fn a_port_in_use_is_an_error() {
    let server = Server::start(&fixture("llama_tiny"), &["--device", "cpu"]);
    let port = server.address.rsplit(':').next().unwrap();
    let model = fixture("llama_tiny");
    let output = run(&["serve", "--device", "cpu", "--port", port, "--model", model.to_str().unwrap()]);
    let (code, text) = refusal(&output);
    assert!(code == Some(1) && text.contains(&format!("port {port} is in use")), "{text}");
}

#[test]
fn a_device_that_is_not_there_ends_the_server() {
    let model = fixture("llama_tiny_gguf/model.gguf");
    let output = run(&["serve", "--port", "0", "--device", "no-such-adapter", "--model", model.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    // Graphics drivers add lines of their own.
    let text = String::from_utf8(output.stderr).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.contains("no-such-adapter"), "{text}");
}

#[test]
fn two_hundred_clients_that_leave_cost_nothing_that_stays() {
    let server = Server::start(&fixture("gemma3_tiny"), &["--device", "cpu", "--lanes", "2", "--threads", "1"]);
    let metric = |name: &str| -> f64 {
        let text = server.request("GET", "/metrics", "").1;
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let resident_kib = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let leave = |round: u64| {
        let prompt: Vec<u64> = (0..100).map(|i| (i * 7 + round * 13) % 500).collect();
        let body = json!({
            "model": "gemma3_tiny", "prompt": prompt, "max_tokens": 300, "seed": round, "stream": round.is_multiple_of(2)
        });
        let mut stream = server.send("POST", "/v1/completions", &body.to_string());
        stream.set_read_timeout(Some(Duration::from_millis(1 + round * 31 % 40))).unwrap();
        // Some leave before the first byte, some in the middle of the answer.
        let mut some = vec![0; 1 + (round * 97 % 3000) as usize];
        drop(stream.read(&mut some));
    };
    let settle = || {
        let start = std::time::Instant::now();
        while metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") > 0.0 {
            assert!(start.elapsed() < Duration::from_secs(60), "work of clients that left goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    (0..50).for_each(leave);
    settle();
    let before = resident_kib();
    (50..250).for_each(leave);
    settle();
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 16 * 1024, "memory grew by {grown} KiB over 200 clients");
    let body = json!({ "model": "gemma3_tiny", "prompt": [2, 431, 9], "max_tokens": 5, "temperature": 0 });
    assert_eq!(server.post("/v1/completions", &body).1["usage"]["completion_tokens"], 5);
}

#[test]
fn half_a_request_does_not_hold_up_the_end() {
    let server = Server::start(&fixture("llama_tiny"), &["--device", "cpu"]);
    let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /hea").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let start = std::time::Instant::now();
    assert_eq!(server.end("TERM"), Some(0));
    // The grace time for running answers is 30 s; there are none.
    assert!(start.elapsed() < Duration::from_secs(15), "took {:?}", start.elapsed());
}

#[test]
fn a_hair_of_temperature_is_no_temperature() {
    let server = Server::start(&fixture("gemma3_tiny"), &["--device", "cpu"]);
    let text = |temperature: f64| {
        let body = json!({
            "model": "gemma3_tiny", "prompt": [2, 431, 9, 77], "max_tokens": 8, "temperature": temperature, "top_p": 0.9
        });
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let greedy = text(0.0);
    for temperature in [1e-45, 1e-40, 5e-38, 1e-5] {
        assert_eq!(text(temperature), greedy, "{temperature}");
    }
}
