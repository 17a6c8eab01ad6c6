//! What the process ends with. This is the one place that says so; `--help` shows it.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Ok,
    /// Something was looked at and is not as it should be.
    Problems,
    /// Two things were compared and differ: `plan`, `diff`.
    Differs,
    /// The command line itself is wrong.
    Usage,
    /// The command could not do its work: a file cannot be written, an address is taken.
    Failed,
    /// The bus went away; whoever started the process should start it again.
    BusAway,
}

/// For `--help`.
pub const HELP: &str = "\
Exit codes:
   0  done, nothing wrong
   1  problems were found
   2  there is a difference (`plan`, `diff`, `replay`, `shadow`)
   3  the command could not do its work
  64  wrong use of the command line
  75  the bus went away: start the process again";

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Problems => 1,
            Exit::Differs => 2,
            Exit::Usage => 64,
            Exit::Failed => 3,
            Exit::BusAway => 75,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_help() {
        for exit in [Exit::Ok, Exit::Problems, Exit::Differs, Exit::Usage, Exit::Failed, Exit::BusAway] {
            assert!(HELP.lines().any(|line| line.starts_with(&format!("  {:>2}  ", exit.code()))), "{exit:?}");
        }
    }
}
