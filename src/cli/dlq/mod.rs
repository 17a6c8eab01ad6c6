//! `vejas dlq`: dead letters for the person at the keyboard. What happens to them is decided in `runtime::dead_letters`.

mod door;
mod editor;
mod remote;
mod show;

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use super::exit::Exit;
use super::{output, status};
use crate::manifest::value::Rate;
use crate::ports::clock::Clock;
use crate::runtime::clock::SystemClock;
use crate::runtime::dead_letters::view::{Edited, Field, Page, Purge, Replay, Replayed};
use crate::runtime::dead_letters::{self, PAGE_LETTERS_MAX, Selection, edit};
use door::{Door, Error, Where};

/// Looks at dead letters, edits, replays and purges them.
///
/// Asks the running process; without one it opens the data folder.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists dead letters in the order of failure, a page at a time.
    List {
        #[command(flatten)]
        filter: Filter,
        /// The first sequence to look at.
        #[arg(long)]
        from: Option<u64>,
        /// Letters shown at most, 1 to 1000.
        #[arg(long, default_value_t = dead_letters::PAGE_LETTERS_DEFAULT)]
        limit: usize,
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
        #[command(flatten)]
        at: Where,
    },
    /// Shows one dead letter: the error with its position, headers, payload.
    Show {
        sequence: u64,
        /// Write the payload's bytes as they are, and nothing else.
        #[arg(long)]
        raw: bool,
        #[command(flatten)]
        at: Where,
    },
    /// Changes the payload of one dead letter, in $VISUAL or $EDITOR, or field by field.
    ///
    /// The edited letter gets a new sequence and keeps its history.
    Edit {
        sequence: u64,
        /// A field of a JSON payload and its new value as JSON: `--set order.net=19.5 --set 'id="A-1"'`.
        #[arg(long, value_name = "PATH=JSON", value_parser = field)]
        set: Vec<Field>,
        #[command(flatten)]
        at: Where,
    },
    /// Sends dead letters back to the unit that failed, and to no other.
    ///
    /// A letter is gone when its replay is stored. What fails again comes back with its history.
    Replay {
        #[command(flatten)]
        target: Target,
        /// How fast: `100/s`, `30/m`, `5/h`.
        #[arg(long, value_parser = rate)]
        rate: Option<String>,
        /// Show what would be replayed, and change nothing.
        #[arg(long)]
        dry_run: bool,
        /// Replay this many at most.
        #[arg(long)]
        limit: Option<usize>,
        #[command(flatten)]
        at: Where,
    },
    /// Removes dead letters for good.
    Purge {
        #[command(flatten)]
        target: Target,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        at: Where,
    },
}

#[derive(Debug, Default, ClapArgs)]
struct Filter {
    /// The unit that failed: `flow/price`, or only the name.
    #[arg(long)]
    unit: Option<String>,
    /// The code of the failure.
    #[arg(long)]
    code: Option<String>,
    /// Failed last at or after this time: RFC 3339, or how long ago (`2h`).
    #[arg(long)]
    since: Option<String>,
    /// Failed last before this time.
    #[arg(long)]
    until: Option<String>,
    /// Occurs, as it is written, in the payload, the error or the id.
    #[arg(long)]
    text: Option<String>,
}

impl Filter {
    fn selection(self) -> Selection {
        let Filter { unit, code, since, until, text } = self;
        Selection { unit, code, since, until, text, ..Selection::default() }
    }
}

/// One letter, those that a filter selects, or all.
#[derive(Debug, ClapArgs)]
struct Target {
    /// One letter.
    sequence: Option<u64>,
    #[command(flatten)]
    filter: Filter,
    /// All there are.
    #[arg(long, conflicts_with = "sequence")]
    all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn field(text: &str) -> Result<Field, String> {
    let (path, value) = text.split_once('=').ok_or("write a path, `=` and a value in JSON")?;
    let value = serde_json::value::RawValue::from_string(value.to_owned())
        .map_err(|error| format!("the value is no JSON ({error}); a text needs quotes: '{path}=\"…\"'"))?;
    Ok(Field { path: path.to_owned(), value })
}

fn rate(text: &str) -> Result<String, String> {
    Rate::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

pub(super) fn main(args: Args) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::error(&format!("vejas: {error}"));
            return Exit::Failed;
        }
    };
    runtime.block_on(run(args.verb)).unwrap_or_else(|error| {
        output::error(&format!("vejas: {error}"));
        exit_of(&error)
    })
}

fn exit_of(error: &Error) -> Exit {
    use remote::RemoteError::{Client, Refused};
    match error {
        Error::Usage(_) | Error::Remote(Client(status::Error::Server { .. } | status::Error::Certificates { .. })) => {
            Exit::Usage
        }
        Error::Letters(dead_letters::Error::NotFound { .. } | dead_letters::Error::Gone { .. }) => Exit::Problems,
        Error::Letters(dead_letters::Error::Selection(_) | dead_letters::Error::Everything) => Exit::Usage,
        Error::Remote(Refused { status: 404 | 409, .. }) => Exit::Problems,
        Error::Remote(Refused { status: 400, .. }) => Exit::Usage,
        _ => Exit::Failed,
    }
}

async fn run(verb: Verb) -> Result<Exit, Error> {
    match verb {
        Verb::List { filter, from, limit, output, at } => {
            let limit = limit.clamp(1, PAGE_LETTERS_MAX);
            let page = list(&at.open().await?, Selection { from, ..filter.selection() }, limit).await?;
            print(&match output {
                Output::Table => show::list(&page),
                Output::Json => {
                    format!("{}\n", serde_json::to_string_pretty(&page).expect("numbers and texts are JSON"))
                }
            })?;
            Ok(Exit::Ok)
        }
        Verb::Show { sequence, raw, at } => {
            let door = at.open().await?;
            if raw {
                write(&door.payload(sequence).await?)?;
            } else {
                let detail = door.detail(sequence).await?;
                print(&show::letter(&detail, &door.payload(sequence).await?))?;
            }
            Ok(Exit::Ok)
        }
        Verb::Edit { sequence, set, at } => edit_one(&at.open().await?, sequence, &set).await,
        Verb::Replay { target, rate, dry_run, limit, at } => {
            let (select, all) = target.selection()?;
            let replay = Replay { select, rate, dry_run, all };
            replay_all(&at.open().await?, replay, limit).await
        }
        Verb::Purge { target, yes, at } => {
            let (select, all) = target.selection()?;
            if all && !yes && !confirmed("Remove every dead letter for good?")? {
                return Ok(Exit::Problems);
            }
            purge_all(&at.open().await?, Purge { select, all }).await
        }
    }
}

/// One page for a person: a filter that matches little is asked on until the page is full or nothing is left.
async fn list(door: &Door, mut select: Selection, limit: usize) -> Result<Page, Error> {
    let mut page = Page { letters: Vec::new(), next: select.from, through: 0 };
    loop {
        select.limit = Some(limit - page.letters.len());
        let more = door.page(&select).await?;
        page.letters.extend(more.letters);
        (page.next, page.through) = (more.next, more.through);
        if page.next.is_none() || page.letters.len() >= limit {
            return Ok(page);
        }
        (select.from, select.through) = (page.next, Some(page.through));
    }
}

impl Target {
    fn selection(self) -> Result<(Selection, bool), Error> {
        let select = Selection { sequence: self.sequence, ..self.filter.selection() };
        match (select.is_everything(), self.all) {
            (true, false) => Err(Error::Usage("name a dead letter or a filter, or say --all".to_owned())),
            (false, true) => Err(Error::Usage("--all and a filter contradict each other".to_owned())),
            _ => Ok((select, self.all)),
        }
    }
}

async fn edit_one(door: &Door, sequence: u64, set: &[Field]) -> Result<Exit, Error> {
    let before = door.payload(sequence).await?;
    let Edited { sequence: new } = if set.is_empty() {
        let draft = editor::Draft::write(sequence, &before)?;
        let after = draft.edit(&before)?;
        if after == before {
            output::line("nothing was changed");
            return Ok(Exit::Ok);
        }
        match door.edit(sequence, after.into()).await {
            Ok(edited) => edited,
            Err(error) => {
                output::error(&format!("what you wrote is in {}", draft.keep().display()));
                return Err(error);
            }
        }
    } else {
        door.edit(sequence, edit::set(&before, set)?.into()).await?
    };
    output::line(&format!("dead letter {sequence} is now {new}; replay it with: vejas dlq replay {new}"));
    Ok(Exit::Ok)
}

/// Page after page, each as fast as the rate allows. A stop in between leaves whole letters on either side.
async fn replay_all(door: &Door, mut replay: Replay, limit: Option<usize>) -> Result<Exit, Error> {
    let (mut count, mut refused) = (0, 0);
    loop {
        let left = limit.map_or(PAGE_LETTERS_MAX, |limit| limit - count);
        if left == 0 {
            break;
        }
        replay.select.limit = Some(left.min(PAGE_LETTERS_MAX));
        let began = SystemClock.monotonic();
        let replayed = door.replay(&replay).await.inspect_err(|_| {
            if count > 0 {
                output::error(&format!("{count} replayed, then:"));
            }
        })?;
        let Replayed { letters, refused: not, next, through, pause_seconds } = replayed;
        count += letters.len();
        refused += not.len();
        if replay.dry_run {
            print(&show::letters(&letters))?;
        }
        for one in &not {
            output::error(&format!("dead letter {}: {}", one.sequence, one.reason));
        }
        let Some(next) = next else { break };
        replay.select.from = Some(next);
        replay.select.through = Some(through);
        let took = SystemClock.monotonic().saturating_sub(began);
        if limit.is_none_or(|limit| count < limit) && pause_seconds > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(pause_seconds).saturating_sub(took)).await;
        }
    }
    let would = if replay.dry_run { "would be " } else { "" };
    let not = if refused > 0 { format!(", {refused} refused") } else { String::new() };
    output::line(&format!("{count} {would}replayed{not}"));
    Ok(if refused > 0 { Exit::Problems } else { Exit::Ok })
}

async fn purge_all(door: &Door, mut purge: Purge) -> Result<Exit, Error> {
    purge.select.limit = Some(PAGE_LETTERS_MAX);
    let mut removed = 0;
    loop {
        let purged = door.purge(&purge).await?;
        removed += purged.removed;
        let Some(next) = purged.next else { break };
        purge.select.from = Some(next);
        purge.select.through = Some(purged.through);
    }
    output::line(&format!("{removed} removed"));
    Ok(Exit::Ok)
}

fn confirmed(question: &str) -> Result<bool, Error> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Error::Usage("without a terminal to ask on, --all needs --yes".to_owned()));
    }
    print(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(|error| Error::Io(error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn print(text: &str) -> Result<(), Error> {
    write(text.as_bytes())
}

fn write(bytes: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // `vejas dlq list | head` is no error.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Error::Io(format!("cannot write the answer: {error}"))),
    }
}
