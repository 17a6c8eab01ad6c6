//! `vejas data`: the data folder when it is damaged, or might be. What is found and mended is decided in `bus::embedded::salvage`.

use std::io::{self, BufRead, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::exit::Exit;
use super::output;
use crate::bus::embedded::salvage::{self, Error, Exported, Report, Selection, Verdict};
use crate::bus::embedded::{OpenError, Options};
use crate::ports::clock::Clock;
use crate::runtime::clock::SystemClock;

/// Looks at the data folder, mends it, gets messages out of it. No process may run on it.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Reads every byte and says what is damaged and what is lost by it. Changes nothing.
    ///
    /// Ends with 0 when everything that was acknowledged is there, 1 when something is damaged, 3 when the folder cannot be looked at.
    Check {
        #[arg(long, value_enum, default_value_t = Output::Human)]
        output: Output,
        #[command(flatten)]
        folder: Folder,
    },
    /// Gives up what is lost, so that `vejas run` starts again with all the rest.
    ///
    /// Says what is given up before it does. Writes a new database from all that can be read, which needs as much room again,
    /// and a report beside it, `repair-<time>.json`. Sequences are never given out twice. Ends with 0 when the folder is sound
    /// afterwards, 1 when nothing was done because nobody agreed.
    Repair {
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        /// Do not keep the damaged database as `bus.damaged-<time>`.
        #[arg(long)]
        no_backup: bool,
        #[command(flatten)]
        folder: Folder,
    },
    /// Writes messages, one JSON object a line, also from a damaged folder: what cannot be read is left out and named.
    ///
    /// Each line has `stream`, `sequence`, `subject`, `time`, `headers`, and the payload as `text`, or as `base64` when it is
    /// no text. Ends with 1 when the folder has lost something.
    Export {
        /// Only this stream.
        #[arg(long)]
        stream: Option<String>,
        /// The first sequence.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// The last sequence.
        #[arg(long)]
        to: Option<u64>,
        /// A subject or a pattern (`orders.*`).
        #[arg(long)]
        subject: Option<String>,
        #[command(flatten)]
        folder: Folder,
    },
}

#[derive(Debug, ClapArgs)]
struct Folder {
    /// Where the embedded bus keeps messages and state.
    #[arg(long, alias = "data", env = "VEJAS_DATA_DIR", default_value = ".vejas")]
    data_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Human,
    /// One JSON document.
    Json,
}

pub fn run(args: Args) -> Exit {
    let done = match args.verb {
        Verb::Check { output, folder } => check(&folder, output),
        Verb::Repair { yes, no_backup, folder } => repair(&folder, yes, !no_backup),
        Verb::Export { stream, from, to, subject, folder } => export(&folder, &Selection { stream, from, to, subject }),
    };
    done.unwrap_or_else(|error| {
        match &error {
            // Who closed the pipe does not want the rest.
            Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return Exit::Ok,
            Error::Open(in_use @ OpenError::InUse { .. }) => {
                output::error(&format!("vejas: {in_use}: stop it first"));
            }
            Error::Io { path, source } | Error::Open(OpenError::Io { path, source }) => {
                output::error(&format!("vejas: {}: {source}", path.display()));
            }
            error => output::error(&format!("vejas: {error}")),
        }
        Exit::Failed
    })
}

/// A line on a terminal that is written over, about every second.
struct Line {
    last: Duration,
    shown: bool,
}

impl Line {
    const EVERY: Duration = Duration::from_secs(1);

    fn new() -> Self {
        Line { last: SystemClock.monotonic(), shown: false }
    }

    fn tell(&mut self, what: &str, done: u64) {
        let now = SystemClock.monotonic();
        if now.saturating_sub(self.last) < Self::EVERY || !io::stderr().is_terminal() {
            return;
        }
        (self.last, self.shown) = (now, true);
        let _ = write!(io::stderr(), "\rlooking at the data folder: {done} {what}");
    }

    fn end(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn check(folder: &Folder, output: Output) -> Result<Exit, Error> {
    let mut line = Line::new();
    let report = salvage::check(&folder.data_dir, &mut |what, done, _| line.tell(what, done));
    line.end();
    let report = report?;
    match output {
        Output::Human => {
            output::line(report.to_string().trim_end());
            if report.verdict == Verdict::Damaged {
                output::line(
                    "\n`vejas run` refuses this folder. Put back a copy of it, or run `vejas data repair` to go on without what is lost.",
                );
            }
        }
        Output::Json => output::line(&serde_json::to_string_pretty(&report).unwrap_or_default()),
    }
    Ok(if report.verdict == Verdict::Damaged { Exit::Problems } else { Exit::Ok })
}

fn agree(report: &Report, yes: bool, keep_backup: bool) -> bool {
    output::line(report.to_string().trim_end());
    output::line(if keep_backup {
        "\nA new database is written from all that can be read; the damaged one is kept beside it."
    } else {
        "\nA new database is written from all that can be read; the damaged one is deleted."
    });
    if yes {
        return true;
    }
    if !io::stdin().is_terminal() {
        output::error("vejas: nobody is there to ask; repeat with --yes to give up what is lost");
        return false;
    }
    let _ = write!(io::stderr(), "Give up what is lost? [y/N] ");
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    matches!(answer.trim(), "y" | "Y" | "yes")
}

fn repair(folder: &Folder, yes: bool, keep_backup: bool) -> Result<Exit, Error> {
    let options = Options::new(&folder.data_dir, Arc::new(SystemClock));
    let mut line = Line::new();
    let mut ask = |report: &Report| agree(report, yes, keep_backup);
    let done = salvage::repair(&options, keep_backup, &mut ask, &mut |what, done, _| line.tell(what, done));
    line.end();
    let Some(repaired) = done? else {
        output::error("vejas: nothing was changed");
        return Ok(Exit::Problems);
    };
    if repaired.report.verdict != Verdict::Damaged {
        output::line(repaired.report.to_string().trim_end());
        output::line("There is nothing to repair.");
        return Ok(Exit::Ok);
    }
    output::line(&format!("\nRepaired. The report is in {}.", repaired.report_file.display()));
    if let Some(backup) = repaired.backup {
        output::line(&format!("The damaged database is in {}; delete it when you need it no more.", backup.display()));
    }
    Ok(Exit::Ok)
}

fn json_line(exported: &Exported<'_>) -> Value {
    let message = exported.message;
    let headers: serde_json::Map<String, Value> =
        message.headers.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let mut line = json!({
        "stream": exported.stream,
        "sequence": message.sequence,
        "subject": message.subject,
        "time": message.time.to_string(),
        "headers": headers,
    });
    match std::str::from_utf8(&message.payload) {
        Ok(text) => line["text"] = text.into(),
        Err(_) => line["base64"] = STANDARD.encode(&message.payload).into(),
    }
    line
}

fn export(folder: &Folder, selection: &Selection) -> Result<Exit, Error> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut line = Line::new();
    let mut write = |exported: Exported<'_>| writeln!(out, "{}", json_line(&exported));
    let report = salvage::export(&folder.data_dir, selection, &mut write, &mut |what, done, _| line.tell(what, done));
    out.flush().map_err(Error::Output)?;
    line.end();
    let report = report?;
    if report.lost.is_nothing() {
        return Ok(Exit::Ok);
    }
    output::error(&format!(
        "vejas: the folder is damaged; lost, whatever was selected:\n{}",
        report.lost.to_string().trim_end()
    ));
    Ok(Exit::Problems)
}
