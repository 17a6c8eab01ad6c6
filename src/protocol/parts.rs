//! Granted ranges: which version of a unit works on which message.
//!
//! One small record per unit, its [`Run`], cuts the stream's sequences into *parts*, each with the digest of the version that
//! works on it, and says up to where work is *granted*. Nobody works beyond that, and a new version can only begin beyond it:
//! so a sequence, once granted, has one version for ever, whoever works on it, however often, before and after a restart.
//!
//! The record is changed by compare-and-set only; this file says from what to what. Who stores it and who reads the stream is
//! not decided here. What it upholds, over any chain of records in which each was made from the one before (`cut-` ids as in
//! `src/protocol/README.md`):
//!
//! - cut-C2: a granted sequence has the same part in every later record, or lies below the first part and is finished.
//! - cut-C1: parts ascend in `from` and in `no`; a version that was replaced does not come back under an older number.
//! - cut-R3: what lies beyond `granted` is never finished without having been worked on.

use serde::{Deserialize, Serialize};

use crate::id::pattern_covers;

/// Parts one unit may have that are not worked off. More would only mean that something is stuck.
pub const PARTS_MAX: usize = 64;
/// How far beyond what is in hand a grant may reach, in messages that exist already.
pub const GRANTED_AHEAD_MAX: u64 = 1_024;

/// The stream that the sequences of a record count in. Another stream of the same name counts anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamIdentity {
    pub name: String,
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    pub created: i64,
}

/// Sequences from `from` up to the next part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub from: u64,
    /// The publication that brought it. A later publication has a higher number.
    pub no: u64,
    /// Hex digits of the version's digest. `None`: the unit is removed, and nothing is worked on.
    pub digest: Option<String>,
    /// Which durable of the unit hands its messages out.
    pub durable: u32,
    /// The sorted filters of that durable.
    pub reads: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub stream: StreamIdentity,
    /// The last sequence that may be worked on.
    pub granted: u64,
    /// The newest publication under which the record was written.
    pub seen: u64,
    /// Ascending, never empty.
    pub parts: Vec<Part>,
}

/// A version of a unit as a publication has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub digest: String,
    /// Sorted.
    pub reads: Vec<String>,
}

/// What is to be done with a message that a durable handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// Work on it under this part.
    Under(&'a Part),
    /// Acknowledge it without effect: it was finished before, or another durable hands it out as well.
    NotHere,
    /// A grant is needed first.
    Ungranted,
    /// The unit is removed: leave it where it is.
    Parked,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("publication {no} is older than {seen}, which the unit has seen")]
    Stale { no: u64, seen: u64 },
    #[error("{PARTS_MAX} versions of the unit are not worked off yet; the oldest waits at sequence {stuck}")]
    TooManyParts { stuck: u64 },
    #[error("the unit is removed; nothing is granted to it")]
    Removed,
}

impl Run {
    /// The record of a unit that begins at `from`.
    pub fn begin(stream: StreamIdentity, wanted: &Wanted, no: u64, from: u64) -> Self {
        let from = from.max(1);
        let part = Part { from, no, digest: Some(wanted.digest.clone()), durable: 1, reads: wanted.reads.clone() };
        Run { stream, granted: from - 1, seen: no, parts: vec![part] }
    }

    /// The record of a unit whose durable is older than records are. All it has not acknowledged is this version's.
    pub fn found(stream: StreamIdentity, wanted: &Wanted, no: u64, durable: u32) -> Self {
        let mut run = Run::begin(stream, wanted, no, 1);
        run.parts[0].durable = durable;
        run
    }

    /// The same with the first part under this digest.
    pub fn named(mut self, digest: &str) -> Self {
        self.parts[0].digest = Some(digest.to_owned());
        self
    }

    /// The newest part.
    pub fn last(&self) -> &Part {
        self.parts.last().expect("a record has a part")
    }

    /// The part a sequence belongs to, granted or not; `None` below the first.
    pub fn part(&self, sequence: u64) -> Option<&Part> {
        self.parts.iter().rev().find(|part| part.from <= sequence)
    }

    /// Where a part ends, whole or so far.
    pub fn end(&self, part: &Part) -> u64 {
        self.parts.iter().find(|next| next.from > part.from).map_or(self.granted, |next| next.from - 1)
    }

    /// Rules cut-1 to cut-3 for a message that durable number `durable` handed out.
    pub fn place(&self, sequence: u64, durable: u32) -> Place<'_> {
        if sequence > self.granted {
            return if self.last().digest.is_none() { Place::Parked } else { Place::Ungranted };
        }
        match self.part(sequence) {
            Some(part) if part.durable == durable && part.digest.is_some() => Place::Under(part),
            _ => Place::NotHere,
        }
    }

    /// Rule cut-6: work up to `highest`, which is in hand, is granted, and a little of the `pending` that exist behind it.
    /// `None` when it is granted already.
    ///
    /// # Errors
    /// [`Error::Removed`]
    pub fn granting(&self, highest: u64, ahead: u64) -> Result<Option<Run>, Error> {
        if highest <= self.granted {
            return Ok(None);
        }
        if self.last().digest.is_none() {
            return Err(Error::Removed);
        }
        Ok(Some(Run { granted: highest + ahead.min(GRANTED_AHEAD_MAX), ..self.clone() }))
    }

    /// The same ahead of need: what is in hand reaches up to `highest` and is granted, and little is left beyond it. `None` while half
    /// of what may be granted ahead is left, or nothing more exists.
    pub fn granting_early(&self, highest: u64, ahead: u64) -> Option<Run> {
        let granted = highest + ahead.min(GRANTED_AHEAD_MAX);
        let is_due = self.granted.saturating_sub(highest) < GRANTED_AHEAD_MAX / 2 && granted > self.granted;
        (is_due && self.last().digest.is_some()).then(|| Run { granted, ..self.clone() })
    }

    /// Work up to `sequence` has been done by whoever needs no grant for it, see `runtime::parts`. The record catches up.
    pub fn raised(mut self, sequence: u64) -> Run {
        if self.last().digest.is_some() {
            self.granted = self.granted.max(sequence);
        }
        self
    }

    /// Rules cut-5, cut-11 and cut-13: the record under publication `no`, which has this version of the unit, or none.
    /// `last` is the stream's last sequence, read after the publication. `None` when there is nothing to change.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::TooManyParts`]
    pub fn rolled(&self, wanted: Option<&Wanted>, no: u64, last: u64) -> Result<Option<Run>, Error> {
        let newest = self.last();
        if no < self.seen {
            return Err(Error::Stale { no, seen: self.seen });
        }
        if newest.digest.as_ref() == wanted.map(|wanted| &wanted.digest) {
            return Ok(None);
        }
        let mut run = Run { seen: no, ..self.clone() };
        let next_durable = match wanted {
            Some(wanted) if newest.digest.is_none() || newest.reads != wanted.reads => newest.durable + 1,
            _ => newest.durable,
        };
        // What the new version no longer reads and is stored already would have no version at all.
        let narrows = |wanted: &Wanted| newest.digest.is_some() && !covers(&wanted.reads, &newest.reads);
        if wanted.is_some_and(narrows) {
            run.granted = run.granted.max(last);
        }
        let reads = wanted.map_or_else(|| newest.reads.clone(), |wanted| wanted.reads.clone());
        let digest = wanted.map(|wanted| wanted.digest.clone());
        let part = Part { from: run.granted + 1, no, digest, durable: next_durable, reads };
        if newest.from == part.from {
            run.parts.pop();
        }
        if run.parts.len() >= PARTS_MAX {
            return Err(Error::TooManyParts { stuck: run.parts[0].from });
        }
        run.parts.push(part);
        Ok(Some(run))
    }

    /// Rule cut-14: without its first part, all of which is acknowledged. `None` while there is only one.
    pub fn without_first(&self) -> Option<Run> {
        (self.parts.len() > 1).then(|| Run { parts: self.parts[1..].to_vec(), ..self.clone() })
    }

    /// An operator gives up everything up to `last`: it is as if it had been acknowledged. The version goes on behind it with the next
    /// durable; a removed unit stays removed.
    pub fn purged(&self, last: u64) -> Run {
        let granted = self.granted.max(last);
        let newest = self.last();
        let durable = newest.durable + u32::from(newest.digest.is_some());
        let part = Part { from: granted + 1, durable, ..newest.clone() };
        Run { granted, parts: vec![part], ..self.clone() }
    }

    /// The durables that hand out messages of this record: number, first sequence, filters.
    pub fn durables(&self) -> Vec<(u32, u64, &[String])> {
        let mut found: Vec<(u32, u64, &[String])> = Vec::new();
        for part in &self.parts {
            if found.last().is_none_or(|(number, ..)| *number != part.durable) {
                found.push((part.durable, part.from, &part.reads));
            }
        }
        found
    }
}

/// Whether every subject that `narrow` reads is read by `wide`.
fn covers(wide: &[String], narrow: &[String]) -> bool {
    narrow.iter().all(|filter| wide.iter().any(|other| pattern_covers(other, filter)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity() -> StreamIdentity {
        StreamIdentity { name: "VEJAS".to_owned(), created: 1 }
    }

    fn wanted(digest: &str, reads: &[&str]) -> Wanted {
        Wanted { digest: digest.to_owned(), reads: reads.iter().map(|s| (*s).to_owned()).collect() }
    }

    fn digest_of(run: &Run, sequence: u64, durable: u32) -> Option<&str> {
        match run.place(sequence, durable) {
            Place::Under(part) => part.digest.as_deref(),
            _ => None,
        }
    }

    #[test]
    fn a_new_version_begins_beyond_what_is_granted() {
        let run = Run::begin(identity(), &wanted("a", &["x"]), 1, 5);
        assert_eq!(run.place(5, 1), Place::Ungranted);
        let run = run.granting(7, 0).unwrap().unwrap();
        let run = run.rolled(Some(&wanted("b", &["x"])), 2, 20).unwrap().unwrap();
        assert_eq!(
            (digest_of(&run, 7, 1), run.place(8, 1), run.place(4, 1)),
            (Some("a"), Place::Ungranted, Place::NotHere)
        );
        let run = run.granting(9, 100).unwrap().unwrap();
        assert_eq!((run.granted, digest_of(&run, 8, 1), digest_of(&run, 109, 1)), (109, Some("b"), Some("b")));
    }

    #[test]
    fn a_version_that_nothing_was_granted_to_is_replaced_and_never_merged() {
        let run = Run::begin(identity(), &wanted("a", &["x"]), 1, 1).raised(3);
        let run = run.rolled(Some(&wanted("b", &["x"])), 2, 3).unwrap().unwrap();
        let run = run.rolled(Some(&wanted("a", &["x"])), 3, 3).unwrap().unwrap();
        let parts: Vec<_> = run.parts.iter().map(|part| (part.from, part.no)).collect();
        assert_eq!(parts, [(1, 1), (4, 3)]);
    }

    #[test]
    fn a_narrower_from_grants_the_backlog_to_the_version_that_still_reads_it() {
        let run = Run::begin(identity(), &wanted("a", &["x", "y"]), 1, 1);
        let narrow = run.rolled(Some(&wanted("b", &["x"])), 2, 40).unwrap().unwrap();
        assert_eq!((narrow.granted, narrow.last().from, narrow.last().durable), (40, 41, 2));
        assert_eq!((digest_of(&narrow, 40, 1), narrow.place(40, 2)), (Some("a"), Place::NotHere));
        let wide = run.rolled(Some(&wanted("b", &["x", "y", "z"])), 2, 40).unwrap().unwrap();
        assert_eq!(
            (wide.granted, wide.last().durable, wide.parts.len()),
            (0, 2, 1),
            "nothing is raised, the empty part goes"
        );
        assert_eq!(wide.durables(), [(2, 1, wide.last().reads.as_slice())]);
    }

    #[test]
    fn what_a_removed_unit_left_waits_and_runs_when_it_comes_back() {
        let run = Run::begin(identity(), &wanted("a", &["x"]), 1, 1).raised(3);
        let gone = run.rolled(None, 2, 9).unwrap().unwrap();
        assert_eq!((gone.place(3, 1), gone.place(4, 1)), (Place::Under(&gone.parts[0]), Place::Parked));
        assert_eq!(gone.granting(4, 0), Err(Error::Removed));
        let back = gone.rolled(Some(&wanted("c", &["x"])), 3, 9).unwrap().unwrap();
        assert_eq!(
            back.durables().iter().map(|(number, from, _)| (*number, *from)).collect::<Vec<_>>(),
            [(1, 1), (2, 4)]
        );
        let back = back.granting(9, 0).unwrap().unwrap();
        assert_eq!((digest_of(&back, 4, 2), back.place(4, 1)), (Some("c"), Place::NotHere));
    }

    #[test]
    fn an_older_publication_is_refused_also_when_its_version_is_the_one_that_runs() {
        let run = Run::begin(identity(), &wanted("a", &["x"]), 1, 1).raised(1);
        let run = run.rolled(Some(&wanted("b", &["x"])), 5, 1).unwrap().unwrap();
        assert_eq!(run.rolled(Some(&wanted("a", &["x"])), 4, 1), Err(Error::Stale { no: 4, seen: 5 }));
        assert_eq!(run.rolled(Some(&wanted("b", &["x"])), 6, 1), Ok(None));
    }

    #[test]
    fn the_number_of_parts_is_bounded() {
        let mut run = Run::begin(identity(), &wanted("0", &["x"]), 1, 1).raised(1);
        for no in 2..=PARTS_MAX as u64 {
            run = run.rolled(Some(&wanted(&no.to_string(), &["x"])), no, 0).unwrap().unwrap().raised(no);
        }
        assert_eq!(run.rolled(Some(&wanted("z", &["x"])), 99, 0), Err(Error::TooManyParts { stuck: 1 }));
        let run = run.without_first().unwrap();
        assert!(run.rolled(Some(&wanted("z", &["x"])), 99, 0).is_ok());
    }

    /// What may happen to a record; the stream grows by what is stored.
    #[derive(Debug, Clone)]
    enum Act {
        Store(u64),
        Grant(u64, u64),
        Publish(Option<usize>),
        Tidy,
        Purge,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            (1..20_u64).prop_map(Act::Store),
            (0..30_u64, 0..30_u64).prop_map(|(highest, ahead)| Act::Grant(highest, ahead)),
            proptest::option::weighted(0.8, 0..6_usize).prop_map(Act::Publish),
            Just(Act::Tidy),
            Just(Act::Purge),
        ];
        proptest::collection::vec(act, 1..60)
    }

    const READS: [&[&str]; 3] = [&["x"], &["x", "y"], &["*"]];

    proptest! {
        /// cut-C1 and cut-C2, over any chain of records.
        #[test]
        fn a_granted_sequence_keeps_its_version_and_numbers_never_fall(acts in acts()) {
            let (mut last, mut no) = (0_u64, 1_u64);
            let mut run = Run::begin(identity(), &wanted("v0", READS[0]), no, 1);
            // What each granted sequence was first granted under.
            let mut first: Vec<(u64, Part)> = Vec::new();
            for act in acts {
                let before = run.clone();
                match act {
                    Act::Store(count) => last += count,
                    Act::Grant(highest, ahead) => {
                        let highest = (run.granted + highest).min(last);
                        if let Ok(Some(next)) = run.granting(highest, ahead.min(last - highest)) {
                            run = next;
                        }
                    }
                    Act::Publish(version) => {
                        no += 1;
                        let wanted = version.map(|v| wanted(&format!("v{v}"), READS[v % 3]));
                        if let Ok(Some(next)) = run.rolled(wanted.as_ref(), no, last) {
                            run = next;
                        }
                    }
                    Act::Purge => run = run.purged(last),
                    Act::Tidy => {
                        if let Some(next) = run.without_first().filter(|next| next.parts[0].from <= run.granted + 1) {
                            run = next;
                        }
                    }
                }
                prop_assert!(run.granted >= before.granted && run.granted <= last);
                let ascends = |one: &Part, next: &Part| {
                    one.from < next.from && one.no < next.no && one.durable <= next.durable
                };
                prop_assert!(run.parts.windows(2).all(|two| ascends(&two[0], &two[1])));
                prop_assert!(run.last().from <= run.granted + 1);
                for sequence in before.granted + 1..=run.granted {
                    // Purged is finished.
                    let Some(part) = run.part(sequence) else { continue };
                    prop_assert!(part.digest.is_some(), "granted into none");
                    first.push((sequence, part.clone()));
                }
                for (sequence, part) in &first {
                    prop_assert!(run.part(*sequence).is_none_or(|now| now == part), "{sequence} changed its part");
                }
            }
        }
    }
}
