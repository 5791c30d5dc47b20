//! Sessions that outlive the server: stored, restored, moved, damaged, and killed in the middle.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Server, fixture, refusal, run, scratch};

/// Tokens of a stored page.
const PAGE: u64 = 256;

fn start(model: &str, folder: &Path) -> Server {
    start_with(model, folder, "exact")
}

fn start_with(model: &str, folder: &Path, codec: &str) -> Server {
    let folder = folder.to_str().unwrap();
    let stores = ["--checkpoints", folder, "--checkpoint-min", "64", "--checkpoint-codec", codec];
    Server::start(&fixture(model), &[&["--device", "cpu", "--admin-key", "adm"][..], &stores].concat())
}

fn prompt(length: u32, salt: u32) -> Vec<u32> {
    (0..length).map(|at| (at * (37 + salt) + salt * 11 + 5) % 500).collect()
}

/// What a prompt is answered with, scores and all, and how many of its tokens need not be computed.
fn complete(server: &Server, prompt: &[u32]) -> (String, u64) {
    let body = json!({"model": "llama_tiny_gguf", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 1});
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (answer["choices"][0].to_string(), cached)
}

/// The stored checkpoints, once there are so many.
fn stored(server: &Server, count: usize) -> Vec<Value> {
    let started = Instant::now();
    loop {
        let (status, listed) = server.admin_json("GET", "/admin/checkpoints");
        assert_eq!(status, 200, "{listed}");
        let data = listed["data"].as_array().unwrap().clone();
        if data.len() == count {
            return data;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{listed}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// G40, G61, L109: a killed server finds what it had stored; one that ends stores all it has; another machine that gets
/// the folder goes on from there.
#[test]
fn sessions_survive_the_server_and_move_to_another_machine() {
    let folder = scratch("checkpoints-survive");
    let long = prompt(300, 1);
    let first = start("llama_tiny_gguf/model.gguf", &folder.join("a"));
    let (answer, cached) = complete(&first, &long);
    assert_eq!(cached, 0);
    assert_eq!(stored(&first, 1)[0]["tokens"], PAGE);
    drop(first);

    let second = start("llama_tiny_gguf/model.gguf", &folder.join("a"));
    assert_eq!(complete(&second, &long), (answer.clone(), PAGE));
    assert_eq!(second.end("TERM"), Some(0));

    copy(&folder.join("a"), &folder.join("b"));
    let moved = start("llama_tiny_gguf/model.gguf", &folder.join("b"));
    assert_eq!(stored(&moved, 1)[0]["tokens"], 311);
    // What was stored at the end has the answer in it, and the next turn goes on from there.
    let ids: Value = serde_json::from_str(&answer).unwrap();
    let id = |token: &Value| token.as_str().unwrap().trim_start_matches('t').parse::<u32>().unwrap();
    let said: Vec<u32> = ids["logprobs"]["tokens"].as_array().unwrap().iter().map(id).collect();
    let next = [&long[..], &said, &prompt(9, 7)].concat();
    let (expected, cached) = complete(&moved, &next);
    assert_eq!(cached, 311);
    let fresh = Server::start(&fixture("llama_tiny_gguf/model.gguf"), &["--device", "cpu"]);
    assert_eq!(complete(&fresh, &next), (expected, 0));
}

/// G63: what is not what was stored is set aside, and the prompt is computed.
#[test]
fn damaged_checkpoints_are_set_aside() {
    let folder = scratch("checkpoints-damaged");
    let long = prompt(300, 2);
    let first = start("llama_tiny_gguf/model.gguf", &folder);
    let (answer, _) = complete(&first, &long);
    stored(&first, 1);
    drop(first);
    let page = std::fs::read_dir(folder.join("pages")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&page).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&page, bytes).unwrap();

    let second = start("llama_tiny_gguf/model.gguf", &folder);
    assert_eq!(complete(&second, &long), (answer.clone(), 0));
    assert!(std::fs::read_dir(folder.join("quarantine")).unwrap().count() > 0);
    // It is stored anew.
    stored(&second, 1);
    drop(second);
    let third = start("llama_tiny_gguf/model.gguf", &folder);
    assert_eq!(complete(&third, &long), (answer, PAGE));
}

/// L83, L91, L92, G52: a session is exported, probed, imported elsewhere, saved, restored and forgotten.
#[test]
fn an_operator_moves_sessions() {
    let folder = scratch("checkpoints-admin");
    let long = prompt(300, 3);
    let home = start("llama_tiny_gguf/model.gguf", &folder.join("a"));
    let (answer, _) = complete(&home, &long);
    let (_, sessions) = home.admin_json("GET", "/admin/sessions");
    let session = &sessions["data"][0];
    assert_eq!((session["tokens"].as_u64(), session["active"].as_bool()), (Some(311), Some(false)));
    assert!(session.get("token_ids").is_none());
    let id = session["id"].as_str().unwrap();
    let (_, probed) = home.admin_json("GET", &format!("/admin/sessions/{id}?tokens=true"));
    assert_eq!(probed["token_ids"].as_array().unwrap()[..300], json!(long).as_array().unwrap()[..]);
    assert_eq!(probed["pages"].as_array().unwrap().len(), 2);
    let (status, exact) = home.admin("GET", &format!("/admin/sessions/{id}/export"), b"");
    assert_eq!(status, 200);
    let (status, lossy) = home.admin("GET", &format!("/admin/sessions/{id}/export?codec=cachegen"), b"");
    assert_eq!(status, 200);
    assert!(lossy.len() * 2 < exact.len(), "{} of {}", lossy.len(), exact.len());

    for (bytes, codec) in [(&exact, "exact"), (&lossy, "cachegen")] {
        let away = start_with("llama_tiny_gguf/model.gguf", &scratch("checkpoints-admin-away"), codec);
        let (status, imported) = away.admin("POST", "/admin/sessions/import", bytes);
        assert_eq!((status, &imported[..]), (201, &br#"{"tokens":311,"given":311}"#[..]));
        let (text, cached) = complete(&away, &long);
        assert_eq!(cached, 299);
        assert!(bytes == &lossy || text == answer, "{text} instead of {answer}");
    }

    let refused = |server: &Server, path: &str, body: &[u8]| {
        let (status, body) = server.admin("POST", path, body);
        let body: Value = serde_json::from_slice(&body).unwrap();
        (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    let import = "/admin/sessions/import";
    assert_eq!(refused(&home, import, &lossy), (409, "lossy_checkpoint".to_owned()));
    let mut torn = exact.clone();
    torn[exact.len() / 2] ^= 1;
    assert_eq!(refused(&home, import, &torn), (400, "invalid_checkpoint".to_owned()));
    assert_eq!(refused(&home, import, &exact[..900]), (400, "invalid_checkpoint".to_owned()));
    assert_eq!(refused(&home, import, b""), (400, "invalid_checkpoint".to_owned()));
    assert_eq!(refused(&home, &format!("{import}?namespace=7"), &exact), (409, "foreign_checkpoint".to_owned()));
    let other = Server::start(&fixture("gemma3_tiny_gguf/model.gguf"), &["--device", "cpu", "--admin-key", "adm"]);
    complete_any(&other, "gemma3_tiny_gguf");
    assert_eq!(refused(&other, import, &exact), (409, "foreign_checkpoint".to_owned()));
    let nothing = format!("/admin/sessions/{}/save", "0".repeat(64));
    assert_eq!(refused(&home, &nothing, b""), (404, "not_found".to_owned()));
    assert_eq!(other.admin_json("GET", "/admin/checkpoints").0, 409);

    let (status, saved) = home.admin_json("POST", &format!("/admin/sessions/{id}/save"));
    assert_eq!((status, &saved), (200, &json!({"id": id, "tokens": 311})));
    assert_eq!(stored(&home, 1)[0]["id"], id);
    let again = start("llama_tiny_gguf/model.gguf", &{
        drop(home);
        folder.join("a")
    });
    let (status, restored) = again.admin_json("POST", &format!("/admin/checkpoints/{id}/restore"));
    assert_eq!((status, restored), (200, json!({"tokens": 311})));
    let (_, sessions) = again.admin_json("GET", "/admin/sessions");
    assert_eq!(sessions["data"][0]["id"], id);
    assert_eq!(again.admin_json("DELETE", &format!("/admin/checkpoints/{id}")).0, 200);
    assert_eq!(again.admin_json("DELETE", &format!("/admin/checkpoints/{id}")).0, 404);
    stored(&again, 0);
    let (_, lanes) = again.admin_json("GET", "/admin/lanes");
    assert_eq!(lanes["pages"]["used"], lanes["pages"]["cached"]);
}

fn complete_any(server: &Server, model: &str) {
    let body = json!({"model": model, "prompt": prompt(9, 1), "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &body).0, 200);
}

#[test]
fn the_admin_routes_need_the_key_and_the_folder_one_owner() {
    let folder = scratch("checkpoints-closed");
    let closed = Server::start(&fixture("llama_tiny_gguf/model.gguf"), &["--device", "cpu"]);
    assert_eq!(closed.request("GET", "/admin/sessions", "").0, 404);
    let open = start("llama_tiny_gguf/model.gguf", &folder);
    assert_eq!(open.request("GET", "/admin/sessions", "").0, 401);
    assert_eq!(open.admin("GET", "/admin/sessions?modle=x", b"").0, 400);
    assert_eq!(open.admin("PUT", "/admin/sessions", b"").0, 405);
    let model = fixture("llama_tiny_gguf/model.gguf");
    let second =
        ["serve", "--model", model.to_str().unwrap(), "--port", "0", "--checkpoints", folder.to_str().unwrap()];
    let output = run(&second);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0));
    assert!(text.contains(folder.to_str().unwrap()), "{text}");
    let wrong = run(&["serve", "--model", "x.gguf", "--checkpoint-codec", "zip", "--checkpoints", "y"]);
    assert!(refusal(&wrong).1.contains("expected exact or cachegen"));
}

/// G55: killed at any moment, the server finds the old state or the new one, and never loses what was stored before.
#[test]
fn a_server_killed_while_it_stores_finds_what_was_stored() {
    let rounds = std::env::var("LANEWAY_CHAOS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(8);
    let folder = scratch("checkpoints-killed");
    let reference = Server::start(&fixture("llama_tiny_gguf/model.gguf"), &["--device", "cpu"]);
    let anchor = prompt(280, 4);
    let first = start("llama_tiny_gguf/model.gguf", &folder);
    let (anchored, _) = complete(&first, &anchor);
    stored(&first, 1);
    drop(first);
    let (mut kept, mut lost) = (0, 0);
    for round in 0..rounds {
        let server = start("llama_tiny_gguf/model.gguf", &folder);
        let (text, cached) = complete(&server, &anchor);
        assert_eq!((&text, cached), (&anchored, PAGE), "round {round}");
        let before = server.admin_json("GET", "/admin/checkpoints").1["data"].as_array().unwrap().len();
        let other = prompt(300, 20 + round);
        let (answer, _) = complete(&server, &other);
        assert_eq!(answer, complete(&reference, &other).0);
        // The page is written about now.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 7919 % 6000));
        drop(server);
        let server = start("llama_tiny_gguf/model.gguf", &folder);
        let after = server.admin_json("GET", "/admin/checkpoints").1["data"].as_array().unwrap().len();
        assert!(after == before || after == before + 1, "{before} checkpoints became {after}");
        let (again, cached) = complete(&server, &other);
        assert_eq!(again, answer);
        assert_eq!(cached, if after > before { PAGE } else { 0 }, "round {round}");
        (kept, lost) = (kept + usize::from(after > before), lost + usize::from(after == before));
        let quarantined = folder.join("quarantine");
        assert!(!quarantined.exists() || std::fs::read_dir(quarantined).unwrap().count() == 0);
    }
    println!("{rounds} kills: the new session was there {kept} times, the old state {lost} times");
}

/// G30: the local chat's own file outlives it, and nobody else may write to it meanwhile.
#[test]
fn a_conversation_in_the_terminal_goes_on_the_next_time() {
    let folder = scratch("checkpoints-chat").join("talk");
    let model = fixture("diffusion_chat_tiny");
    let talk = |line: &str| {
        let arguments = ["chat", "--device", "cpu", "--max-tokens", "8", "--session", folder.to_str().unwrap()];
        let mut command = support::laneway(&[&arguments[..], &["--model", model.to_str().unwrap()]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let question = "Is there a river in the town where the parcel was last seen?\n".repeat(2);
    assert!(!talk(&question).contains("going on"));
    let said = |count: usize| {
        let text = std::fs::read_to_string(folder.join("conversation.json")).unwrap();
        let messages = serde_json::from_str::<Value>(&text).unwrap()["messages"].as_array().unwrap().len();
        assert_eq!(messages, count);
    };
    said(4);
    assert!(std::fs::read_dir(folder.join("manifests")).unwrap().count() > 0);
    assert!(talk("And now?\n").contains("going on with a conversation of 4 messages"));
    said(6);
    talk("/reset\n");
    said(0);
    std::fs::write(folder.join("conversation.json"), "[1]").unwrap();
    let arguments =
        ["chat", "--device", "cpu", "--session", folder.to_str().unwrap(), "--model", model.to_str().unwrap()];
    let output = run(&arguments);
    assert_ne!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("conversation.json is not a conversation"));
}

/// L93: of 64 greedy tokens of each model after a lossy session, at least 95 in 100 are those that the exact one would
/// have had.
///
/// Each is asked for behind the exact ones before it, so that one that differs does not change all that follow.
#[test]
fn lossy_sessions_of_real_models_say_nearly_the_same() {
    let Ok(models) = std::env::var("LANEWAY_TEST_MODELS") else { return };
    let (mut agreed, mut all) = (0, 0);
    for model in ["smollm2", "gemma3-270m"] {
        let path = Path::new(&models).join(format!("{model}.gguf"));
        let folder = scratch("checkpoints-lossy");
        let native = Server::start(&path, &["--device", "cpu"]);
        let stores = ["--checkpoints", folder.to_str().unwrap(), "--checkpoint-codec", "cachegen"];
        let lossy = Server::start(&path, &[&["--device", "cpu", "--admin-key", "adm"][..], &stores].concat());
        // A link is served by the name of what it leads to.
        let (_, served) = native.request("GET", "/v1/models", "");
        let served: Value = serde_json::from_str(&served).unwrap();
        let ask = |server: &Server, prompt: &str, max_tokens: u32, members: Value| {
            let mut body = json!({"model": served["data"][0]["id"], "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 1});
            body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            let (status, answer) = server.post("/v1/completions", &body);
            assert_eq!(status, 200, "{answer}");
            let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap().clone();
            tokens.iter().map(|token| token.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let weather = ["calm", "grey", "wild", "green"];
        let year = |n: usize| {
            format!(
                "In the year {} the keeper noted {n} ships and wrote that the sea was {}. ",
                1700 + n,
                weather[n % 4]
            )
        };
        let prompt =
            "The history of the lighthouse begins with a storm. ".to_owned() + &(0..30).map(year).collect::<String>();
        let expected = ask(&native, &prompt, 64, json!({}));
        ask(&lossy, &prompt, 1, json!({}));
        let (_, sessions) = lossy.admin_json("GET", "/admin/sessions");
        let id = sessions["data"][0]["id"].as_str().unwrap();
        let (status, session) = lossy.admin("GET", &format!("/admin/sessions/{id}/export"), b"");
        assert_eq!((status, lossy.admin_json("DELETE", "/admin/sessions").0), (200, 200));
        assert_eq!(lossy.admin("POST", "/admin/sessions/import", &session).0, 201);
        let next = |at: usize| {
            ask(&lossy, &(prompt.clone() + &expected[..at].concat()), 1, json!({"x_laneway_one_shot": true}))
        };
        let same = (0..expected.len()).filter(|&at| next(at).first() == expected.get(at)).count();
        println!("{model}: {same} of {} tokens, {} bytes", expected.len(), session.len());
        assert!(same * 100 >= 90 * expected.len(), "{model}: {same} of {}", expected.len());
        (agreed, all) = (agreed + same, all + expected.len());
    }
    assert!(agreed * 100 >= 95 * all, "{agreed} of {all}");
}
