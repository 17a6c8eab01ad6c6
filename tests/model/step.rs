//! What a step of a world does: a node is told something, its effects are performed, and the observer looks.

use crate::kept;
use crate::protocol::predicates;
use crate::protocol::record::Incarnation;
use crate::protocol::{Action, Effect, Event, Evidence, Outcome, Phase, Request};
use crate::source::Worker;
use crate::store::writes;
use crate::world::{Flying, Letter, LetterKind, Member, NEVER, NOW, State, World, member_of, note, place, ticks, unit};

impl World {
    /// One step of a node, and its effects on the world.
    pub fn step(&self, state: &mut State, m: usize, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let before = &state.members[m].node;
            let answers = matches!(event, Event::Answer { .. });
            let lived = before.phase() != Phase::Ended;
            let held: Vec<_> = (0..self.units)
                .filter(|_| answers && self.grants == 0)
                .filter_map(|u| Some((u, before.tenure(&unit(u))?, before.gives_up(&unit(u), NOW))))
                .collect();
            let effects = kept::step(&mut state.members[m], event);
            if lived {
                self.watch_endings(state, m, &held);
            }
            for effect in effects {
                self.perform(state, m, effect, &mut events);
            }
        }
    }

    /// own-A1: what an answer ended was over.
    fn watch_endings(
        &self,
        state: &mut State,
        m: usize,
        held: &[(usize, crate::protocol::record::TenureNumber, bool)],
    ) {
        if held.is_empty() {
            return;
        }
        let node = &state.members[m].node;
        let inc = node.incarnation();
        if node.phase() == Phase::Ended {
            let session = node.generation().and_then(|generation| state.store.sessions.get(&(generation, inc)));
            let found = predicates::ended_life_is_over(inc, session.map(|record| &record.value));
            return note(state, found);
        }
        for (u, number, by_time) in held {
            if !by_time && state.members[m].node.tenure(&unit(*u)).is_none() {
                let record = self.lease_for(state, m, *u);
                note(state, predicates::ended_is_not_named(inc, *number, record.as_ref()));
            }
        }
    }

    fn perform(&self, state: &mut State, m: usize, effect: Effect, events: &mut Vec<Event>) {
        let from = state.members[m].node.incarnation();
        let letter = |to, unit, tenure: crate::protocol::record::TenureNumber, kind| Letter {
            to,
            from,
            unit: place(&unit),
            tenure: tenure.0,
            kind,
        };
        match effect {
            Effect::Ask(request) if self.is_calm(&request.action) => {
                let outcome = self.apply(state, &request);
                events.push(Event::Answer { ticket: request.ticket, outcome });
            }
            Effect::Ask(request) => state.flying.push(Flying { from: Some(m), request, reply: None }),
            Effect::Start { epoch, position, unit, .. } => {
                state.starts += u8::from(self.views > 0);
                if self.pages > 0 {
                    state.member(m).worker = epoch.map(|epoch| Worker::start(epoch, position.as_ref(), self.mutant));
                }
                events.push(Event::Progress { unit });
            }
            Effect::Permit { unit, .. } => events.push(Event::Progress { unit }),
            Effect::Stop { .. } if state.members[m].worker.is_some() => state.member(m).worker = None,
            Effect::Written { .. } => {
                if state.members[m].worker.is_some()
                    && let Some(worker) = &mut state.member(m).worker
                {
                    worker.written();
                }
            }
            Effect::Rewind { position, .. } => {
                if state.members[m].worker.is_some()
                    && let Some(worker) = &mut state.member(m).worker
                {
                    worker.rewind(position.as_ref());
                }
            }
            Effect::ReadHead { no, .. } => {
                state.member(m).no = no;
                events.push(Event::Units(self.spec(no)));
            }
            Effect::Claim { to, tenure, unit } => send(state, letter(to, unit, tenure, LetterKind::Claim)),
            Effect::Decline { to, tenure, unit } => send(state, letter(to, unit, tenure, LetterKind::Decline)),
            Effect::Announce { .. } => state.member(m).announced = true,
            Effect::Stop { .. } | Effect::Refuse { .. } | Effect::Withdraw { .. } | Effect::Ended { .. } => {}
        }
    }

    /// Requests that are applied and answered at once.
    fn is_calm(&self, action: &Action) -> bool {
        match action {
            Action::ReadSession(_) => !self.sessions || !self.slow_reads,
            Action::PutSession { .. } => !self.sessions,
            Action::ReadLease(_) => !self.slow_reads,
            Action::ReadBucket => self.recreations == 0,
            Action::PutLease { .. } => self.grants > 0,
            Action::ReadFence(_) | Action::AppendFence { .. } => false,
        }
    }

    pub fn deliver(&self, state: &mut State, i: usize) {
        let flying = state.flying.remove(i);
        let outcome = flying.reply.unwrap_or_else(|| self.apply(state, &flying.request));
        if let Some(m) = flying.from {
            self.step(state, m, Event::Answer { ticket: flying.request.ticket, outcome });
        }
    }

    /// The request is applied; its reply takes a step of its own.
    pub fn apply_only(&self, state: &mut State, i: usize) {
        let request: Request = state.flying[i].request.clone();
        state.flying[i].reply = Some(self.apply(state, &request));
    }

    pub fn time_out(&self, state: &mut State, i: usize) {
        let flying = state.flying.remove(i);
        let Some(m) = flying.from else { return };
        let zombies = state.flying.iter().filter(|flying| flying.from.is_none()).count();
        if flying.reply.is_none() && zombies < self.zombies && writes(&flying.request.action) {
            state.flying.push(Flying { from: None, request: flying.request.clone(), reply: None });
        }
        self.step(state, m, Event::Answer { ticket: flying.request.ticket, outcome: Outcome::Unknown });
    }

    pub fn tick(&self, state: &mut State, slow: Option<usize>) {
        state.ticks += u64::from(self.ticks.is_some());
        let ttl = self.timers.ttl_ms;
        if ttl != NEVER && self.timers.renew_ms != NEVER {
            let leases = &mut state.store.edit().leases;
            leases.values_mut().for_each(|record| record.age += 1);
            leases.retain(|_, record| record.age < ttl);
        }
        if ttl != NEVER {
            let sessions = &mut state.store.edit().sessions;
            sessions.values_mut().for_each(|record| record.age += 1);
            sessions.retain(|_, record| record.age < ttl);
        }
        for m in 0..self.members {
            let member = state.member(m);
            if slow == Some(m) {
                member.steady = ticks().ttl_ms;
            } else {
                member.node.rebase(1, &|_, revision| revision);
                member.steady = member.steady.saturating_sub(1);
            }
        }
    }

    pub fn crash(&self, state: &mut State, m: usize) {
        let Member { lives, announced, no, .. } = *state.members[m];
        *state.member(m) = Member { lives, announced, no, ..self.member(m) };
        state.crashes += 1;
    }

    pub fn set_view(&self, state: &mut State, m: usize, mask: u8) {
        let view = self.view(state, mask);
        state.views += 1;
        self.step(state, m, view);
    }

    pub fn evidence(&self, state: &mut State, m: usize, inc: Incarnation) {
        state.suspicions += u8::from(!state.healed);
        self.step(state, m, Event::Suspicion { inc, evidence: Evidence::NoResponders });
    }

    pub fn letter(&self, state: &mut State, i: usize) {
        use crate::protocol::record::TenureNumber;
        // The old ones come again.
        let letter = if state.letters[i].tenure == 0 { state.letters[i].clone() } else { state.letters.remove(i) };
        let m = member_of(letter.to);
        if state.members[m].node.incarnation() != letter.to {
            return;
        }
        let (from, unit, tenure) = (letter.from, unit(letter.unit), TenureNumber(letter.tenure));
        let event = match letter.kind {
            LetterKind::Claim => Event::Claim { from, unit, tenure },
            LetterKind::Decline => Event::Declined { from, unit, tenure },
        };
        self.step(state, m, event);
    }

    /// Checks the observer's invariants, and makes states equal that behave alike.
    pub fn canonical(&self, state: &mut State) {
        for u in 0..self.units {
            let unit = unit(u);
            let found = predicates::one_holder(state.members.iter().map(|member| &member.node), &unit);
            note(state, found);
            if self.grants == 0 {
                let found = predicates::one_acts(state.members.iter().map(|member| (&member.node, NOW)), &unit);
                note(state, found);
            }
        }
        if self.views > 0 {
            note(state, predicates::moves_are_bounded(state.starts, self.first_owners, state.views));
        }
        self.settle(state);
    }
}

fn send(state: &mut State, letter: Letter) {
    if !state.letters.contains(&letter) {
        state.letters.push(letter);
    }
}
