//! Sets up, runs, tests and measures Laneway: `cargo xtask setup|run|build-web|test|eval|bench-peers`.
//!
//! Depends on no other crate of the workspace, so that it is built in seconds.
#![forbid(unsafe_code)]

mod clients;
mod count;
mod eval;
mod packages;
mod peers;
mod process;
mod server;
mod setup;
mod test;
mod web;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND

  setup               install what the tests need, and say what cannot be installed
  run [ARGS…]         build the server and serve a model; ARGS go to `laneway serve`
  build-web           build the browser's WebAssembly into web/pkg
  test [STEP…]        set up, then run every check and test, or some of: fmt clippy cargo clients browser
  eval [URL] [OPTION…]
                      measure the decisions of a server, or of one with a small model, on tasks with known answers;
                      --task NAME… --n N --seed S --json FILE --markdown FILE, and others that --help lists
  bench-peers [FILE [cpu1|cpu2|lavapipe…]]
                      measure Laneway and llama.cpp by turns on one GGUF file";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next().unwrap_or_default();
    match run(&command.to_string_lossy(), arguments.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, arguments: Vec<OsString>) -> Result<()> {
    if !matches!(command, "run" | "test" | "eval" | "bench-peers") && !arguments.is_empty() {
        bail!("`{command}` takes no arguments\n\n{USAGE}");
    }
    match command {
        "setup" => setup::everything(),
        "run" => server::serve(&arguments),
        "build-web" => web::build(),
        "test" => test::run_steps(&arguments),
        "eval" => eval::measure(&arguments),
        "bench-peers" => peers::compare(&arguments),
        "" | "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("there is no command `{command}`\n\n{USAGE}"),
    }
}
