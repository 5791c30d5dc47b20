//! The tests that talk to a running server, with the clients that people use.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::count::Count;
use crate::process::{command, root, step, tools};
use crate::server::Server;
use crate::setup;

const KEY: &str = "test-key";
const NO_KEY: &str = "";
const ORIGIN: &str = "https://app.example";
const NO_ORIGIN: &str = "";
const LANES: &str = "4";
const QUEUE: &str = "8";
/// A random diffusion model with a chat template; it decides nothing well, but quickly.
const DIFFUSION: &str = "tests/data/fixtures/diffusion_chat_tiny";

/// Runs every client against a server on the cpu device, those for decisions also against one with a diffusion model,
/// and a short chat against one on lavapipe.
pub fn test(model: &Path, count: &mut Count) -> Result<()> {
    step("clients against a server on the cpu device", || {
        let server = Server::start(model, "cpu", &["--api-key", KEY])?;
        chat(&server, count)?;
        python(&["openai_chat.py", &server.base_url(), KEY], count)?;
        javascript(&["openai_chat.mjs", &server.base_url(), KEY], count)?;
        decisions(&server, KEY, NO_ORIGIN, count)?;
        python(&["conformance.py", &server.address, KEY], count)?;
        stops(server, count)
    })?;
    step("load, and clients that misbehave, on the cpu device", || {
        let server = Server::start(model, "cpu", &["--api-key", KEY, "--lanes", LANES, "--queue", QUEUE])?;
        python(&["load.py", &server.address, KEY, LANES, QUEUE], count)?;
        stops(server, count)
    })?;
    step("decisions of a diffusion model on the cpu device", || {
        let server = Server::start(&root().join(DIFFUSION), "cpu", &["--cors", ORIGIN, "--ctx", "16384"])?;
        decisions(&server, NO_KEY, ORIGIN, count)?;
        // Questions share a canvas, and in a random model each reads all others.
        python(&["conformance.py", &server.address, NO_KEY, "semantics.batching"], count)?;
        stops(server, count)
    })?;
    step("decisions of a diffusion model on a canvas for each question", || {
        let server = Server::start(&root().join(DIFFUSION), "cpu", &["--isolated-reads", "--ctx", "16384"])?;
        python(&["conformance.py", &server.address, NO_KEY], count)?;
        stops(server, count)
    })?;
    step("a chat with a server on lavapipe", || {
        let server = Server::start(model, "lavapipe", &["--api-key", KEY])?;
        chat(&server, count)?;
        stops(server, count)
    })
}

fn chat(server: &Server, count: &mut Count) -> Result<()> {
    count.run(command("node").arg("tests/clients/paris.mjs").arg(&server.address).arg(KEY))
}

fn decisions(server: &Server, key: &str, origin: &str, count: &mut Count) -> Result<()> {
    let (address, base_url) = (&*server.address, &*server.base_url());
    python(&["systemone.py", address, key], count)?;
    python(&["decisions.py", base_url, key], count)?;
    python(&["systemone_http.py", address, key, origin], count)?;
    javascript(&["systemone.mjs", address, key], count)
}

/// Runs a script of `tests/clients` with its arguments.
fn python(script: &[&str], count: &mut Count) -> Result<()> {
    count.run(command(setup::python()).arg("-u").arg(source(script[0])).args(&script[1..]))
}

fn javascript(script: &[&str], count: &mut Count) -> Result<()> {
    // Node looks for packages beside the importing file only.
    let copy = tools().join("clients").join(script[0]);
    std::fs::copy(source(script[0]), &copy)?;
    count.run(command("node").arg(&copy).args(&script[1..]))
}

fn source(script: &str) -> PathBuf {
    root().join("tests").join("clients").join(script)
}

fn stops(server: Server, count: &mut Count) -> Result<()> {
    let stopped = server.stop();
    match &stopped {
        Ok(()) => count.passed += 1,
        Err(_) => count.failed += 1,
    }
    stopped
}
