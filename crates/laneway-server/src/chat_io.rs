use std::io::{BufRead, IsTerminal};

use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

/// Lines from a terminal, with editing and history, or from a pipe.
pub enum Input {
    Terminal(Box<DefaultEditor>),
    Pipe,
}

/// What came in.
pub enum Line {
    Text(String),
    End,
}

impl Input {
    /// Reads stdin, as a terminal if it is one.
    pub fn open() -> Result<Self> {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            return Ok(Self::Terminal(Box::new(DefaultEditor::new()?)));
        }
        Ok(Self::Pipe)
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line; a terminal's Ctrl-C clears the line that is being written.
    pub fn next(&mut self) -> Result<Line> {
        let Self::Terminal(editor) = self else {
            let mut line = String::new();
            let count = std::io::stdin().lock().read_line(&mut line).context("stdin cannot be read as text")?;
            let text = line.trim_end_matches(['\r', '\n']).to_owned();
            return Ok(if count == 0 { Line::End } else { Line::Text(text) });
        };
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    // Only an out-of-memory history refuses a line, and a chat goes on without it.
                    drop(editor.add_history_entry(line.as_str()));
                    return Ok(Line::Text(line));
                }
                Err(ReadlineError::Interrupted) => eprintln!("(Ctrl-D ends)"),
                Err(ReadlineError::Eof) => return Ok(Line::End),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
