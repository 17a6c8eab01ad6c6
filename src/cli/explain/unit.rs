//! `vejas explain UNIT`: what a unit does and what it guarantees when something goes wrong, from its manifest alone.
//!
//! Every sentence here is a promise that a test of the runtime keeps; what depends on a setting is said for the value the
//! manifest has. Nothing is asked of a running process.

mod flow;
mod sink;

use std::fmt::Write;

use crate::id::UnitKind;
use crate::manifest::check::CheckedManifest;
use crate::manifest::connector::interval::{Interval, MISSED_SLOTS_MAX, OnMissed};
use crate::manifest::http_in::{Auth, HttpIn};
use crate::manifest::source::Source;
use crate::manifest::value::{OneOrMany, Pattern, StartFrom};
use crate::manifest::{Manifest, Spec};

/// Width of a line of text, in characters.
const WIDTH_CHARS: usize = 100;
/// Where the second column begins.
const COLUMN_CHARS: usize = 16;

/// What there is to say of one unit.
#[derive(Debug, Default)]
struct Page {
    does: Vec<String>,
    /// How often a message passes, and in which order messages do.
    delivery: String,
    order: String,
    kill: String,
    machine: String,
    away: String,
    full: String,
    restart: String,
    poison: String,
}

/// The page of a manifest that runs something.
pub(super) fn text(checked: &CheckedManifest) -> Option<String> {
    let id = checked.manifest.unit()?;
    let page = page(&checked.manifest)?;
    let digest: String = checked.digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let mut text = format!("{id}  ({}:{}, digest {digest})\n\n", checked.file.display(), checked.line);
    for sentence in &page.does {
        wrap(&mut text, "", sentence, 0);
    }
    text.push_str("\nGuarantees\n");
    wrap(&mut text, "  delivery", &page.delivery, COLUMN_CHARS);
    wrap(&mut text, "  order", &page.order, COLUMN_CHARS);
    let away = if id.kind == UnitKind::Sink { "  receiver away" } else { "  readers away" };
    text.push_str("\nWhen something goes wrong\n");
    for (fault, what) in [
        ("  kill -9", &page.kill),
        ("  machine stops", &page.machine),
        (away, &page.away),
        ("  bus full", &page.full),
        ("  restart", &page.restart),
        ("  poison message", &page.poison),
    ] {
        wrap(&mut text, fault, what, COLUMN_CHARS + 2);
    }
    Some(text)
}

fn page(manifest: &Manifest) -> Option<Page> {
    match &manifest.spec {
        Spec::HttpIn(entrance) => Some(http_in(entrance)),
        Spec::Source(source @ Source { interval: Some(interval), .. }) => Some(self::interval(source, interval)),
        Spec::Flow(flow) => Some(flow::page(flow)),
        Spec::Sink(sink) => sink::page(manifest.name(), sink),
        Spec::Source(_) | Spec::Table(_) | Spec::Schema(_) | Spec::Test(_) => None,
    }
}

/// A column of `label`, then the sentence, broken at spaces.
fn wrap(text: &mut String, label: &str, sentence: &str, column: usize) {
    let mut line = format!("{label:column$}");
    let mut is_empty = true;
    for word in sentence.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH_CHARS {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(column);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

fn reads(from: &OneOrMany<Pattern>) -> String {
    let subjects: Vec<&str> = from.as_slice().iter().map(Pattern::as_str).collect();
    format!("Reads {}", subjects.join(", "))
}

fn begins(start: StartFrom) -> String {
    let from = match start {
        StartFrom::End => "at the end: what was stored before its first start is not read".to_owned(),
        StartFrom::First => "at the first message that is still held".to_owned(),
        StartFrom::Sequence(sequence) => format!("at sequence {sequence}"),
        StartFrom::Time(time) => format!("at what was stored from {time} on"),
    };
    format!("Goes on where it stopped. A new unit begins {from}.")
}

fn http_in(entrance: &HttpIn) -> Page {
    let who = match &entrance.auth {
        None | Some(Auth::None {}) => "anybody who reaches it",
        Some(Auth::Bearer { .. }) => "whoever has the token",
        Some(Auth::Basic { .. }) => "whoever has the password",
        Some(Auth::Hmac(_)) => "whoever can sign the body",
    };
    let methods: Vec<String> = entrance.methods.iter().map(|method| format!("{method:?}").to_uppercase()).collect();
    let mut does = vec![format!(
        "Takes {} {} from {who} and stores each body (at most {}) as one message under {}.",
        methods.join(", "),
        entrance.path,
        bytesize::ByteSize(entrance.max_body_bytes.0),
        entrance.to,
    )];
    if let Some(schema) = &entrance.schema {
        does.push(format!("A body that does not match the schema {schema} is answered 422 and not stored."));
    }
    Page {
        does,
        delivery:
            "Answered 200 means stored, once. A request without an answer may have been stored or not: sent again \
                   with the same Idempotency-Key within two minutes it is stored once; without that header it is \
                   stored twice."
                .to_owned(),
        order: "As the requests were answered.".to_owned(),
        kill: "Nothing that was answered 200 is lost. Requests under way get no answer.".to_owned(),
        machine: "The same: it answers only after the message is forced to disk.".to_owned(),
        away: "Nothing changes here: messages wait on disk for those who read them.".to_owned(),
        full: "Answers 503 with the reason, and takes requests again by itself when there is room.".to_owned(),
        restart: "On SIGTERM it closes first; requests under way are answered. Idempotency keys are remembered."
            .to_owned(),
        poison: match &entrance.schema {
            Some(schema) => format!("Answered 422 when the schema {schema} does not allow it; the sender is told why."),
            None => "Not looked at: without a schema any body is stored, and fails where it is first read.".to_owned(),
        },
    }
}

fn interval(source: &Source, interval: &Interval) -> Page {
    let grid = match (&interval.every, &interval.cron) {
        (Some(every), _) => format!("every {every}"),
        (None, cron) => format!(
            "at the times of {:?} in {}",
            cron.as_deref().unwrap_or_default(),
            interval.time_zone.as_deref().unwrap_or("UTC")
        ),
    };
    let missed = match interval.on_missed {
        OnMissed::Skip => "Slots that passed meanwhile are left out (onMissed: skip).".to_owned(),
        OnMissed::FireOnce => {
            "Of the slots that passed meanwhile the newest is made up for (onMissed: fireOnce).".to_owned()
        }
        OnMissed::FireAll => {
            format!(
                "Slots that passed meanwhile are made up for, the newest {MISSED_SLOTS_MAX} at most (onMissed: fireAll)."
            )
        }
    };
    Page {
        does: vec![format!("Stores one message {grid} under {}.", source.to)],
        delivery:
            "At most one message per slot, also across restarts and changes of the clock: the message and its place \
                   are one commit."
                .to_owned(),
        order: "By slot.".to_owned(),
        kill: format!("No slot is doubled. {missed}"),
        machine: format!("The same: a slot counts once it is forced to disk. {missed}"),
        away: "Nothing changes here: messages wait on disk for those who read them.".to_owned(),
        full: "It waits and tries again; when there is room, slots that passed are treated as missed.".to_owned(),
        restart: missed,
        poison: "There is none: it makes its messages itself.".to_owned(),
    }
}
