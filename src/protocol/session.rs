//! Sessions: one's own, kept alive by beats, and doubts about those of others (rules own-S1 to own-S7).
//!
//! Evidence proves nothing. It makes a member look at the session at the leader and mark it by compare-and-set; a live member takes the
//! mark back with its next beat. A mark that stands for the grace at one and the same revision becomes `dead` by compare-and-set on that
//! revision. A dead or absent session is final: its incarnation can never act again, because its gate lapsed before the grace ended
//! (`Timers::check`) and it is never created a second time.

use super::effect::{Action, Effect, Effects, Ending, Subject};
use super::event::{Evidence, Outcome};
use super::membership::{DOUBTS_MAX, Doubt};
use super::mutant::mutant;
use super::node::{Phase, Purpose, Sent};
use super::record::{Incarnation, KvRevision, Session, SessionState};
use super::timers::Moment;
use super::{Class, Node};

impl Node {
    fn own_session(&self, state: SessionState) -> Session {
        Session { instance: self.settings.instance.clone(), inc: self.inc, state, by: self.inc }
    }

    /// Owns or asks for a unit: a false mark would cost something, so it must be refuted within the grace.
    pub(super) fn is_busy(&self) -> bool {
        let asks = |sent: &Sent| sent.purpose == Purpose::Acquire;
        self.pending.values().any(asks) || self.units.values().any(|u| u.tenure.is_some() || u.ask_at.is_some())
    }

    pub(super) fn session_due(&mut self, now: Moment, effects: &mut Effects) {
        let subject = Subject::Session(self.inc);
        let timers = &self.settings.timers;
        let busy = self.is_busy();
        let often = busy && !mutant!(self, BusyBeatAsIdle);
        if often {
            // The last beat may have planned the next one as that of an idle member.
            self.beat_at = self.beat_at.min(now.after(timers.beat_ms));
        }
        if !self.is_free(&subject) || !self.beat_at.passed(now) || self.has_left_all() {
            return;
        }
        if mutant!(self, IdleDoNotBeat) && !busy && self.phase != Phase::Joining {
            return;
        }
        self.beat_at = now.after(if often { timers.beat_ms } else { timers.idle_beat_ms });
        let session = self.own_session(SessionState::Alive);
        let (purpose, expected) = match self.phase {
            Phase::Joining => (Purpose::CreateSession, None),
            _ => (Purpose::Beat, Some(self.session)),
        };
        self.ask(now, subject, purpose, Action::PutSession { expected, session }, effects);
    }

    pub(super) fn session_answer(&mut self, now: Moment, sent: Sent, outcome: Outcome, effects: &mut Effects) {
        let soon = now.after(self.settings.timers.beat_ms);
        match (sent.purpose, outcome) {
            (Purpose::CreateSession, Outcome::Won(revision)) => {
                self.phase = Phase::Live;
                self.session_won(now, revision, sent.gate, effects);
                effects.push(Effect::Announce { inc: self.inc });
            }
            (Purpose::CreateSession, Outcome::Busy) => self.beat_at = soon,
            (Purpose::CreateSession, _) => self.end(Ending::NotCreated, effects),
            (Purpose::Beat, Outcome::Won(revision)) => self.session_won(now, revision, sent.gate, effects),
            (Purpose::Beat | Purpose::Bury, Outcome::Lost) => {
                let subject = Subject::Session(self.inc);
                self.ask(now, subject, Purpose::CheckSession, Action::ReadSession(self.inc), effects);
            }
            (Purpose::CheckSession, Outcome::Session(found)) => self.session_checked(now, found, effects),
            (Purpose::Bury, Outcome::Won(_) | Outcome::Unknown) => self.end(Ending::Left, effects),
            // Unknown moves nothing; the next beat is refused if this one was applied.
            _ => self.beat_at = self.beat_at.min(soon),
        }
    }

    fn session_won(&mut self, now: Moment, revision: u64, gate: Moment, effects: &mut Effects) {
        let gate =
            if mutant!(self, DeadlineFromReply) { now.after(self.settings.timers.session_gate_ms) } else { gate };
        self.session = KvRevision(revision);
        self.session_until = gate;
        let exclusive = self.units.iter().filter(|(_, state)| state.spec.class == Class::Exclusive);
        effects.extend(
            exclusive
                .filter_map(|(unit, _)| self.permit(unit).map(|until| Effect::Permit { unit: unit.clone(), until })),
        );
    }

    /// A beat was refused. Still mine and not dead: beat at once, which takes a mark back. Anything else is the end.
    fn session_checked(&mut self, now: Moment, found: Option<(KvRevision, Session)>, effects: &mut Effects) {
        match found {
            Some((_, session)) if mutant!(self, SuspectIsTaken) && session.state == SessionState::Suspect => {
                self.end(Ending::SessionLost, effects);
            }
            Some((revision, session)) if session.inc == self.inc && session.state != SessionState::Dead => {
                self.session = revision;
                self.beat_at = now;
            }
            _ if mutant!(self, SameIncarnationAgain) => {
                self.phase = Phase::Joining;
                self.beat_at = now;
            }
            _ => self.end(Ending::SessionLost, effects),
        }
    }

    pub(super) fn suspicion(&mut self, inc: Incarnation, evidence: Evidence, now: Moment, effects: &mut Effects) {
        let live = matches!(self.phase, Phase::Live | Phase::Leaving { .. });
        // A suspect is looked at again: it may have taken the mark back before it died.
        let fits = match self.doubts.get(&inc) {
            None => self.doubts.len() < DOUBTS_MAX,
            Some(Doubt::Suspect { .. }) => !mutant!(self, SuspectNotLookedAtAgain),
            Some(Doubt::Gone) => false,
        };
        if !live || evidence == Evidence::TimedOut || inc == self.inc || !fits || !self.is_known(inc) {
            return;
        }
        if mutant!(self, TakeOnEvidence) {
            self.gone(inc);
        } else if self.is_free(&Subject::Session(inc)) {
            self.look_at(now, inc, true, effects);
        }
    }

    fn look_at(&mut self, now: Moment, inc: Incarnation, mark: bool, effects: &mut Effects) {
        self.ask(now, Subject::Session(inc), Purpose::LookAt { mark }, Action::ReadSession(inc), effects);
    }

    fn gone(&mut self, inc: Incarnation) {
        self.doubts.insert(inc, Doubt::Gone);
        self.view_changed();
    }

    /// The grace starts when this member sees the mark, and belongs to the revision of that mark.
    fn suspect(&mut self, now: Moment, inc: Incarnation, revision: KvRevision) {
        let mut dead_at = now.after(self.settings.timers.grace_ms);
        if let Some(Doubt::Suspect { revision: known, dead_at: since }) = self.doubts.get(&inc)
            && (*known == revision || mutant!(self, GraceNotBoundToMark))
        {
            dead_at = *since;
        }
        self.doubts.insert(inc, Doubt::Suspect { revision, dead_at });
    }

    pub(super) fn doubt_answer(
        &mut self,
        now: Moment,
        inc: Incarnation,
        sent: &Sent,
        outcome: Outcome,
        effects: &mut Effects,
    ) {
        match (&sent.purpose, outcome) {
            (Purpose::LookAt { .. }, Outcome::Session(None)) | (Purpose::Kill, Outcome::Won(_)) => self.gone(inc),
            (Purpose::LookAt { mark }, Outcome::Session(Some((revision, session)))) => match session.state {
                SessionState::Dead => self.gone(inc),
                SessionState::Suspect if mutant!(self, TakeOnSuspect) => self.gone(inc),
                SessionState::Suspect => self.suspect(now, inc, revision),
                SessionState::Alive => {
                    self.doubts.remove(&inc);
                    if *mark {
                        let session = Session { state: SessionState::Suspect, by: self.inc, ..session };
                        let action = Action::PutSession { expected: Some(revision), session };
                        self.ask(now, Subject::Session(inc), Purpose::Mark, action, effects);
                    }
                }
            },
            (Purpose::Mark, Outcome::Won(revision)) => self.suspect(now, inc, KvRevision(revision)),
            (Purpose::Mark | Purpose::Kill, Outcome::Lost | Outcome::Unknown) => self.look_at(now, inc, false, effects),
            _ => {
                // Not known: ask again a little later, and never sooner than the grace allows.
                if let Some(Doubt::Suspect { dead_at, .. }) = self.doubts.get_mut(&inc) {
                    *dead_at = (*dead_at).max(now.after(self.settings.timers.beat_ms));
                }
            }
        }
    }

    pub(super) fn doubts_due(&mut self, now: Moment, effects: &mut Effects) {
        let due = self.doubts.iter().filter_map(|(inc, doubt)| match doubt {
            Doubt::Suspect { revision, dead_at } if dead_at.passed(now) => Some((*inc, *revision)),
            _ => None,
        });
        let due: Vec<_> = due.collect();
        for (inc, revision) in due {
            let subject = Subject::Session(inc);
            if !self.is_free(&subject) {
                continue;
            }
            let instance = self.instance_of(inc);
            let session = Session { instance, inc, state: SessionState::Dead, by: self.inc };
            self.ask(now, subject, Purpose::Kill, Action::PutSession { expected: Some(revision), session }, effects);
        }
    }

    fn instance_of(&self, inc: Incarnation) -> super::record::Instance {
        let mut named = self.views.values().filter_map(|view| view.get(&inc));
        named.next().cloned().unwrap_or_else(|| "".into())
    }
}
