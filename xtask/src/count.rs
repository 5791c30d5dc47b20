use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::shown;

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    pub passed: u64,
    pub failed: u64,
}

impl Count {
    /// Adds what a line of a test program says: a summary of Rust's test harness, or `ok NAME` or `not ok NAME` for one check.
    fn read(&mut self, line: &str) {
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.passed += number_before(summary, " passed");
            self.failed += number_before(summary, " failed");
        } else if line.starts_with("ok ") {
            self.passed += 1;
        } else if line.starts_with("not ok ") {
            self.failed += 1;
        }
    }

    /// Runs a test program, shows its output, and adds its results.
    ///
    /// # Errors
    /// When the program fails; it then counts as at least one failed test.
    pub fn run(&mut self, command: &mut Command) -> Result<()> {
        let failed_before = self.failed;
        let mut child =
            command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", shown(command)))?;
        let stdout = child.stdout.take().expect("stdout was asked for");
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("cannot read the test program's output")?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            self.read(&line);
        }
        let status = child.wait().context("cannot wait for the test program")?;
        if !status.success() {
            self.failed = self.failed.max(failed_before + 1);
            bail!("{} ended with {status}", shown(command));
        }
        Ok(())
    }
}

fn number_before(text: &str, unit: &str) -> u64 {
    let number = text.split(unit).next().and_then(|head| head.split_whitespace().last());
    number.and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_and_checks_are_added_up() {
        let mut count = Count::default();
        count.read("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        count.read("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        count.read("ok a_whole_answer");
        count.read("test a::b ... ok");
        count.read("okay");
        count.read("not ok 3 - an empty file is refused");
        assert_eq!(count, Count { passed: 16, failed: 3 });
    }

    #[test]
    fn a_failing_program_counts_as_a_failed_test() {
        let mut count = Count::default();
        let mut shell = Command::new("sh");
        assert!(count.run(shell.args(["-c", "echo ok one; exit 1"])).is_err());
        assert_eq!(count, Count { passed: 1, failed: 1 });
    }
}
