//! What a sink does and guarantees, by its connector.

use super::{Page, begins, reads};
use crate::manifest::connector::file::{File, Format, Fsync};
use crate::manifest::connector::http::{BatchFormat, Http};
use crate::manifest::sink::Sink;

/// `None` for a manifest that was not checked: it has no connector.
pub(super) fn page(name: &str, sink: &Sink) -> Option<Page> {
    let common = Page {
        full: "It goes on: delivering makes room. When dead letters are full it pauses, so that none is lost.".to_owned(),
        restart: begins(sink.start_from),
        order: match &sink.order_by {
            Some(_) => "Kept among messages of the same key (orderBy): the next is sent after the one before it arrived. A key \
                        that fails holds back that key only, also across a restart."
                .to_owned(),
            None => String::new(),
        },
        ..Page::default()
    };
    let page = match sink {
        Sink { http: Some(http), .. } => self::http(name, sink, http, common),
        Sink { file: Some(file), .. } => self::file(sink, file, common),
        Sink { stdout: Some(stdout), .. } => self::stdout(sink, stdout.format, common),
        _ => return None,
    };
    Some(page)
}

fn http(name: &str, sink: &Sink, http: &Http, common: Page) -> Page {
    let method = format!("{:?}", http.method).to_uppercase();
    let mut does = vec![match &http.batch {
        None => format!("{} and sends each message as a {method} request.", reads(&sink.from)),
        Some(batch) => format!(
            "{} and sends up to {} messages or {} in one {method} request, as {}, after {} at the latest.",
            reads(&sink.from),
            batch.max_messages,
            bytesize::ByteSize(batch.max_bytes.0),
            match batch.format {
                BatchFormat::JsonArray => "a JSON array",
                BatchFormat::Ndjson => "one payload a line",
            },
            batch.max_wait,
        ),
    }];
    does.push(format!(
        "{} requests at once, each at most {} long{}.",
        http.concurrency,
        http.timeout,
        http.rate_limit.as_ref().map_or("", |_| ", no faster than rateLimit")
    ));
    let twice = match http.batch {
        None => format!(
            "A request whose answer was not stored is sent again, with the same Idempotency-Key (sink/{name}/<Vejas-Id>), by \
             which the receiver can drop it."
        ),
        Some(_) => "A request whose answer was not stored is sent again. Its Idempotency-Key stands for the messages in it; \
                    when they are batched differently the next time the key is another one, so the receiver has to drop \
                    doubled messages by what is in them."
            .to_owned(),
    };
    let (attempts, breaker) = (sink.retry.max_attempts, &http.breaker);
    Page {
        does,
        delivery: format!("At least once. {twice}"),
        order: or(
            common.order,
            "Not kept: requests run side by side, and what failed comes later. orderBy keeps it by key.",
        ),
        kill: format!("Nothing is lost. {twice}"),
        machine: "The same: what was acknowledged to the bus had been answered 2xx.".to_owned(),
        away: format!(
            "After {} failures in a row nothing is sent for {}, then one message tries, with pauses up to {}. Messages wait \
             on disk; an outage uses up no attempts and makes no dead letters.",
            breaker.failures, breaker.pause, breaker.max_pause
        ),
        restart: match sink.order_by {
            Some(_) => format!("{} Attempts are counted anew.", common.restart),
            None => common.restart,
        },
        poison: format!(
            "An answer that is final (4xx except 408, 425 and 429) makes a dead letter at once, bytes unchanged. What fails \
             alone in other ways, while others arrive, is tried {attempts} times with waits from {} to {}, then becomes \
             one.{}",
            sink.retry.backoff.initial,
            sink.retry.backoff.max,
            if http.batch.is_some() {
                " A refused batch is sent again message by message: only the bad ones go."
            } else {
                ""
            }
        ),
        ..common
    }
}

fn file(sink: &Sink, file: &File, common: Page) -> Page {
    let what = form(file.format);
    let mut does = vec![format!("{} and appends {what} as a line to {}.", reads(&sink.from), file.path.0)];
    if let Some(keep) = file.rotate.as_ref().and_then(|rotate| rotate.keep) {
        does.push(format!("Of the rotated files only {keep} are kept: older lines are deleted (rotate.keep)."));
    }
    let twice = "A line that was written and not yet acknowledged is written again.";
    Page {
        does,
        delivery: format!("At least once. {twice}"),
        order: or(common.order, "As messages are stored, except those that had to be tried again."),
        kill: format!("Nothing is lost. {twice} A line cut short is ended by a newline before the next."),
        machine: match file.fsync {
            Fsync::Always => "The same: a message is acknowledged after its line is forced to disk (fsync: always).".to_owned(),
            Fsync::Never => "LINES MAY BE LOST: messages are acknowledged when their line is with the operating system \
                             (fsync: never), and are not written again. fsync: always excludes it."
                .to_owned(),
        },
        away: "A disk that is full or a folder that cannot be written is tried again with growing pauses; messages wait on \
               the bus and no attempts are used up."
            .to_owned(),
        poison: lines_poison(sink),
        ..common
    }
}

fn stdout(sink: &Sink, format: Format, common: Page) -> Page {
    let twice = "A line that was written and not yet acknowledged is written again.";
    Page {
        does: vec![format!("{} and writes {} as a line to the standard output.", reads(&sink.from), form(format))],
        delivery: format!("At least once, as far as the pipe. {twice}"),
        order: or(common.order, "As messages are stored, except those that had to be tried again."),
        kill: format!("Nothing is lost before the pipe. {twice}"),
        machine:
            "WHAT THE READER OF THE PIPE HAD NOT STORED IS LOST: a message is acknowledged when its line is flushed."
                .to_owned(),
        away: "While nobody reads the pipe, messages wait on the bus.".to_owned(),
        poison: lines_poison(sink),
        ..common
    }
}

fn form(format: Format) -> &'static str {
    match format {
        Format::Payload => "each payload",
        Format::Envelope => "each message with subject, headers and payload",
    }
}

fn lines_poison(sink: &Sink) -> String {
    match sink.order_by {
        Some(_) => {
            "Any bytes can be written. A message whose orderBy fails becomes a dead letter, bytes unchanged.".to_owned()
        }
        None => format!(
            "Any bytes can be written. A line that fails alone, while others are written, is tried {} times, then its message \
             becomes a dead letter, bytes unchanged.",
            sink.retry.max_attempts
        ),
    }
}

fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text }
}
