//! Printing: a closed pipe ends the output and nothing else.

use std::io::{self, IsTerminal, Write};

/// Writes text and a newline to the standard output.
pub fn line(text: &str) {
    // Who closed the pipe does not want the rest.
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Writes text and a newline to the standard error.
pub fn error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Colour on a terminal, unless `NO_COLOR` is set to something.
pub fn colour() -> bool {
    io::stdout().is_terminal() && super::run::environment("NO_COLOR").is_none_or(|value| value.is_empty())
}
