use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    folder.expect("xtask lies in the workspace").to_owned()
}

/// Cargo's output folder.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// The folder of what xtask fetches and makes for itself.
pub fn tools() -> PathBuf {
    root().join("target")
}

/// A program, started in the workspace's folder.
///
/// What `cargo run` tells xtask about itself is taken back: build scripts that watch such variables would
/// otherwise run again, and all that depends on them would be compiled again, between a build from here and one from a shell.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    let own = [
        "CARGO_MANIFEST_DIR",
        "CARGO_MANIFEST_PATH",
        "CARGO_PRIMARY_PACKAGE",
        "CARGO_BIN_NAME",
        "CARGO_CRATE_NAME",
        "OUT_DIR",
    ];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || own.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command
}

/// The cargo that runs xtask.
pub fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs to the end with the terminal's output.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// What a program prints to stdout.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}", shown(command), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program is there and succeeds.
pub fn works(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Whether `program` is on the path.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs one named part of the work, says how long it took, and names it when it fails.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("\n== {name}");
    let begin = Instant::now();
    let result = work();
    let seconds = begin.elapsed().as_secs_f64();
    match &result {
        Ok(_) => println!("== {name}: done in {seconds:.1} s"),
        Err(_) => println!("== {name}: FAILED after {seconds:.1} s"),
    }
    result.with_context(|| format!("{name} failed"))
}

/// The command line as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
