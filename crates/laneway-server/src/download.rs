//! One file over HTTP: resumed after interruptions, checked, and in place only when it is whole.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::cache::{beside, discard, disk, publish};

/// Interruptions in a row, without a byte between them, after which a download is given up.
const MAX_FRUITLESS: u32 = 4;
const MAX_REDIRECTS: usize = 8;
const SILENCE: Duration = Duration::from_secs(60);

/// What is known about a file before it is asked for.
pub struct Download<'a> {
    pub url: String,
    pub sha256: Option<String>,
    pub size_bytes: Option<u64>,
    /// Where the whole file belongs; `.partial` is appended meanwhile.
    pub path: &'a Path,
}

enum Failure {
    /// Trying again can help; the flag says whether something arrived.
    Interrupted(anyhow::Error, bool),
    Final(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Final(error)
    }
}

/// A client that trusts the certificates the system trusts and follows redirects only by hand.
pub fn agent() -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_connect(Some(Duration::from_secs(30)))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .user_agent(concat!("laneway/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}

impl Download<'_> {
    /// Fetches the rest of the file, or all of it, and checks it.
    ///
    /// # Errors
    /// Refused requests, content that is not the file, a full disk, or a network that stays away.
    pub fn run(mut self, agent: &Agent, bar: &ProgressBar) -> Result<()> {
        let before = bar.position();
        let mut fruitless = 0;
        loop {
            match self.attempt(agent, bar, before) {
                Ok(()) => return Ok(()),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Interrupted(error, arrived)) => {
                    fruitless = if arrived { 0 } else { fruitless + 1 };
                    if fruitless >= MAX_FRUITLESS {
                        return Err(error.context("the download was interrupted; run this again to resume it"));
                    }
                    bar.suspend(|| eprintln!("{error:#}; trying again"));
                    std::thread::sleep(Duration::from_millis(250 << fruitless));
                }
            }
        }
    }

    fn attempt(&mut self, agent: &Agent, bar: &ProgressBar, before: u64) -> Result<(), Failure> {
        let partial = beside(self.path, ".partial");
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&partial);
        let mut file = file.map_err(|error| disk(&partial, error))?;
        let mut have = file.metadata().map_err(|error| disk(&partial, error))?.len();
        if self.size_bytes.is_some_and(|size| have > size) {
            have = 0;
        }
        let mut resumed = have > 0 && self.sha256.is_some();
        let mut body = None;
        if !(resumed && self.size_bytes == Some(have)) {
            let response = self.request(agent, have)?;
            have = self.start(&response, have)?;
            resumed = have > 0;
            body = Some(response.into_body().into_reader());
        }
        file.set_len(have).map_err(|error| disk(&partial, error))?;
        bar.set_position(before + have);
        if let Some(total) = self.size_bytes {
            bar.set_length(bar.length().unwrap_or(0).max(before + total));
        }
        let mut hash = hash_of_all(&mut file).map_err(|error| disk(&partial, error))?;
        if let Some(body) = body {
            self.receive(body, &mut file, &partial, have, &mut hash, bar)?;
        }
        file.sync_all().map_err(|error| disk(&partial, error))?;
        drop(file);
        let found = hexadecimal(&hash.finalize());
        if self.sha256.as_ref().is_some_and(|expected| *expected != found) {
            discard(&partial)?;
            let error = anyhow!("{} arrived corrupted (sha256 {found}) and was discarded", self.url);
            // What was there before may be at fault: once from the start, then it is the sender.
            return Err(if resumed { Failure::Interrupted(error, false) } else { Failure::Final(error) });
        }
        Ok(publish(&partial, self.path)?)
    }

    /// Follows redirects, asking for what is after the first `have` bytes once the file's hash is known.
    fn request(&mut self, agent: &Agent, have: u64) -> Result<Response<Body>, Failure> {
        let mut url = self.url.clone();
        let mut asked_for_rest = false;
        for _ in 0..MAX_REDIRECTS {
            let mut request = agent.get(&url).header(header::ACCEPT_ENCODING, "identity");
            if have > 0 && self.sha256.is_some() {
                request = request.header(header::RANGE, format!("bytes={have}-"));
                asked_for_rest = true;
            }
            let response = request
                .call()
                .map_err(|error| Failure::Interrupted(anyhow!("{} cannot be reached: {error}", host(&url)), false))?;
            self.learn(response.headers());
            if response.status().is_redirection() {
                url = redirected(&url, response.headers())?;
            } else if have > 0 && self.sha256.is_some() && !asked_for_rest && response.status().is_success() {
                // Only this answer told the hash that makes resuming safe.
            } else {
                return Ok(response);
            }
        }
        Err(anyhow!("{} redirects too often", self.url).into())
    }

    /// Hugging Face tells size and hash of the file on the way to its storage.
    fn learn(&mut self, headers: &HeaderMap) {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let etag = text("x-linked-etag").map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        let is_sha256 = |etag: &&str| etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
        if self.sha256.is_none() {
            self.sha256 = etag.filter(is_sha256).map(str::to_ascii_lowercase);
        }
        if self.size_bytes.is_none() {
            self.size_bytes = text("x-linked-size").and_then(|size| size.parse().ok());
        }
    }

    /// Checks the head of the answer; returns how many of the bytes here it goes on from.
    fn start(&mut self, response: &Response<Body>, have: u64) -> Result<u64, Failure> {
        let status = response.status();
        let text = |name: header::HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
        let at = match status {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT => have,
            StatusCode::RANGE_NOT_SATISFIABLE => {
                discard(&beside(self.path, ".partial"))?;
                return Err(Failure::Interrupted(anyhow!("the partial file does not fit"), false));
            }
            _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(Failure::Interrupted(anyhow!("{} answers {status}", host(&self.url)), false));
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(
                    anyhow!("{} answers {status}: it may ask for an account or a licence agreement", self.url).into()
                );
            }
            _ => return Err(anyhow!("{} answers {status}", self.url).into()),
        };
        if text(header::CONTENT_TYPE).is_some_and(|kind| kind.trim_start().starts_with("text/html")) {
            return Err(anyhow!("{} is a web page, not a file (a login or proxy page?)", self.url).into());
        }
        let range = text(header::CONTENT_RANGE).map(|range| range.strip_prefix("bytes ").unwrap_or(range));
        let claimed = match status {
            StatusCode::PARTIAL_CONTENT if range.is_none_or(|range| !range.starts_with(&format!("{at}-"))) => {
                return Err(anyhow!("{} sent another part of the file than it was asked for", self.url).into());
            }
            StatusCode::PARTIAL_CONTENT => range.and_then(|range| range.rsplit('/').next()?.parse().ok()),
            _ => text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()),
        };
        match (self.size_bytes, claimed) {
            (Some(expected), Some(claimed)) if expected != claimed => {
                return Err(anyhow!("{} has {claimed} bytes, expected {expected}", self.url).into());
            }
            _ => self.size_bytes = self.size_bytes.or(claimed),
        }
        Ok(at)
    }

    fn receive(
        &self,
        mut body: impl Read,
        file: &mut File,
        partial: &Path,
        mut have: u64,
        hash: &mut Sha256,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let first = have;
        let mut buffer = vec![0; 1 << 17];
        loop {
            let interrupted = |error| Failure::Interrupted(error, have > first);
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => return Err(interrupted(anyhow!("{}: {error}", host(&self.url)))),
            };
            let piece = &buffer[..count];
            if have == 0 && is_html(piece) {
                drop(discard(partial));
                return Err(anyhow!("{} is a web page, not a file (a login or proxy page?)", self.url).into());
            }
            if self.size_bytes.is_some_and(|size| have + count as u64 > size) {
                return Err(anyhow!("{} sends more than the {have} bytes it announced", self.url).into());
            }
            file.write_all(piece).map_err(|error| disk(partial, error))?;
            hash.update(piece);
            have += count as u64;
            bar.inc(count as u64);
        }
        match self.size_bytes {
            Some(size) if have < size => {
                let error = anyhow!("{} closed the connection after {have} of {size} bytes", host(&self.url));
                Err(Failure::Interrupted(error, have > first))
            }
            _ => Ok(()),
        }
    }
}

/// The hash of a file's content so far; leaves the file at its end.
fn hash_of_all(file: &mut File) -> std::io::Result<Sha256> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 17];
    file.seek(SeekFrom::Start(0))?;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// A small JSON document; redirects are followed.
pub fn json(agent: &Agent, url: &str, accept: &str) -> Result<serde_json::Value> {
    let mut url = url.to_owned();
    for _ in 0..MAX_REDIRECTS {
        let response = agent.get(&url).header(header::ACCEPT, accept).call();
        let mut response = response.map_err(|error| anyhow!("{} cannot be reached: {error}", host(&url)))?;
        if response.status().is_redirection() {
            url = redirected(&url, response.headers())?;
            continue;
        }
        if !response.status().is_success() {
            bail!("{url} answers {}", response.status());
        }
        let text = response.body_mut().read_to_string().with_context(|| format!("{url} cannot be read"))?;
        return serde_json::from_str(&text).map_err(|error| anyhow!("{url} is not the expected JSON ({error})"));
    }
    bail!("{url} redirects too often")
}

/// Bytes in lower-case hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn redirected(url: &str, headers: &HeaderMap) -> Result<String> {
    let place = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    let place = place.with_context(|| format!("{url} redirects to nowhere"))?;
    let (scheme, rest) = url.split_once("://").context("the address has no scheme")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let target = match place {
        _ if place.starts_with("//") => format!("{scheme}:{place}"),
        _ if place.starts_with('/') => format!("{scheme}://{authority}{place}"),
        _ => place.to_owned(),
    };
    let is_safe = target.starts_with("https://") || (scheme == "http" && target.starts_with("http://"));
    if !is_safe {
        bail!("{url} redirects to `{target}`, which is not safe to follow");
    }
    Ok(target)
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn is_html(start: &[u8]) -> bool {
    let text = start.trim_ascii_start();
    let begins = |tag: &str| text.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag.as_bytes()));
    begins("<!doctype") || begins("<html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_as_safe_as_they_were() {
        let to = |place: &str| HeaderMap::from_iter([(header::LOCATION, place.parse().unwrap())]);
        let check = |url: &str, place: &str, expected: Option<&str>| {
            assert_eq!(redirected(url, &to(place)).ok().as_deref(), expected, "{place}");
        };
        check("https://a/b", "/c", Some("https://a/c"));
        check("https://a/b", "//x/c", Some("https://x/c"));
        check("https://a/b", "https://x/c?d", Some("https://x/c?d"));
        check("https://a/b", "http://x/c", None);
        check("http://a/b", "http://x/c", Some("http://x/c"));
        check("https://a/b", "file:///etc/passwd", None);
    }
}
