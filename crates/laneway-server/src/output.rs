use std::io::{ErrorKind, Write};

use anyhow::Result;
use tracing_subscriber::EnvFilter;

/// Logs to stderr what `filter` or else `RUST_LOG` asks for, else errors only.
pub fn log_to_stderr(filter: Option<&str>) {
    let filter = match filter {
        Some(filter) => EnvFilter::builder().parse_lossy(filter),
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error")),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// Writes to stdout; a reader that has left is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// An error and its causes on one line, each said once.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        let cause = cause.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// A number of bytes for people: three digits and a decimal unit.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.5 {
            return match unit {
                "B" => format!("{count} B"),
                _ if value < 9.995 => format!("{value:.2} {unit}"),
                _ if value < 99.95 => format!("{value:.1} {unit}"),
                _ => format!("{value:.0} {unit}"),
            };
        }
        value /= 1000.0;
    }
    format!("{value:.2} TB")
}

/// A whole number with thousands apart.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Rows as columns, two spaces apart; numbers given in `right` are aligned to the right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match right.contains(&column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// Characters of a text shown at most.
const MAX_TEXT: usize = 72;

/// Text from a file, on one line, without control characters a terminal would obey.
pub fn printable(text: &str) -> String {
    let mut out = String::new();
    for (at, character) in text.chars().enumerate() {
        if at == MAX_TEXT {
            out += &format!("… {} characters in all", text.chars().count());
            break;
        }
        match character {
            '\n' => out.push('⏎'),
            c if c.is_control() => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        let check = |count, expected: &str| assert_eq!(bytes(count), expected);
        check(0, "0 B");
        check(999, "999 B");
        check(1000, "1.00 kB");
        check(98_362_432, "98.4 MB");
        check(253_113_024, "253 MB");
        check(999_600, "1.00 MB");
        check(16_800_000_000, "16.8 GB");
    }

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("no such file").context("cannot read x: no such file").context("outer\n  line");
        assert_eq!(one_line(&error), "outer line: cannot read x: no such file");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "1".into()], vec!["bcd".into(), "22".into()]];
        assert_eq!(table(&rows, &[1]), "a     1\nbcd  22\n");
        assert_eq!(thousands(1_234_567), "1 234 567");
    }
}
