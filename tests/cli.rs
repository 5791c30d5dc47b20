//! The commands that run to their end.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use support::{fixture, laneway, refusal, run, scratch, tensor};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn files_that_are_no_model_are_refused_in_one_line() {
    let folder = scratch("no-model");
    let check = |name: &str, content: &[u8], words: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        for command in
            [&["inspect", text(&path)][..], &["serve", "--model", text(&path)], &["bench", "--model", text(&path)]]
        {
            let (code, line) = refusal(&run(command));
            assert!(code == Some(1) && line.contains(words) && line.contains(name), "{command:?}: {line}");
        }
    };
    let whole = std::fs::read(fixture("llama_tiny_gguf/model.gguf")).unwrap();
    check("truncated.gguf", &whole[..whole.len() / 2], "past end");
    check("header.gguf", &whole[..900], "truncated");
    check("page.gguf", b"<!doctype html><title>Sign in</title>", "probably a web page");
    check("empty.gguf", b"", "is empty");
    let mut other = whole.clone();
    let at = whole.windows(5).position(|bytes| bytes == b"llama").unwrap();
    other[at..at + 5].copy_from_slice(b"lumma");
    check("other.gguf", &other, "architecture `lumma` is not supported (supported: ");

    let (code, line) = refusal(&run(&["inspect", text(&folder.join("absent.gguf"))]));
    assert!(code == Some(1) && line.contains("absent.gguf"), "{line}");
    let (code, line) = refusal(&run(&["inspect", "gpt-9"]));
    assert!(code == Some(2) && line.contains("smollm2-135m-instruct"), "{line}");
}

#[test]
fn wrong_usage_has_exit_code_2() {
    let code = |arguments: &[&str]| run(arguments).status.code();
    assert_eq!(code(&[]), Some(2));
    assert_eq!(code(&["serve", "--prot", "1"]), Some(2));
    assert_eq!(code(&["serve", "--port", "70000"]), Some(2));
    assert_eq!(code(&["serve", "--lanes", "0"]), Some(2));
    assert_eq!(code(&["serve", "--api-key", ""]), Some(2));
    assert_eq!(code(&["pull", "hf:owner/../x.gguf"]), Some(2));
    let model = fixture("llama_tiny");
    assert_eq!(code(&["logits", "--model", text(&model), "--ids", "1,512", "--out", "x"]), Some(2));
    assert_eq!(code(&["bench", "--model", text(&model), "--prompt", "512"]), Some(2));
    assert_eq!(code(&["chat", "--model", text(&model), "--max-tokens", "0"]), Some(2));
    assert_eq!(code(&["pull", "./absent.gguf"]), Some(1));
    assert_eq!(laneway(&["serve"]).env("LANEWAY_PORT", "x").output().unwrap().status.code(), Some(2));
}

#[test]
fn unknown_keys_of_the_configuration_are_named() {
    let file = scratch("config").join("laneway.toml");
    std::fs::write(&file, "lanes = 2\nprot = 1\n").unwrap();
    let (code, line) = refusal(&run(&["serve", "--config", text(&file)]));
    assert!(code == Some(2) && line.contains("line 2: unknown field `prot`"), "{line}");
    let (code, line) = refusal(&run(&["serve", "--config", "absent.toml"]));
    assert!(code == Some(1) && line.contains("absent.toml"), "{line}");
}

#[test]
fn inspect_shows_metadata_network_and_tensors() {
    let output = run(&["inspect", text(&fixture("gemma4_moe_tiny_gguf/model.gguf"))]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    for words in [
        "general.architecture",
        "gemma4",
        "… 512 in all]",
        "experts of which",
        "token_embd.weight",
        "BF16",
        "for each position of context",
    ] {
        assert!(shown.contains(words), "{words} is missing in:\n{shown}");
    }
    let output = run(&["inspect", text(&fixture("llama_tiny"))]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("none in the files, token ids only") && shown.contains("blk.2.ffn_down.weight"), "{shown}");
}

#[test]
fn logits_equal_the_reference() {
    for (model, reference) in [("llama_tiny", "llama_tiny"), ("gemma3_tiny_gguf/model.gguf", "gemma3_tiny")] {
        let out = scratch("logits").join("logits.safetensors");
        let reference = fixture(reference).join("reference.safetensors");
        let (_, ids) = tensor(&reference, "input_ids");
        let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let model = fixture(model);
        let output = run(&["logits", "--model", text(&model), "--ids", &ids, "--device", "cpu", "--out", text(&out)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (shape, found) = tensor(&out, "logits");
        let (expected_shape, expected) = tensor(&reference, "prefill_logits");
        assert_eq!(shape, expected_shape);
        let distance = found.iter().zip(&expected).map(|(&a, &b)| (f32::from_bits(a) - f32::from_bits(b)).abs());
        let worst = distance.fold(0.0, f32::max);
        assert!(worst < 2e-3, "{}: off by {worst}", model.display());
    }
}

#[test]
fn bench_reports_its_figures_as_json() {
    let model = fixture("llama_tiny");
    let arguments = [
        "bench",
        "--model",
        text(&model),
        "--device",
        "cpu",
        "--prompt",
        "70",
        "--generate",
        "5",
        "--runs",
        "2",
        "--json",
    ];
    let output = run(&arguments);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["load_s", "first_token_s", "prefill_tokens_per_s", "decode_tokens_per_s", "peak_memory_bytes"] {
        assert!(report[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {report}");
    }
    assert!(report["decode_dispatches"].is_null(), "{report}");
}

#[test]
fn bench_compares_numbers_of_lanes() {
    let model = fixture("llama_tiny");
    let bench =
        ["bench", "--model", text(&model), "--device", "cpu", "--prompt", "40", "--generate", "4", "--runs", "1"];
    let output = run(&[&bench[..], &["--lanes", "1,3", "--json"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lanes = report["lanes"].as_array().unwrap();
    assert_eq!(lanes.iter().map(|row| row["lanes"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    for key in ["tokens_per_s", "tokens_per_s_per_lane", "ratio", "step_ms"] {
        assert!(lanes.iter().all(|row| row[key].as_f64().is_some_and(|value| value > 0.0)), "{key}: {report}");
    }
    let table = String::from_utf8(run(&[&bench[..], &["--lanes", "1,3"]].concat()).stdout).unwrap();
    assert!(table.contains("lanes  tokens/s"), "{table}");
    assert_eq!(run(&[&bench[..], &["--lanes", "0"]].concat()).status.code(), Some(2));
    assert_eq!(run(&[&bench[..], &["--lanes", "2", "--read"]].concat()).status.code(), Some(2));
    let canvas = fixture("qwen3_bd3lm_tiny");
    let output = run(&["bench", "--model", text(&canvas), "--device", "cpu", "--prompt", "8", "--lanes", "2"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn models_are_listed_with_licence_and_state() {
    let output = laneway(&["models"]).env("LANEWAY_CACHE", scratch("models")).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let line = shown.lines().find(|line| line.starts_with("gemma-3-270m")).unwrap();
    assert!(line.contains("253 MB") && line.contains("Gemma terms") && line.contains(" no "), "{line}");
}

#[test]
fn the_cpu_is_always_a_device() {
    let output = run(&["devices"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.lines().any(|line| line.starts_with("cpu ")), "{shown}");
}

#[test]
fn a_model_larger_than_the_device_is_refused_with_numbers() {
    let Ok(models) = std::env::var("LANEWAY_TEST_MODELS") else { return };
    let model = format!("{models}/smollm2.gguf");
    let large = ["--lanes", "256", "--ctx", "8192"];
    let output = run(&[&["serve", "--port", "0", "--model", &model, "--device", "lavapipe"], &large[..]].concat());
    let (code, text) = refusal_at_the_end(&output);
    assert!(code == Some(1) && text.contains("256 lanes of 8192 positions"), "{text}");
}

/// Exit code and last line on stderr: graphics drivers may complain before it.
fn refusal_at_the_end(output: &std::process::Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text.lines().last().unwrap_or_default().to_owned())
}

#[cfg(unix)]
#[test]
fn logits_follow_a_link_and_leave_it_in_place() {
    let folder = scratch("logits-link");
    let (target, link) = (folder.join("target.safetensors"), folder.join("link.safetensors"));
    std::fs::write(&target, "old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let model = fixture("llama_tiny");
    let ids = ["logits", "--device", "cpu", "--ids", "1,2", "--model", model.to_str().unwrap()];
    let output = run(&[&ids, &["--out", link.to_str().unwrap()][..]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(link.symlink_metadata().unwrap().is_symlink(), "the link was replaced");
    assert_eq!(tensor(&target, "logits").0, [2, 512]);
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_neither_read_for_ever_nor_waited_for() {
    let pipe = scratch("pipe").join("model.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (code, text) = refusal(&run(&["inspect", pipe.to_str().unwrap()]));
    assert!(code == Some(1) && text.contains("not a regular file"), "{text}");
    let (code, text) = refusal(&run(&["serve", "--config", "/dev/zero"]));
    assert!(code == Some(2) && text.contains("/dev/zero"), "{text}");
}

#[test]
fn inspect_does_not_call_a_file_runnable_that_lacks_tensors() {
    let folder = scratch("inspect-empty");
    std::fs::copy(fixture("llama_tiny/config.json"), folder.join("config.json")).unwrap();
    let header = b"{}";
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    let output = run(&["inspect", folder.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("token_embd.weight") && !text.contains("on cpu and gpu"), "{text}");
}
