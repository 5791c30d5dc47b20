use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::count::Count;
use crate::process::{cargo, command, output, run, step, tools};
use crate::{clients, eval, server, setup, web};

/// The models that tests run on, and their names in the folder that tests are told.
const MODELS: [(&str, &str); 2] = [("smollm2-135m-instruct", "smollm2.gguf"), ("gemma-3-270m", "gemma3-270m.gguf")];

const STEPS: [&str; 5] = ["fmt", "clippy", "cargo", "clients", "browser"];

/// Sets up, then runs the checks and tests that `names` asks for, or all; stops at the first step that fails.
pub fn run_steps(names: &[OsString]) -> Result<()> {
    let names: Vec<_> = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if let Some(unknown) = names.iter().find(|name| !STEPS.contains(&name.as_str())) {
        bail!("there is no step `{unknown}`; there are {}", STEPS.join(", "));
    }
    let begin = Instant::now();
    let mut count = Count::default();
    let result = steps(|step| names.is_empty() || names.iter().any(|name| name == step), &mut count);
    if result.is_err() {
        count.failed = count.failed.max(1);
    }
    println!("\n{:.1} minutes", begin.elapsed().as_secs_f64() / 60.0);
    println!("{} passed, {} failed", count.passed, count.failed);
    result
}

fn steps(wants: impl Fn(&str) -> bool, count: &mut Count) -> Result<()> {
    step("setup", setup::everything)?;
    if wants("fmt") {
        step("rustfmt", || run(cargo().args(["fmt", "--all", "--check"])))?;
    }
    // One profile and one selection of packages in every command, so that burn is compiled once.
    if wants("cargo") {
        step("building the tests", || run(cargo().args(["test", "--release", "--workspace", "--no-run"])))?;
    }
    if wants("clippy") {
        step("clippy", || {
            run(cargo().args(["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]))
        })?;
    }
    if wants("cargo") || wants("clients") {
        server::build()?;
        let models = step("fetching the models", models)?;
        if wants("cargo") {
            step("cargo test", || count.run(cargo_test().env("LANEWAY_TEST_MODELS", &models)))?;
        }
        if wants("clients") {
            eval::test(count)?;
            clients::test(&models.join(MODELS[0].1), count)?;
        }
    }
    if wants("browser") {
        web::build()?;
        step("the browser", || count.run(command("node").arg("tests/browser/run.mjs")))?;
    }
    Ok(())
}

fn cargo_test() -> Command {
    let mut test = cargo();
    test.args(["test", "--release", "--workspace", "--no-fail-fast"]);
    test
}

/// Fetches the models into the user's cache and returns a folder with links to them.
fn models() -> Result<PathBuf> {
    let mut pull = command(server::program());
    let paths = output(pull.arg("pull").args(MODELS.map(|(name, _)| name)))
        .context("the models that the tests run on could not be fetched")?;
    let folder = tools().join("test-models");
    std::fs::create_dir_all(&folder)?;
    ensure!(paths.lines().count() == MODELS.len(), "`laneway pull` printed other paths than expected:\n{paths}");
    for (path, (_, name)) in paths.lines().zip(MODELS) {
        link(Path::new(path), &folder.join(name))?;
    }
    Ok(folder)
}

fn link(file: &Path, link: &Path) -> Result<()> {
    ensure!(file.is_file(), "{} is missing after `laneway pull`", file.display());
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(link)?;
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(file, link)?;
    #[cfg(not(unix))]
    std::fs::copy(file, link)?;
    Ok(())
}
