//! The tests that talk to a running server, with the clients that people use.

use std::path::Path;

use anyhow::Result;

use crate::count::Count;
use crate::process::{command, root, step, tools};
use crate::server::Server;

const KEY: &str = "test-key";

/// Runs every client against a server on the cpu device, and a short chat against one on lavapipe.
pub fn test(model: &Path, count: &mut Count) -> Result<()> {
    step("clients against a server on the cpu device", || {
        let server = Server::start(model, "cpu", KEY)?;
        chat(&server, count)?;
        python(&server, count)?;
        javascript(&server, count)?;
        stops(server, count)
    })?;
    step("a chat with a server on lavapipe", || {
        let server = Server::start(model, "lavapipe", KEY)?;
        chat(&server, count)?;
        stops(server, count)
    })
}

fn chat(server: &Server, count: &mut Count) -> Result<()> {
    count.run(command("node").arg("tests/clients/paris.mjs").arg(&server.address).arg(KEY))
}

fn python(server: &Server, count: &mut Count) -> Result<()> {
    let mut python = command(tools().join("clients").join("venv").join("bin").join("python"));
    count.run(python.args(["-u", "tests/clients/openai_chat.py"]).arg(format!("{}/v1", server.address)).arg(KEY))
}

fn javascript(server: &Server, count: &mut Count) -> Result<()> {
    // Node looks for packages beside the importing file only.
    let script = tools().join("clients").join("openai_chat.mjs");
    std::fs::copy(root().join("tests").join("clients").join("openai_chat.mjs"), &script)?;
    count.run(command("node").arg(&script).arg(format!("{}/v1", server.address)).arg(KEY))
}

fn stops(server: Server, count: &mut Count) -> Result<()> {
    let stopped = server.stop();
    match &stopped {
        Ok(()) => count.passed += 1,
        Err(_) => count.failed += 1,
    }
    stopped
}
