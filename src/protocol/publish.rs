//! What is published: one record, [`Head`], that every publisher changes by compare-and-set.
//!
//! A publication goes through it twice. *Announced*, it stands as the candidate, and the members compile it and answer. *Committed*, it
//! is the head and has the next number; *aborted*, it is gone. All three are writes of the one record, so a candidate is never both,
//! and of two publishers one wins. What became of a candidate stays in `decided`: who lost the answer to a write reads it there.
//!
//! Pure: from which record to which. Who waits for answers, and how long, is `runtime::publisher`.

use serde::{Deserialize, Serialize};

/// How many outcomes of candidates are kept.
pub const DECIDED_MAX: usize = 16;
/// How many publications before the one in effect are kept.
pub const HISTORY_MAX: usize = 64;
/// How many revisions can be barred from coming back by themselves. The oldest bar goes first.
pub const PINS_MAX: usize = 64;
/// How long a candidate may wait for answers. Then anybody may abort it.
pub const DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

/// Who published, from what and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Made {
    /// `git`, `directory`, or who asked for it.
    pub by: String,
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    pub at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The store's revision of the record that announced it replaced: never used before.
    pub id: u64,
    pub revision: String,
    /// The publication it was planned against.
    pub parent: u64,
    pub made: Made,
    /// What it replaces is set aside once it is in effect: a person asked for it.
    #[serde(default)]
    pub pins: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    pub id: u64,
    /// The publication it became; none when it was aborted.
    pub no: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    pub no: u64,
    pub revision: String,
    pub made: Made,
}

/// A revision that no origin brings back by itself; a person can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    pub revision: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub by: String,
    pub at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Such as `flow/price-orders`.
    pub unit: String,
    pub by: String,
    pub at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What is published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Grows by one with every publication; 0 before the first.
    pub no: u64,
    /// The digest over all units and their digests.
    pub revision: String,
    #[serde(default)]
    pub made: Made,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Candidate>,
    /// The oldest first.
    #[serde(default)]
    pub decided: Vec<Decided>,
    /// What was in effect before, the oldest first.
    #[serde(default)]
    pub history: Vec<Publication>,
    #[serde(default)]
    pub pins: Vec<Pin>,
    #[serde(default)]
    pub suspended: Vec<Suspension>,
    /// The hash of a plan that a person has confirmed although it removes much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<String>,
}

/// Why a candidate cannot be announced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("candidate {id} of {by} is being decided; try again in a moment")]
    Open { id: u64, by: String },
    #[error("the plan was made against publication {planned}, and {no} is in effect by now: plan again")]
    Moved { planned: u64, no: u64 },
    #[error("there is no publication {no} yet; the newest has number {newest}")]
    NotYet { no: u64, newest: u64 },
    #[error("publication {no} is not kept any more; the oldest that is kept has number {oldest}")]
    Forgotten { no: u64, oldest: u64 },
}

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Open,
    Committed(u64),
    Aborted(String),
    /// So many were decided since that it is not kept.
    Unknown,
}

impl Head {
    /// Whether anything was ever published.
    pub fn is_published(&self) -> bool {
        self.no > 0
    }

    /// The publication in effect.
    pub fn current(&self) -> Publication {
        Publication { no: self.no, revision: self.revision.clone(), made: self.made.clone() }
    }

    /// Rule cut-8. `id` is the store's revision of this record, 0 when there is none yet.
    ///
    /// # Errors
    /// [`Refused::Open`], [`Refused::Moved`]
    pub fn announced(&self, id: u64, planned: u64, revision: &str, made: Made, pins: bool) -> Result<Head, Refused> {
        if let Some(open) = &self.candidate {
            return Err(Refused::Open { id: open.id, by: open.made.by.clone() });
        }
        if planned != self.no {
            return Err(Refused::Moved { planned, no: self.no });
        }
        let candidate = Candidate { id, revision: revision.to_owned(), parent: planned, made, pins };
        Ok(Head { candidate: Some(candidate), ..self.clone() })
    }

    /// Rule cut-10: the candidate takes effect. `None` when it is not the open one any more.
    pub fn committed(&self, id: u64) -> Option<Head> {
        let candidate = self.candidate.clone().filter(|candidate| candidate.id == id)?;
        let mut head = self.switched(&candidate.revision, candidate.made, candidate.pins);
        head.decide(Decided { id, no: Some(head.no), reason: None });
        head.candidate = None;
        Some(head)
    }

    /// Rule cut-10: the candidate never takes effect. `None` when it is not the open one any more.
    pub fn aborted(&self, id: u64, reason: &str) -> Option<Head> {
        self.candidate.as_ref().filter(|candidate| candidate.id == id)?;
        let mut head = Head { candidate: None, ..self.clone() };
        head.decide(Decided { id, no: None, reason: Some(reason.to_owned()) });
        Some(head)
    }

    /// Takes effect without a candidate: for who has the bus alone, or knows that every member has the set already. An open candidate
    /// was planned against what is replaced, and ends.
    pub fn overtaken(&self, revision: &str, made: Made, pins: bool) -> Head {
        let open = self.candidate.as_ref().map(|candidate| candidate.id);
        let head = open.and_then(|id| self.aborted(id, "another publication took effect meanwhile"));
        head.as_ref().unwrap_or(self).switched(revision, made, pins)
    }

    fn switched(&self, revision: &str, made: Made, pins: bool) -> Head {
        let mut head = Head { no: self.no + 1, revision: revision.to_owned(), confirmed: None, ..self.clone() };
        if self.is_published() {
            head.history.push(self.current());
            trim(&mut head.history, HISTORY_MAX);
        }
        if pins && self.is_published() && self.revision != revision {
            let (by, at, commit) = (made.by.clone(), made.at, self.made.commit.clone());
            head.pins.push(Pin { revision: self.revision.clone(), commit, by, at });
        }
        // What a person puts into effect is not barred any more.
        head.pins.retain(|pin| pin.revision != revision);
        trim(&mut head.pins, PINS_MAX);
        head.made = made;
        head
    }

    fn decide(&mut self, decided: Decided) {
        self.decided.push(decided);
        trim(&mut self.decided, DECIDED_MAX);
    }

    pub fn outcome(&self, id: u64) -> Outcome {
        if self.candidate.as_ref().is_some_and(|candidate| candidate.id == id) {
            return Outcome::Open;
        }
        match self.decided.iter().rev().find(|decided| decided.id == id) {
            Some(Decided { no: Some(no), .. }) => Outcome::Committed(*no),
            Some(Decided { reason, .. }) => Outcome::Aborted(reason.clone().unwrap_or_default()),
            None => Outcome::Unknown,
        }
    }

    /// Whether an origin may not bring this back.
    pub fn pin_of(&self, revision: &str, commit: Option<&str>) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.revision == revision || (commit.is_some() && pin.commit.as_deref() == commit))
    }

    /// A publication that was in effect, or is.
    ///
    /// # Errors
    /// [`Refused::NotYet`], [`Refused::Forgotten`]
    pub fn publication(&self, no: u64) -> Result<Publication, Refused> {
        if no > self.no {
            return Err(Refused::NotYet { no, newest: self.no });
        }
        if no == self.no && self.is_published() {
            return Ok(self.current());
        }
        let oldest = self.history.first().map_or(self.no, |oldest| oldest.no);
        self.history.iter().find(|past| past.no == no).cloned().ok_or(Refused::Forgotten { no, oldest })
    }

    /// Whether a person has confirmed this plan, by its hash or the first digits of it.
    pub fn is_confirmed(&self, hash: &str) -> bool {
        self.confirmed.as_ref().is_some_and(|confirmed| hash.starts_with(confirmed.as_str()))
    }

    pub fn suspension(&self, unit: &str) -> Option<&Suspension> {
        self.suspended.iter().find(|suspended| suspended.unit == unit)
    }

    /// With the unit suspended; the same number, because what it means does not change. `None` when it is already.
    pub fn suspended(&self, suspension: Suspension) -> Option<Head> {
        if self.suspension(&suspension.unit).is_some() {
            return None;
        }
        let mut head = self.clone();
        head.suspended.push(suspension);
        head.suspended.sort_by(|a, b| a.unit.cmp(&b.unit));
        Some(head)
    }

    /// `None` when it is not suspended.
    pub fn resumed(&self, unit: &str) -> Option<Head> {
        self.suspension(unit)?;
        let mut head = self.clone();
        head.suspended.retain(|suspended| suspended.unit != unit);
        Some(head)
    }
}

fn trim<T>(list: &mut Vec<T>, max: usize) {
    list.drain(..list.len().saturating_sub(max));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(name: &str) -> Made {
        Made { by: name.to_owned(), ..Made::default() }
    }

    fn published(revision: &str) -> Head {
        Head::default().overtaken(revision, by("a"), false)
    }

    #[test]
    fn a_candidate_becomes_the_head_with_the_next_number_and_leaves_its_outcome() {
        let head = published("one").announced(7, 1, "two", by("b"), false).unwrap();
        assert_eq!((head.no, head.revision.as_str(), head.outcome(7)), (1, "one", Outcome::Open));
        let head = head.committed(7).unwrap();
        assert_eq!((head.no, head.revision.as_str(), head.outcome(7)), (2, "two", Outcome::Committed(2)));
        assert_eq!(head.history.iter().map(|past| past.no).collect::<Vec<_>>(), [1]);
        assert_eq!((head.committed(7), head.aborted(7, "late")), (None, None), "it is decided");
    }

    #[test]
    fn of_two_publishers_one_is_told_that_the_other_is_at_it_or_was_first() {
        let head = published("one");
        let open = head.announced(7, 1, "two", by("b"), false).unwrap();
        assert_eq!(open.announced(8, 1, "three", by("c"), false), Err(Refused::Open { id: 7, by: "b".to_owned() }));
        let head = open.committed(7).unwrap();
        assert_eq!(head.announced(9, 1, "three", by("c"), false), Err(Refused::Moved { planned: 1, no: 2 }));
    }

    #[test]
    fn an_aborted_candidate_never_takes_effect() {
        let head = published("one").announced(7, 1, "two", by("b"), false).unwrap().aborted(7, "no").unwrap();
        assert_eq!((head.committed(7), head.no), (None, 1));
        assert_eq!(head.outcome(7), Outcome::Aborted("no".to_owned()));
        // An open one is planned against what somebody replaced: it ends with that.
        let head = head.announced(9, 1, "two", by("b"), false).unwrap().overtaken("three", by("c"), false);
        assert_eq!((head.committed(9), head.no, head.revision.as_str()), (None, 2, "three"));
        assert!(matches!(head.outcome(9), Outcome::Aborted(_)));
    }

    #[test]
    fn what_a_rollback_replaced_is_barred_until_a_person_brings_it_back() {
        let bad = Made { commit: Some("c0ffee".to_owned()), ..by("git") };
        let head = published("good").overtaken("bad", bad, false);
        let back = head.announced(5, 2, "good", by("ada"), true).unwrap().committed(5).unwrap();
        assert_eq!((back.no, back.revision.as_str()), (3, "good"));
        assert!(back.pin_of("bad", None).is_some() && back.pin_of("other", Some("c0ffee")).is_some());
        assert!(back.pin_of("good", None).is_none() && back.pin_of("other", None).is_none());
        let again = back.overtaken("bad", by("ada"), false);
        assert!(again.pin_of("bad", None).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_forgotten_is_said() {
        let mut head = published("0");
        for no in 1..200_u64 {
            let id = no * 10;
            head = head.announced(id, head.no, &no.to_string(), by("a"), true).unwrap().committed(id).unwrap();
        }
        assert_eq!((head.history.len(), head.decided.len(), head.pins.len()), (HISTORY_MAX, DECIDED_MAX, PINS_MAX));
        assert_eq!(head.publication(3), Err(Refused::Forgotten { no: 3, oldest: 136 }));
        assert_eq!(head.publication(136).unwrap().revision, "135");
        assert_eq!(head.publication(200).unwrap(), head.current());
        assert_eq!(head.publication(201), Err(Refused::NotYet { no: 201, newest: 200 }));
        assert_eq!(head.outcome(10), Outcome::Unknown);
    }

    #[test]
    fn a_unit_is_suspended_once_and_the_number_stays() {
        let unit = Suspension { unit: "flow/a".to_owned(), by: "ada".to_owned(), at: 0, reason: None };
        let head = published("one").suspended(unit.clone()).unwrap();
        assert_eq!((head.no, head.suspended(unit)), (1, None));
        let head = head.overtaken("two", by("git"), false);
        assert!(head.suspension("flow/a").is_some(), "a publication does not resume it");
        assert_eq!(head.resumed("flow/b"), None);
        assert_eq!(head.resumed("flow/a").unwrap().suspended, []);
    }

    #[test]
    fn a_record_of_a_release_before_candidates_is_read() {
        let head: Head = serde_json::from_str(r#"{"no":3,"revision":"abc"}"#).unwrap();
        assert_eq!((head.no, head.is_published(), head.candidate), (3, true, None));
    }
}
