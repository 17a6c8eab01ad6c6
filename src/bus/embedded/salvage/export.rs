//! The messages of a directory, also of a damaged one: what cannot be read is passed over and named.

use std::path::Path;

use super::check::{Counter, is_held, look};
use super::holdings::{Heads, Piece, Visitor, walk};
use super::{Error, Progress, Report};
use crate::flow::message::Stored;
use crate::id::subject_matches;

/// Which messages.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// All streams when there is none.
    pub stream: Option<String>,
    pub from: u64,
    /// With this sequence; none is all.
    pub to: Option<u64>,
    /// A subject or a pattern.
    pub subject: Option<String>,
}

/// A message and the stream it is in.
#[derive(Debug)]
pub struct Exported<'a> {
    pub stream: &'a str,
    pub message: &'a Stored,
}

struct Export<'a> {
    selection: &'a Selection,
    keep_unlisted: bool,
    out: &'a mut dyn FnMut(Exported<'_>) -> std::io::Result<()>,
}

impl Visitor for Export<'_> {
    fn heads(&mut self, heads: &Heads) -> Result<(), Error> {
        match &self.selection.stream {
            Some(wanted) if !heads.names.streams.values().any(|name| name == wanted) => {
                Err(Error::NoStream(wanted.clone()))
            }
            _ => Ok(()),
        }
    }

    fn piece(&mut self, heads: &Heads, piece: &Piece) -> Result<(), Error> {
        let Some(chunk) = piece.chunk.as_ref().filter(|_| is_held(heads, piece, self.keep_unlisted)) else {
            return Ok(());
        };
        let stream = heads.names.stream(piece.stream);
        let Selection { stream: wanted, from, to, subject } = self.selection;
        let to = to.unwrap_or(u64::MAX);
        if wanted.as_ref().is_some_and(|wanted| *wanted != stream) || chunk.last < *from || chunk.first > to {
            return Ok(());
        }
        for at in 0..chunk.count() {
            let Ok(message) = chunk.message(at) else { continue };
            let inside = (*from..=to).contains(&message.sequence);
            if inside && subject.as_ref().is_none_or(|subject| subject_matches(subject, &message.subject)) {
                (self.out)(Exported { stream: &stream, message: &message }).map_err(Error::Output)?;
            }
        }
        Ok(())
    }
}

/// Gives out the selected messages, stream by stream in order. Answers what the folder has lost, whatever was selected.
pub fn export(
    data_dir: &Path,
    selection: &Selection,
    out: &mut dyn FnMut(Exported<'_>) -> std::io::Result<()>,
    progress: Progress<'_>,
) -> Result<Report, Error> {
    let (_lock, mut survey, overlay) = look(data_dir)?;
    let mut counter = Counter::new(&survey);
    let mut export = Export { selection, keep_unlisted: counter.keep_unlisted, out };
    let (heads, holes) = walk(&survey, &overlay, &mut [&mut counter, &mut export], progress)?;
    counter.conclude(&heads, &holes, &overlay, &mut survey.report);
    Ok(survey.report)
}
