//! What must hold, at every moment and in the end. The predicates are those of the product.

use crate::process::Process;
use crate::protocol::predicates::{self, Broken};
use crate::protocol::record::{Hold, Incarnation, TenureNumber, Unit};
use crate::protocol::{Class, Ending, Event, Moment, Node, Phase, Subject, hrw};
use crate::store::Change;
use crate::world::{Log, Member, OWNED_MS_MAX, SETTLED_MS_MAX, Stage, UNITS, World};

/// The tenure that an answer about a lease may end.
pub fn may_end(process: &Process, event: &Event, now: Moment) -> Option<(Unit, TenureNumber)> {
    let Event::Answer { ticket, .. } = event else { return None };
    let Subject::Lease(unit) = &ticket.subject else { return None };
    let number = process.node.tenure(unit).filter(|_| !process.node.gives_up(unit, now))?;
    Some((unit.clone(), number))
}

impl World {
    fn nodes(&self) -> impl Iterator<Item = (&Node, Moment)> + Clone {
        let processes = self.members.iter().filter_map(|member| member.process.as_ref());
        processes.map(|process| (&process.node, process.clock.now(self.t)))
    }

    /// After a step of `member`; `ends` is a tenure that it may have ended.
    pub fn check_step(&mut self, member: usize, ends: Option<(Unit, TenureNumber)>) {
        let found = self.found_after_step(member, ends);
        self.fail(found);
    }

    fn found_after_step(&mut self, member: usize, ends: Option<(Unit, TenureNumber)>) -> Result<(), Broken> {
        let Some(process) = &self.members[member].process else { return Ok(()) };
        let node = &process.node;
        let Some(generation) = node.generation() else { return Ok(()) };
        let inc = node.incarnation();
        if let Some((unit, number)) = ends
            && node.tenure(&unit).is_none()
            && node.phase() != Phase::Ended
        {
            let record = self.store.lease(self.t, generation, &unit);
            predicates::ended_is_not_named(inc, number, record.as_ref())?;
        }
        let held: Vec<_> = self.units.iter().filter_map(|unit| Some((unit.clone(), node.tenure(unit)?))).collect();
        for (unit, number) in held {
            let holder = *self.holders.entry((generation, unit.clone(), number)).or_insert(inc);
            if holder != inc {
                let what = format!("tenure {} of {unit} was held by {holder} and is by {inc}", number.0);
                return Err(Broken { id: "own-L1", what });
            }
            let created = self.created.get(&(generation, unit.clone()));
            if created.is_some_and(|created| number < *created) && node.may_act(&unit, process.clock.now(self.t)) {
                let what = format!("{inc} may act for {unit} although its lease expired and another was created");
                return Err(Broken { id: "own-L3", what });
            }
            predicates::one_holder(self.nodes().map(|(node, _)| node), &unit)?;
            if self.kind(&unit).class == Class::Exclusive {
                predicates::one_acts(self.nodes(), &unit)?;
            }
        }
        Ok(())
    }

    /// A life ends for its session only when that is dead or gone.
    pub fn check_end(&mut self, member: usize, inc: Incarnation, why: Ending) {
        let Some(generation) = self.members[member].process.as_ref().and_then(|process| process.node.generation())
        else {
            return;
        };
        if why == Ending::SessionLost {
            let session = self.store.session(self.t, generation, inc);
            self.fail(predicates::ended_life_is_over(inc, session.as_ref()));
        }
    }

    /// After an accepted write of a lease.
    pub fn check_change(&mut self, change: &Change) {
        let found = self.found_in_change(change);
        self.fail(found);
        if change.generation != self.store.generation {
            return;
        }
        let tenure = change.lease.tenure_at(change.revision);
        let max = self.store.tenure_max.entry(change.lease.unit.clone()).or_insert(tenure);
        *max = (*max).max(tenure);
        if change.before.is_none() {
            self.created.insert((change.generation, change.lease.unit.clone()), tenure);
        }
    }

    fn found_in_change(&self, Change { before, revision, lease, generation }: &Change) -> Result<(), Broken> {
        if *generation != self.store.generation {
            return Ok(());
        }
        let tenure = lease.tenure_at(*revision);
        let max = self.store.tenure_max.get(&lease.unit);
        let grows = max.is_none_or(|max| tenure > *max || (tenure == *max && lease.tenure.is_some()));
        predicates::tenures_grow(grows, lease)?;
        predicates::only_own_is_given_up(before.as_ref(), lease)?;
        if self.kind(&lease.unit).class == Class::Exclusive {
            predicates::taken_from_the_gone(before.as_ref(), lease, self.nodes())?;
        }
        // Who finds no record finds nobody that may act, whatever the class: the gate closes before the record expires.
        let acts = |(node, now): (&Node, Moment)| node.incarnation() != lease.inc && node.may_act(&lease.unit, now);
        if before.is_none() && lease.hold == Hold::Held && self.nodes().any(acts) {
            let what = format!("{} is created anew while another may act", lease.unit);
            return Err(Broken { id: "own-L3", what });
        }
        Ok(())
    }

    /// What a worker began has its effect now: nobody else may begin anything. A pause between check and effect is beyond the protocol.
    pub fn check_effect(&mut self, member: usize, unit: &Unit, tenure: Option<TenureNumber>, paused: bool) {
        if paused || self.kind(unit).class != Class::Exclusive {
            return;
        }
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != member);
        let mut others = others.filter_map(|(_, other)| other.process.as_ref());
        if let Some(other) = others.find(|process| process.may_begin(unit, process.clock.now(self.t))) {
            let inc = other.node.incarnation();
            let what = format!("m{member} acts for {unit} in tenure {tenure:?} while {inc} may");
            self.fail(Err(Broken { id: "own-L3", what }));
        }
    }

    pub fn check_stored(&mut self) {
        let found = |(unit, log): (&Unit, &Vec<_>)| {
            predicates::stored_is_right(log)?;
            if self.kind(unit).repeatable { Ok(()) } else { predicates::runs_are_of_one_maker(log) }
        };
        let logs: Vec<_> = self.store.logs.iter().map(found).collect();
        for found in logs {
            self.fail(found);
        }
    }

    pub fn check_stored_while_printing(&mut self) {
        if self.log == Log::Print {
            self.check_stored();
        }
    }

    /// Liveness: own-L5 while all heals, own-H1 once it has.
    pub fn look(&mut self) {
        let since_ms = self.t - self.stage_since;
        if self.stage == Stage::Calm {
            for unit in self.units.clone() {
                let starts = self.starts.get(&unit).copied().unwrap_or(0);
                self.fail(predicates::moves_are_bounded(starts, 0, self.views));
            }
            return;
        }
        if self.owned_ms.is_none() {
            match self.unowned() {
                None => self.owned_ms = Some(since_ms),
                Some(unit) => self.fail(predicates::owned_again(since_ms, OWNED_MS_MAX, &unit)),
            }
        }
        match self.unsettled() {
            None => {
                self.settled_ms = since_ms;
                self.enter(Stage::Calm);
            }
            Some(what) if since_ms > SETTLED_MS_MAX => {
                let what = format!("{what}, {since_ms} ms after all healed");
                self.fail(Err(Broken { id: "own-L5", what }));
            }
            Some(_) => {}
        }
    }

    fn unowned(&self) -> Option<Unit> {
        let acts = |unit: &Unit| self.nodes().any(|(node, now)| node.may_act(unit, now));
        self.units.iter().find(|unit| !acts(unit)).cloned()
    }

    /// What is not yet as it should be: each unit is held by the first in rank alone, and works.
    fn unsettled(&self) -> Option<String> {
        if let Some(m) = self.members.iter().position(|member| !member.process.as_ref().is_some_and(Process::is_live)) {
            return Some(format!("m{m} is not alive"));
        }
        let told = |member: &Member| member.process.as_ref().is_some_and(|process| process.numbers == self.heads);
        if !self.members.iter().all(told) {
            return Some("a publication is not told".into());
        }
        for (unit, kind) in self.units.iter().zip(&UNITS) {
            let of_role = self.members.iter().enumerate().filter(|(m, _)| World::has_role(*m, kind.role));
            let named = of_role.filter_map(|(_, member)| {
                let inc = member.process.as_ref()?.node.incarnation();
                Some((inc, member.name.as_str().into()))
            });
            let first = hrw::ranking(unit, &named.collect())[0];
            for (node, now) in self.nodes() {
                let is_first = node.incarnation() == first;
                if is_first != node.tenure(unit).is_some() || is_first && !node.may_act(unit, now) {
                    return Some(format!("{unit} belongs to {first}, and {} is not of that view", node.incarnation()));
                }
            }
            if !self.advanced.contains(&(unit.clone(), first)) {
                return Some(format!("{unit} does not advance at {first}"));
            }
        }
        None
    }
}
