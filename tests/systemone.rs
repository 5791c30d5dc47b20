//! Decisions and chat by diffusion over a real socket.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Server, fixture, laneway, refusal, run, scratch, tensor};

const CANVAS_MODEL: &str = "diffusion_chat_tiny";
const DEVICES: [&str; 2] = ["cpu", "lavapipe"];

fn canvas_server(device: &str) -> Server {
    Server::start(&fixture(CANVAS_MODEL), &["--device", device, "--ctx", "4096"])
}

fn reference(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(CANVAS_MODEL).join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn hello(trace: &Value) -> Value {
    json!({
        "model": CANVAS_MODEL,
        "messages": [{"role": "user", "content": "Hello"}],
        "seed": trace["seed"],
        "max_tokens": trace["max_new_tokens"],
    })
}

fn chunks(server: &Server, body: &Value) -> Vec<Value> {
    let (status, stream) = server.request("POST", "/v1/chat/completions", &body.to_string());
    assert_eq!(status, 200, "{stream}");
    let events: Vec<_> = stream.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[test]
fn a_chat_by_diffusion_has_the_text_of_the_reference() {
    for device in DEVICES {
        let server = canvas_server(device);
        for (name, reason) in [("chat_trace.json", "length"), ("chat_trace_eos.json", "stop")] {
            let trace = reference(name);
            let mut body = hello(&trace);
            let (status, answer) = server.post("/v1/chat/completions", &body);
            assert_eq!(status, 200, "{answer}");
            let choice = &answer["choices"][0];
            assert_eq!(choice["message"]["content"], trace["text"], "{name} on {device}");
            assert_eq!(choice["finish_reason"], reason, "{name} on {device}");
            assert_eq!(answer["usage"]["prompt_tokens"], trace["prompt_ids"].as_array().unwrap().len());

            body["stream"] = true.into();
            let streamed = chunks(&server, &body);
            assert!(streamed.iter().all(|chunk| chunk.get("x_laneway_draft").is_none()), "drafts were not asked for");
            let pieces = streamed.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
            assert_eq!(pieces.collect::<String>(), trace["text"].as_str().unwrap(), "{name} on {device}, streamed");
        }
    }
}

#[test]
fn drafts_show_every_pass_and_end_in_the_final_text() {
    let server = canvas_server("cpu");
    let trace = reference("chat_trace.json");
    let mut body = hello(&trace);
    body["stream"] = true.into();
    body["x_laneway_drafts"] = true.into();
    let chunks = chunks(&server, &body);
    let drafts: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk.get("x_laneway_draft")).collect();
    let steps: Vec<u64> = drafts.iter().map(|draft| draft["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=trace["steps"][0].as_u64().unwrap()).collect::<Vec<_>>());
    assert!(drafts.iter().all(|draft| draft["entropy"].as_f64().unwrap() >= 0.0));
    assert_eq!(drafts.last().unwrap()["text"], trace["text"]);
    let first_text = chunks
        .iter()
        .position(|chunk| chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()));
    let last_draft = chunks.iter().rposition(|chunk| chunk.get("x_laneway_draft").is_some());
    assert!(last_draft < first_text, "the final text follows the drafts");
    assert!(chunks.iter().filter(|c| c.get("x_laneway_draft").is_some()).all(|c| c["choices"] == json!([])));
}

fn question(state: &str) -> Value {
    json!({
        "model": "jev-latest",
        "state": state,
        "questions": {
            "angry": {"type": "noul", "instructions": "Is the writer angry?"},
            "team": {"type": "choice", "criteria": {"Billing": "payments", "Shipping": null, "Tech": null}},
            "urgency": {"type": "score", "criteria": ["low", "medium", "high"]},
        },
    })
}

/// O15
#[test]
fn a_read_leaves_no_state() {
    let models = [(fixture(CANVAS_MODEL), vec!["cpu", "lavapipe"]), (smollm(), vec!["cpu"])];
    for (model, devices) in models.into_iter().filter(|(model, _)| model.exists()) {
        for device in devices {
            let server = Server::start(&model, &["--device", device]);
            let ask = |state: &str| {
                let (status, answer) = server.post("/v1/systemone", &question(state));
                assert_eq!(status, 200, "{answer}");
                answer["answers"].clone()
            };
            let (a, b) = (ask("The parcel never came!"), ask("I paid twice and want my money back."));
            let again = ask("The parcel never came!");
            assert_eq!(a, again, "{} on {device}", model.display());
            assert_ne!(a, b, "{} on {device}", model.display());
        }
    }
}

/// The real model, where the tests have been given one.
fn smollm() -> PathBuf {
    PathBuf::from(std::env::var_os("LANEWAY_TEST_MODELS").unwrap_or_default()).join("smollm2.gguf")
}

#[test]
fn more_than_one_lane_reads_no_canvas_and_says_so() {
    let server = Server::start(&fixture(CANVAS_MODEL), &["--device", "cpu", "--lanes", "2"]);
    let (status, answer) = server.post("/v1/systemone", &question("x"));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["detail"]["error_type"], "api_usage_error");
    assert!(answer["detail"]["message"].as_str().unwrap().contains("exactly one lane"), "{answer}");
    let (status, _) = server.post("/v1/chat/completions", &hello(&reference("chat_trace.json")));
    assert_eq!(status, 200);
}

#[test]
fn the_program_reads_without_a_server_what_the_server_reads() {
    let folder = scratch("read");
    let (state, questions) = (folder.join("state.txt"), folder.join("questions.json"));
    let asked = question("The parcel never came!");
    std::fs::write(&state, asked["state"].as_str().unwrap()).unwrap();
    std::fs::write(&questions, asked["questions"].to_string()).unwrap();
    let model = fixture(CANVAS_MODEL);
    let [model, state, questions] = [&model, &state, &questions].map(|path| path.to_str().unwrap());
    let command = ["read", "--device", "cpu", "--model", model, "--state", state, "--questions", questions];
    let output = run(&[&command[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (_, served) = canvas_server("cpu").post("/v1/systemone", &asked);
    assert_eq!(printed["answers"], served["answers"]);
    let output = run(&command);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("Billing") && table.contains('%'), "{table}");

    std::fs::write(questions, r#"{"q": {"type": "noul"}, "p": 3}"#).unwrap();
    let (code, said) = refusal(&run(&command));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("questions.json"), "{said}");
    let (code, said) = refusal(&laneway(&["read", "--state", "-", "--questions", "-"]).output().unwrap());
    assert_eq!(code, Some(2), "{said}");
}

/// One pass over the fixture's canvas, without and with the prediction of the pass before.
#[test]
fn the_program_writes_the_logits_of_a_canvas() {
    let folder = scratch("canvas_logits");
    let (first, second) = (folder.join("first.safetensors"), folder.join("second.safetensors"));
    let reference = fixture("diffusion_gemma_tiny/reference.safetensors");
    let ids = |name: &str| {
        let (_, ids) = tensor(&reference, name);
        ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    };
    let (prompt, canvas) = (ids("input_ids"), ids("canvas0"));
    for device in DEVICES {
        let model = fixture("diffusion_gemma_tiny");
        let common = ["logits", "--device", device, "--model", model.to_str().unwrap(), "--ids", &prompt];
        let common = [&common[..], &["--canvas", &canvas]].concat();
        let output = run(&[&common[..], &["--out", first.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        check_close(&first, &reference, "canvas_logits.step0", device);
        let conditioned = ["--previous-logits", first.to_str().unwrap(), "--temperature", "0.8"];
        let output = run(&[&common[..], &conditioned, &["--out", second.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        check_close(&second, &reference, "canvas_logits.step1", device);
    }
}

fn check_close(file: &std::path::Path, reference: &std::path::Path, name: &str, device: &str) {
    let (_, found) = tensor(file, "logits");
    let (_, expected) = tensor(reference, name);
    assert_eq!(found.len(), expected.len(), "{name} on {device}");
    let floats = |words: &[u32]| words.iter().map(|word| f32::from_bits(*word)).collect::<Vec<_>>();
    let (found, expected) = (floats(&found), floats(&expected));
    let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
    let worst = found.iter().zip(&expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(worst <= 1e-3 * largest, "{name} on {device}: off by {worst} of {largest}");
}

/// The model's name in the documentation.
const DOCUMENTED: &str = "smollm2-135m-instruct";

/// The examples of docs/system-one.md: a fenced `http` request, then the `json` that it answers.
fn documented() -> Vec<(String, String, Option<String>)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/system-one.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<(&str, &str)> = text.split("\n```").skip(1).step_by(2).filter_map(|b| b.split_once('\n')).collect();
    let answer = |at: usize| blocks.get(at + 1).filter(|(kind, _)| *kind == "json").map(|(_, json)| (*json).to_owned());
    let requests = blocks.iter().enumerate().filter(|(_, (kind, _))| *kind == "http");
    requests
        .map(|(at, (_, request))| {
            let (line, body) = request.split_once("\n\n").unwrap();
            (line.to_owned(), body.to_owned(), answer(at))
        })
        .collect()
}

#[test]
fn the_documentation_shows_what_the_server_answers() {
    let examples = documented();
    assert!(examples.len() >= 3, "found {} examples", examples.len());
    let real = smollm();
    // Without the real model only the shape of the answers can be compared.
    let (model, same_numbers) = if real.exists() { (real, true) } else { (fixture(CANVAS_MODEL), false) };
    let server = Server::start(&model, &["--device", "cpu"]);
    // The same file has other names where it was put by hand.
    let models: Value = serde_json::from_str(&server.request("GET", "/v1/models", "").1).unwrap();
    let served = models["data"][0]["id"].clone();
    for (line, body, expected) in examples {
        let path = line.split(' ').nth(1).unwrap();
        let mut body: Value = serde_json::from_str(&body).unwrap();
        if body["model"] == DOCUMENTED {
            body["model"] = served.clone();
        }
        let (status, answer) = server.post(path, &body);
        let mut expected: Value = serde_json::from_str(&expected.unwrap()).unwrap();
        if expected["model"] == DOCUMENTED {
            expected["model"] = served.clone();
        }
        let refused = expected.get("detail").is_some() || expected.get("error").is_some();
        assert_eq!(status >= 400, refused, "{line}: {answer}");
        check_shape(&expected, &answer, same_numbers, path);
    }
}

/// Objects have the same members in the same order, lists the same length, numbers are near each other.
fn check_shape(expected: &Value, found: &Value, same_numbers: bool, at: &str) {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let told = |map: &serde_json::Map<String, Value>| {
                map.keys().filter(|key| same_numbers || !key.starts_with("x_")).cloned().collect::<Vec<_>>()
            };
            assert_eq!(told(expected), told(found), "{at}");
            for key in told(expected) {
                check_shape(&expected[&key], &found[&key], same_numbers, &format!("{at} {key}"));
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            assert_eq!(expected.len(), found.len(), "{at}");
            expected.iter().zip(found).for_each(|(a, b)| check_shape(a, b, same_numbers, at));
        }
        (Value::Number(a), Value::Number(b)) if same_numbers && !at.contains("x_c") => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() <= 0.02 * a.abs().max(1.0), "{at}: {b}, documented as {a}");
        }
        (Value::Number(_), Value::Number(_)) => {}
        (Value::String(a), Value::String(b)) if same_numbers => assert_eq!(a, b, "{at}"),
        (Value::String(_), Value::String(_)) => {}
        (a, b) => assert_eq!(a, b, "{at}"),
    }
}
