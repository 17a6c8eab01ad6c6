//! The worker of a source in a world: pages of two messages, one message a batch, contents that differ from run to run.

use crate::protocol::fence::{Resume, resume};
use crate::protocol::mutant::Mutant;
use crate::protocol::record::{Position, Run, Sequence};

/// Messages of a page.
pub const PAGE_MESSAGES: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worker {
    pub run: Run,
    pub page: u64,
    pub off: u64,
    /// A batch was handed over and its fate is not told.
    pub waits: bool,
    flaw: bool,
}

impl Worker {
    pub fn start(epoch: Sequence, position: Option<&Position>, mutant: Option<Mutant>) -> Self {
        let flaw = mutant == Some(Mutant::RunNamesPageOnly);
        let run = Run { opening: if flaw { Sequence(0) } else { epoch }, counter: 0 };
        let mut worker = Worker { run, page: 0, off: 0, waits: false, flaw };
        worker.goes_on(None, position);
        worker
    }

    fn goes_on(&mut self, in_memory: Option<Run>, position: Option<&Position>) {
        let in_memory = if self.flaw { Some(Run { opening: Sequence(0), counter: 0 }) } else { in_memory };
        match resume(in_memory, position, false) {
            Resume::Begin => self.again(in_memory, 0),
            Resume::Continue { off } => {
                if let Some(position) = position {
                    self.page = position.page;
                }
                self.off = off;
            }
            Resume::Again { page } => self.again(in_memory, page),
            // What follows may be in memory already.
            Resume::Advance { page } => self.again(in_memory, page + 1),
        }
        self.waits = false;
    }

    /// The run in memory of this page begins again at its first message; without one it is run anew.
    fn again(&mut self, in_memory: Option<Run>, page: u64) {
        if in_memory.is_some() && self.page == page { self.off = 0 } else { self.begin(page) }
    }

    fn begin(&mut self, page: u64) {
        self.page = page;
        self.off = 0;
        if !self.flaw {
            self.run.counter += 1;
        }
    }

    pub fn written(&mut self) {
        self.waits = false;
        self.off += 1;
        if self.off == PAGE_MESSAGES {
            self.begin(self.page + 1);
        }
    }

    pub fn rewind(&mut self, position: Option<&Position>) {
        self.goes_on(Some(self.run), position);
    }

    /// The position that stands for the next batch.
    pub fn next(&self) -> Position {
        let off = self.off + 1;
        Position { run: self.run, page: self.page, off, done: off == PAGE_MESSAGES, state: [].into() }
    }
}
