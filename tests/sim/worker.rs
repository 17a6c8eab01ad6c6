//! What runs while a member owns a unit: a source that stores pages in batches, each with its position, and acts now and then.

use crate::protocol::fence::{Resume, resume};
use crate::protocol::mutant::Mutant;
use crate::protocol::record::{Position, Run, Sequence};
use crate::protocol::{Batch, Moment};
use crate::store::Message;

/// Messages of a page. Batches have one or two, so a page is never one batch.
const PAGE_MESSAGES: u64 = 3;

/// A batch that was handed over and whose fate is not told.
#[derive(Debug, Clone)]
pub struct Hand {
    pub batch: Batch,
    pub position: Position,
    pub messages: Vec<Message>,
}

#[derive(Debug)]
pub struct Worker {
    /// Unlike that of any other worker of the run.
    pub number: u64,
    /// It may begin something before this moment.
    pub permit: Moment,
    pub stopping: bool,
    pub hand: Option<Hand>,
    /// Actions begun that have had no effect yet.
    pub acting: u64,
    pub rounds: u64,
    repeatable: bool,
    names_page_only: bool,
    opening: Sequence,
    runs: u64,
    run: Run,
    page: u64,
    off: u64,
    fetch: u64,
    batches: u64,
}

impl Worker {
    pub fn start(
        number: u64,
        epoch: Option<Sequence>,
        position: Option<&Position>,
        repeatable: bool,
        mutant: Option<Mutant>,
    ) -> Self {
        let names_page_only = mutant == Some(Mutant::RunNamesPageOnly);
        let mut worker = Worker {
            number,
            permit: Moment::PAST,
            stopping: false,
            hand: None,
            acting: 0,
            rounds: 0,
            repeatable,
            names_page_only,
            opening: epoch.unwrap_or(Sequence(0)),
            runs: 0,
            run: Run { opening: Sequence(0), counter: 0 },
            page: 0,
            off: 0,
            fetch: 0,
            batches: 0,
        };
        worker.fetch(0);
        let in_memory = names_page_only.then_some(worker.run);
        worker.go_on(in_memory, position);
        worker
    }

    pub fn may_begin(&self, now: Moment) -> bool {
        !self.stopping && !self.permit.passed(now)
    }

    /// A new run, with content of its own unless that is a function of the position.
    fn fetch(&mut self, page: u64) {
        self.page = page;
        self.off = 0;
        self.runs += 1;
        if !self.names_page_only {
            self.run = Run { opening: self.opening, counter: self.runs };
        }
        self.fetch = if self.repeatable { 0 } else { self.number << 20 | self.runs };
    }

    fn go_on(&mut self, in_memory: Option<Run>, stored: Option<&Position>) {
        match resume(in_memory, stored, self.repeatable) {
            Resume::Begin if in_memory.is_some() && self.page == 0 => self.off = 0,
            Resume::Begin => self.fetch(0),
            Resume::Continue { off } => {
                if let Some(position) = stored {
                    self.page = position.page;
                    // The content is the same whoever fetches it: the run goes on as the one it is.
                    self.run = position.run;
                }
                self.off = off;
            }
            Resume::Again { page } if in_memory.is_some() && self.page == page => self.off = 0,
            Resume::Again { page } => self.fetch(page),
            Resume::Advance { page } => self.fetch(page + 1),
        }
        self.hand = None;
    }

    pub fn next(&mut self, wanted: u64) -> Hand {
        let end = (self.off + wanted).min(PAGE_MESSAGES);
        let messages = (self.off..end).map(|off| Message { run: self.run, page: self.page, off, fetch: self.fetch });
        let messages = messages.collect();
        self.batches += 1;
        let position =
            Position { run: self.run, page: self.page, off: end, done: end == PAGE_MESSAGES, state: [].into() };
        let hand = Hand { batch: Batch(self.batches), position, messages };
        self.hand = Some(hand.clone());
        hand
    }

    /// `false`: it is not the batch in hand.
    pub fn written(&mut self, batch: Batch) -> bool {
        let Some(hand) = self.hand.take_if(|hand| hand.batch == batch) else { return false };
        self.off = hand.position.off;
        if hand.position.done {
            self.fetch(self.page + 1);
        }
        true
    }

    pub fn rewind(&mut self, stored: Option<&Position>) {
        self.go_on(Some(self.run), stored);
    }
}
