//! Killed at any moment, or out of disk: what is listed afterwards is whole.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{checkpoint_of, config, mix, tokens, wait};
use laneway_checkpoint::{ByteStore, Exactness, FileStore, Library, Match, Reason, Refusal, Saved};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROUNDS: u64 = 100;
const ROOT: &str = "LANEWAY_CHECKPOINT_CRASH_ROOT";
const ROUND: &str = "LANEWAY_CHECKPOINT_CRASH_ROUND";
const AMPLE: u64 = 1 << 30;
/// Room for a few checkpoints only, so that a kill also meets evictions.
const TIGHT: u64 = 60_000;

fn budget(round: u64) -> u64 {
    if round % 4 == 3 { TIGHT } else { AMPLE }
}

fn open(root: &Path, budget_bytes: u64) -> Library<FileStore> {
    wait(Library::open(FileStore::open(root).unwrap(), config(budget_bytes), 0)).unwrap()
}

/// What the parent runs and kills: grows one conversation, each length without logits and then with them.
#[test]
#[ignore = "the child of killed_at_any_moment"]
fn child_that_writes() {
    let (Ok(root), Ok(round)) = (std::env::var(ROOT), std::env::var(ROUND)) else { return };
    let round: u64 = round.parse().unwrap();
    let mut library = open(Path::new(&root), budget(round));
    println!("\nready");
    for turn in 1..1000 {
        let len = turn * 40;
        for logits in [false, true] {
            let live = checkpoint_of("m", tokens(round, len), logits);
            let saved = wait(library.save(&live, Reason::Continued, round * 1000 + turn as u64));
            assert!(matches!(saved, Saved::Stored { .. } | Saved::Refused(Refusal::Oversize)), "{saved:?}");
            if saved.id().is_some() {
                println!("saved {len} {logits}");
            }
        }
    }
}

fn spawn(root: &Path, round: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_that_writes", "--ignored", "--nocapture"]);
    command.env(ROOT, root).env(ROUND, round.to_string()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Kills a writer some time after it began, and returns what it said was stored: lengths, and whether with logits.
fn kill_a_writer(root: &Path, round: u64) -> Vec<(usize, bool)> {
    let mut child = spawn(root, round);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    let lines = 1 + mix(round) % 8;
    while said.lines().filter(|line| line.starts_with("saved") || *line == "ready").count() < lines as usize {
        assert!(output.read_line(&mut said).unwrap() > 0, "the child ended by itself");
    }
    std::thread::sleep(Duration::from_micros(mix(round + 1000) % 5_000));
    child.kill().unwrap();
    child.wait().unwrap();
    output.read_to_string(&mut said).unwrap();
    let complete = said.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let saved = complete.lines().filter_map(|line| {
        let (len, logits) = line.strip_prefix("saved ")?.split_once(' ')?;
        Some((len.parse().ok()?, logits == "true"))
    });
    saved.collect()
}

fn has_temporaries(root: &Path) -> bool {
    let folders = ["pages", "logits", "manifests", "uses"].map(|folder| std::fs::read_dir(root.join(folder)));
    let mut names = folders.into_iter().flatten().flatten().flatten().map(|file| file.file_name());
    names.any(|name| name.to_string_lossy().starts_with(".tmp-"))
}

/// L109, G55, G63: a hundred kills; after each, every listed checkpoint is one that was being saved, bit for bit, and
/// everything that was reported as stored is there.
#[test]
fn killed_at_any_moment() {
    // A kill does not depend on the disk, and memory takes writes a hundred times faster.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let (mut reported, mut checked, mut halves) = (0, 0, 0);
    for round in 0..ROUNDS {
        let root = if round % 5 == 0 { &disk } else { &memory };
        let said = kill_a_writer(root.path(), round);
        halves += usize::from(has_temporaries(root.path()));
        let mut library = open(root.path(), AMPLE);
        assert_eq!(library.stats().quarantined, 0, "round {round} left something broken");
        if budget(round) == AMPLE {
            for (len, logits) in &said {
                let timeline = tokens(round, *len);
                let found =
                    library.find(common::identity("m"), &timeline, Exactness::Exact).expect("reported as stored");
                assert!(found.whole && found.tokens == *len);
                let loaded = wait(library.load(&found, 0)).expect("reported as stored");
                assert!(loaded.logits.is_some() || !logits);
            }
        }
        let listed = library.list();
        for it in &listed {
            let found = Match { id: it.id, tokens: it.tokens, whole: true, exactness: Exactness::Exact };
            let loaded = wait(library.load(&found, 0)).expect("listed");
            let expected = checkpoint_of("m", loaded.tokens.clone(), loaded.logits.is_some());
            assert_eq!(loaded, expected, "round {round}");
        }
        checked += listed.len();
        reported += said.len();
        if listed.len() > 30 {
            listed.iter().for_each(|it| wait(library.forget(it.id)).unwrap());
        }
    }
    println!(
        "{ROUNDS} kills, {halves} in the middle of a file, {reported} saves reported, {checked} checkpoints checked"
    );
}

const TINY: &str = "LANEWAY_CHECKPOINT_TINY_DISK";

/// What runs on a file system of 256 KiB.
#[test]
#[ignore = "the child of a_full_file_system_refuses_and_keeps"]
fn child_on_a_tiny_disk() {
    let Ok(root) = std::env::var(TINY) else { return };
    let root = Path::new(&root);
    let mut library = open(root, AMPLE);
    let mut kept = Vec::new();
    let refusal = (1..200).find_map(|conversation| {
        let live = checkpoint_of("m", tokens(conversation, 300), true);
        match wait(library.save(&live, Reason::Cold, 0)) {
            Saved::Refused(refusal) => Some(refusal),
            _ => {
                kept.push(live);
                None
            }
        }
    });
    assert_eq!(refusal.expect("a tiny disk fills up").name(), "insufficient_space");
    assert!(kept.len() > 3);
    drop(library);
    let mut library = open(root, AMPLE);
    assert_eq!((library.stats().quarantined, library.list().len()), (0, kept.len()));
    for live in &kept {
        let found = library.find(live.identity, &live.tokens, Exactness::Exact).unwrap();
        assert_eq!(wait(library.load(&found, 0)).as_ref(), Some(live));
    }
    let temporaries = wait(library.store().list("pages/")).unwrap().len();
    let names = std::fs::read_dir(root.join("pages")).unwrap().count();
    assert_eq!(temporaries, names, "a temporary file stayed");
    println!("\nkept {} checkpoints", kept.len());
}

/// G65, L109: a real file system that is full, where one can be mounted.
#[test]
fn a_full_file_system_refuses_and_keeps() {
    let root = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=256k none "$0" && echo mounted && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(root.path());
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "child_on_a_tiny_disk", "--ignored", "--nocapture"]).env(TINY, root.path());
    let Ok(output) = command.output() else {
        println!("skipped: there is no unshare");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.starts_with("mounted") {
        println!("skipped: no file system can be mounted here");
        return;
    }
    assert!(output.status.success() && said.contains("kept "), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
