use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::process::{cargo, command, output, run, step, target};

/// Time for a server to load its model and for its shaders to be compiled on a software adapter.
const START_LIMIT: Duration = Duration::from_secs(300);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Builds the server and hands this process over to `laneway serve`.
pub fn serve(arguments: &[OsString]) -> Result<()> {
    packages::install(&[packages::CERTIFICATES])?;
    build()?;
    replace_by(command(program()).arg("serve").args(arguments).current_dir(std::env::current_dir()?))
}

/// The `laneway` program.
pub fn program() -> PathBuf {
    target().join("release").join("laneway")
}

/// Builds [`program`].
pub fn build() -> Result<()> {
    step("building the server (the first time takes about ten minutes on two cores)", || {
        run(cargo().args(["build", "--release", "-p", "laneway-server"]))
    })
}

/// A small model of the catalogue, fetched if it has not been.
pub fn default_model() -> Result<PathBuf> {
    let path = output(command(program()).args(["pull", "smollm2-135m-instruct"]))?;
    Ok(path.lines().next().context("`laneway pull` printed no path")?.into())
}

/// A server that listens; killed when dropped.
pub struct Server {
    child: Child,
    /// Where it listens, such as `http://127.0.0.1:41234`.
    pub address: String,
}

impl Server {
    /// Starts a server on a free port and waits until its model is loaded; `more` are further arguments of `serve`.
    pub fn start(model: &Path, device: &str, more: &[&str]) -> Result<Self> {
        let mut serve = command(program());
        serve.args(["serve", "--host", "127.0.0.1", "--port", "0", "--device", device]).args(more);
        serve.arg("--model").arg(model).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = serve.spawn().context("cannot start the server")?;
        let (found, addresses) = mpsc::channel();
        watch(child.stdout.take().expect("stdout was asked for"), found.clone());
        watch(child.stderr.take().expect("stderr was asked for"), found);
        let mut server = Self { child, address: String::new() };
        server.address = addresses.recv_timeout(START_LIMIT).context("the server printed no address")?;
        let begin = Instant::now();
        while !healthy(&server.address) {
            if begin.elapsed() > START_LIMIT || server.child.try_wait()?.is_some() {
                bail!("the server never became ready");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// What OpenAI's clients are told.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.address)
    }

    /// Asks the server to stop, as a service manager would, and waits until it has.
    pub fn stop(mut self) -> Result<()> {
        run(command("kill").arg("-TERM").arg(self.child.id().to_string()))?;
        let begin = Instant::now();
        while begin.elapsed() < STOP_LIMIT {
            match self.child.try_wait().context("cannot wait for the server")? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("the server stopped with {status}"),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        bail!("the server still runs {STOP_LIMIT:?} after it was asked to stop")
    }
}

/// Whether `/health` says that the model answers.
fn healthy(address: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let host = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes a server's output on and sends the addresses in it.
fn watch(stream: impl Read + Send + 'static, found: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            println!("  server: {line}");
            if let Some(address) = address_in(&line) {
                // Nobody listens any more once the first address is known.
                let _ = found.send(address);
            }
        }
    });
}

fn address_in(line: &str) -> Option<String> {
    let address = &line[line.find("http://")?..];
    let end = address[7..].find(|c: char| !(c.is_ascii_alphanumeric() || ".:-".contains(c)));
    Some(address[..end.map_or(address.len(), |end| 7 + end)].to_owned())
}

#[cfg(unix)]
fn replace_by(command: &mut Command) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(error).context("cannot start the server")
}

#[cfg(not(unix))]
fn replace_by(command: &mut Command) -> Result<()> {
    run(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_a_line() {
        let check = |line: &str, expected: Option<&str>| assert_eq!(address_in(line).as_deref(), expected);
        check("listening on http://127.0.0.1:8000/v1 (Ctrl-C stops)", Some("http://127.0.0.1:8000"));
        check("http://localhost:81", Some("http://localhost:81"));
        check("ready", None);
    }
}
