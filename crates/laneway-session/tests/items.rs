//! The behaviour that sessions must have, item by item: which tests cover it, or why it has none.
//!
//! A test names the items that it covers in its doc comment; `src/lifecycle.md` has a reason for the others. The table
//! is printed, and written to `items.md` in the target folder's `tmp`.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Groups of items and the numbers that exist.
const ITEMS: [(char, &[std::ops::RangeInclusive<u32>]); 4] =
    [('L', &[1..=109]), ('S', &[1..=36]), ('G', &[1..=32, 40..=46, 50..=69]), ('O', &[1..=15])];

/// A letter and a number.
type Item = (char, u32);

fn all() -> impl Iterator<Item = Item> {
    let groups = ITEMS.iter();
    groups.flat_map(|(letter, ranges)| ranges.iter().cloned().flatten().map(move |number| (*letter, number)))
}

/// Items in a text, with those between the ends of a range such as `L72-L96`.
fn items(text: &str) -> Vec<Item> {
    let mut found: Vec<Item> = Vec::new();
    let mut is_range = false;
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let end = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let item = end.chars().next().and_then(|letter| Some((letter, end[1..].parse().ok()?)));
        let item = item.filter(|(letter, _)| ITEMS.iter().any(|(group, _)| group == letter));
        if let (Some((letter, to)), true, Some(&(_, from))) = (item, is_range, found.last()) {
            found.extend((from + 1..to).map(|number| (letter, number)));
        }
        found.extend(item);
        is_range = item.is_some() && matches!(word.chars().last(), Some('-' | '–'));
    }
    found
}

/// Tests of a file: their names, and the items in the doc comments before them.
fn tests(source: &str) -> Vec<(String, Vec<Item>)> {
    let mut found = Vec::new();
    let (mut doc, mut is_test) = (String::new(), false);
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push_str(text);
            doc.push('\n');
        } else if line.starts_with("#[") {
            is_test |= line.contains("test]") || line.contains("test(");
        } else if line.contains("fn ") && is_test {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or_default();
            found.push((name.to_owned(), items(&doc)));
            (doc, is_test) = (String::new(), false);
        } else if !line.is_empty() && !line.starts_with("//") {
            (doc, is_test) = (String::new(), false);
        }
    }
    found
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Reasons by item, from the rows of a table.
fn reasons(document: &str) -> BTreeMap<Item, String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix('|')?.split_once('|'));
    let rows = rows.flat_map(|(numbers, reason)| {
        let reason = reason.trim().trim_end_matches('|').trim().to_owned();
        items(numbers).into_iter().map(move |item| (item, reason.clone()))
    });
    rows.collect()
}

#[test]
fn every_item_has_a_test_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = Vec::new();
    rust_files(&root.join("crates"), &mut files);
    rust_files(&root.join("tests"), &mut files);
    files.sort();
    let mut covered: BTreeMap<Item, BTreeSet<String>> = BTreeMap::new();
    for file in &files {
        let place = file.strip_prefix(&root).unwrap().display().to_string();
        for (name, items) in tests(&fs::read_to_string(file).unwrap()) {
            for item in items {
                covered.entry(item).or_default().insert(format!("`{name}` ({place})"));
            }
        }
    }
    let reasons = reasons(include_str!("../src/lifecycle.md"));
    let mut table = String::from("| item | tests, or why there are none |\n|---|---|\n");
    let mut missing = Vec::new();
    for item @ (letter, number) in all() {
        let tests = covered.get(&item).into_iter().flatten().cloned();
        let cells: Vec<String> = tests.chain(reasons.get(&item).cloned()).collect();
        table.push_str(&format!("| {letter}{number} | {} |\n", cells.join("<br>")));
        if cells.is_empty() {
            missing.push(format!("{letter}{number}"));
        }
    }
    println!("{table}");
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("items.md"), table).unwrap();
    assert!(missing.is_empty(), "items without a test and a reason: {missing:?}");
    let known: BTreeSet<Item> = all().collect();
    let unknown: Vec<_> = reasons.keys().filter(|item| !known.contains(item)).collect();
    assert!(unknown.is_empty(), "reasons for items that do not exist: {unknown:?}");
}

#[test]
fn items_and_ranges_are_found_in_comments() {
    assert_eq!(items("L1, S20: as in O15 (G7)."), [('L', 1), ('S', 20), ('O', 15), ('G', 7)]);
    assert_eq!(items("L11-L14"), [('L', 11), ('L', 12), ('L', 13), ('L', 14)]);
    assert_eq!(items("L1 to L3, GPU, S, L2x, X1"), [('L', 1), ('L', 3)]);
    let source =
        "/// G1\n#[test]\nfn a() {}\n/// S1\nfn b() {}\n#[test]\nfn c() {}\n/// L2\n#[tokio::test]\nasync fn d() {}";
    let found = tests(source);
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "c", "d"]);
    assert_eq!(found.into_iter().map(|(_, items)| items).collect::<Vec<_>>(), [vec![('G', 1)], vec![], vec![('L', 2)]]);
}
