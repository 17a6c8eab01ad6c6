//! A world as a model: which actions there are, the properties, and what is said about an exploration.

use std::sync::atomic::Ordering;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::kept;
use crate::protocol::record::Generation;
use crate::protocol::{Batch, Event, Phase};
use crate::world::{Act, NEVER, NOW, State, World, incarnation, unit};

/// Ids of `src/protocol/README.md` that a world can break.
pub const IDS: [&str; 15] = [
    "own-L1", "own-L2", "own-L3", "own-L4", "own-L5", "own-A1", "own-T1", "own-L7", "own-D2", "own-D3", "own-D4",
    "own-D6", "own-D7", "own-G2", "own-H1",
];

/// Steps of a world, counted with repetition, before it is given up as too large to be explored.
const STEPS_MAX: usize = 100_000_000;

const ACTS: &str = "a member may act";
const MOVES: &str = "the unit moves";
const HEALS: &str = "an owner is missing after the heal";

/// No counterexample of this invariant. A checker goes on for a while after it found one; only the first is told, it is a shortest one.
fn holds<const I: usize>(world: &World, state: &State) -> bool {
    let broken = state.broken.as_ref().is_some_and(|broken| broken.id == IDS[I]);
    !broken || world.found.swap(true, Ordering::Relaxed)
}

fn acts(world: &World, state: &State) -> bool {
    (0..world.units).any(|u| state.members.iter().any(|member| member.node.may_act(&unit(u), NOW)))
}

/// Somebody else than the first owner holds the unit.
fn moves(world: &World, state: &State) -> bool {
    let others = state.members.iter().skip(1);
    let first = u64::from(!world.unowned) * world.units as u64;
    state.store.last > first && (0..world.units).any(|u| others.clone().any(|m| m.node.tenure(&unit(u)).is_some()))
}

fn heals(world: &World, state: &State) -> bool {
    state.healed && !world.is_owned(state)
}

impl Model for World {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, acts: &mut Vec<Act>) {
        if state.broken.is_some() {
            return;
        }
        if state.healed {
            return self.healed_actions(state, acts);
        }
        for (i, flying) in state.flying.iter().enumerate() {
            acts.push(Act::Deliver(i));
            if self.slow_replies && flying.reply.is_none() && flying.from.is_some() {
                acts.push(Act::Apply(i));
            }
            if flying.from.is_some() {
                acts.push(Act::TimeOut(i));
            }
        }
        for m in 0..self.members {
            self.member_actions(state, m, acts);
        }
        acts.extend((0..state.letters.len()).map(Act::Letter));
        if self.grants == 0 && self.views == 0 && self.ticks.is_none_or(|ticks| state.ticks < ticks) {
            acts.push(Act::Tick(None));
            if self.lag {
                let steady = |m: &usize| state.members[*m].steady == 0 && self.lives_now(state, *m);
                acts.extend((0..self.members).filter(steady).map(|m| Act::Tick(Some(m))));
            }
        }
        if state.recreations < self.recreations {
            acts.push(Act::Recreate);
        }
        if self.heals_within.is_some() {
            acts.push(Act::Heal);
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut state = before.clone();
        match act {
            Act::Deliver(i) => self.deliver(&mut state, i),
            Act::Apply(i) => self.apply_only(&mut state, i),
            Act::TimeOut(i) => self.time_out(&mut state, i),
            Act::Tick(_) if state.healed => self.healed_tick(&mut state),
            Act::Tick(slow) => self.tick(&mut state, slow),
            Act::Wake(m) => self.step(&mut state, m, Event::Tick),
            Act::Watch(m, u) => {
                let seen = if self.grants > 0 { None } else { self.lease_for(&state, m, u) };
                self.step(&mut state, m, Event::Lease { unit: unit(u), seen });
            }
            Act::Suspect(m, inc) => self.evidence(&mut state, m, inc),
            Act::Crash(m) => self.crash(&mut state, m),
            Act::Begin(m) => self.begin(&mut state, m),
            Act::Stopped(m, u) => self.step(&mut state, m, Event::Stopped { unit: unit(u) }),
            Act::Leave(m) => {
                state.leaves += 1;
                self.step(&mut state, m, Event::Leave { within_ms: NEVER });
            }
            Act::Letter(i) => self.letter(&mut state, i),
            Act::View(m, mask) => self.set_view(&mut state, m, mask),
            Act::Recreate => self.recreate(&mut state),
            Act::SeeBucket(m) => {
                let generation = Generation(state.store.generation);
                self.step(&mut state, m, Event::Bucket { generation, regressed: false });
            }
            Act::Work(m) => {
                let worker = state.member(m).worker.as_mut()?;
                worker.waits = true;
                let position = worker.next();
                self.step(&mut state, m, Event::Write { unit: unit(0), batch: Batch(0), position });
            }
            Act::Publish(m) => {
                state.publications += 1;
                let no = u64::from(state.publications);
                state.member(m).no = no;
                self.step(&mut state, m, Event::Units(self.spec(no)));
            }
            Act::Heal => self.heal(&mut state),
        }
        self.canonical(&mut state);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(IDS[0], holds::<0>),
            Property::always(IDS[1], holds::<1>),
            Property::always(IDS[2], holds::<2>),
            Property::always(IDS[3], holds::<3>),
            Property::always(IDS[4], holds::<4>),
            Property::always(IDS[5], holds::<5>),
            Property::always(IDS[6], holds::<6>),
            Property::always(IDS[7], holds::<7>),
            Property::always(IDS[8], holds::<8>),
            Property::always(IDS[9], holds::<9>),
            Property::always(IDS[10], holds::<10>),
            Property::always(IDS[11], holds::<11>),
            Property::always(IDS[12], holds::<12>),
            Property::always(IDS[13], holds::<13>),
            Property::always(IDS[14], holds::<14>),
            Property::sometimes(ACTS, acts),
            Property::sometimes(MOVES, moves),
            Property::sometimes(HEALS, heals),
        ]
    }
}

/// What an exploration saw.
#[derive(Debug, Clone)]
pub struct Explored {
    pub name: &'static str,
    pub states: usize,
    /// With repetition.
    pub steps: usize,
    pub depth: usize,
    /// To the end; else it was stopped at its bound.
    pub whole: bool,
}

impl World {
    fn lives_now(&self, state: &State, m: usize) -> bool {
        state.members[m].node.phase() != Phase::Ended
    }

    fn member_actions(&self, state: &State, m: usize, acts: &mut Vec<Act>) {
        let member = &state.members[m];
        if !self.lives_now(state, m) {
            if member.lives < self.lives {
                acts.push(Act::Begin(m));
            }
            return;
        }
        acts.push(Act::Wake(m));
        for u in 0..self.units {
            let record = if self.grants > 0 { None } else { self.lease_for(state, m, u) };
            if !member.node.has_seen(&unit(u), record.as_ref()) {
                acts.push(Act::Watch(m, u));
            }
            if member.node.is_stopping(&unit(u)) {
                acts.push(Act::Stopped(m, u));
            }
        }
        if state.suspicions < self.suspicions {
            let others = (0..self.members).filter(|other| *other != m && state.members[*other].announced);
            let now = others.map(|other| incarnation(other, state.members[other].lives - 1));
            acts.extend(now.map(|inc| Act::Suspect(m, inc)));
        }
        if state.crashes < self.crashes {
            acts.push(Act::Crash(m));
        }
        if state.leaves < self.leaves && member.node.phase() == Phase::Live {
            acts.push(Act::Leave(m));
        }
        if state.views < self.views {
            let fits = |mask: &u8| self.views_without_self || mask & (1 << m) != 0;
            acts.extend((1..1 << self.members).filter(fits).map(|mask| Act::View(m, mask)));
        }
        if self.recreations > 0 && member.node.generation().map(|g| g.0) != Some(state.store.generation) {
            acts.push(Act::SeeBucket(m));
        }
        if member.worker.as_ref().is_some_and(|worker| !worker.waits && worker.page < self.pages) {
            acts.push(Act::Work(m));
        }
        if state.publications < self.publications {
            acts.push(Act::Publish(m));
        }
    }

    /// Explores the world, to its end or to a bound; every invariant holds and the world is not vacuous.
    pub fn explore(self, threads: usize, steps_max: usize) -> Explored {
        let (name, heals) = (self.name, self.heals_within.is_some_and(|bound| bound > 0));
        kept::forget();
        let checker = self.checker().threads(threads).target_state_count(steps_max).spawn_bfs().join();
        for id in IDS {
            if let Some(path) = checker.discovery(id) {
                panic!("{name}: {id} breaks: {:#?}\n{:?}", path.clone().into_actions(), path.last_state().broken);
            }
        }
        for lively in [ACTS, MOVES].into_iter().chain(heals.then_some(HEALS)) {
            assert!(checker.discovery(lively).is_some(), "{name}: never seen: {lively}");
        }
        let steps = checker.state_count();
        let whole = steps < steps_max;
        Explored { name, states: checker.unique_state_count(), steps, depth: checker.max_depth(), whole }
    }

    /// Explores all states. A single worker: tests run side by side.
    pub fn exhaust(self) {
        let seen = self.explore(1, STEPS_MAX);
        assert!(seen.whole, "{}: not explored to the end", seen.name);
        println!("{}: {} distinct states, {} steps, depth {}", seen.name, seen.states, seen.steps, seen.depth);
    }

    /// The wrong rule is caught by one of `ids`. Prints the steps of a shortest counterexample, and returns them.
    pub fn caught_by(mut self, ids: &[&str]) -> usize {
        self.found = std::sync::Arc::default();
        let (name, mutant, flaw) = (self.name, self.mutant, self.flaw);
        let known = IDS.iter().copied().collect();
        kept::forget();
        let checker = self
            .checker()
            .finish_when(HasDiscoveries::AnyOf(known))
            .threads(1)
            .target_state_count(STEPS_MAX)
            .spawn_bfs()
            .join();
        let found = IDS.iter().find_map(|id| Some((*id, checker.discovery(id)?)));
        let what = match (mutant, flaw) {
            (Some(mutant), _) => format!("{mutant:?}"),
            (None, Some(flaw)) => format!("{flaw:?}"),
            (None, None) => "this setting".to_string(),
        };
        let Some((id, path)) = found else {
            panic!("{name}: {what} is not caught in {} states", checker.unique_state_count());
        };
        if std::env::args().any(|argument| argument == "--show-output") {
            println!("{:#?}\n{:?}", path.clone().into_actions(), path.last_state().broken);
        }
        let steps = path.into_actions().len();
        println!("{name}: {what} is caught by {id} in {steps} steps ({} states)", checker.unique_state_count());
        assert!(ids.contains(&id), "{name}: {what} is caught by {id}, not by {ids:?}");
        steps
    }
}
