//! A world as a model: which actions there are, and the properties.

use stateright::{Checker, Model, Property};

use crate::protocol::{Batch, Event, Phase};
use crate::world::{Act, Flaw, State, World, unit};

/// Ids of `src/protocol/README.md` that a world can break.
pub const IDS: [&str; 12] = [
    "own-L1", "own-L2", "own-L3", "own-L4", "own-A1", "own-T1", "own-L7", "own-D2", "own-D3", "own-D4", "own-D6",
    "own-H1",
];

/// Steps of a world, counted with repetition, before it is given up as too large to be explored.
const STATES_MAX: usize = 100_000_000;

/// One worker finds a shortest counterexample.
const THREADS: usize = 1;

fn holds<const I: usize>(_: &World, state: &State) -> bool {
    state.broken.as_ref().is_none_or(|broken| broken.id != IDS[I])
}

fn acts(_: &World, state: &State) -> bool {
    state.members.iter().any(|member| member.node.may_act(&unit(), crate::world::NOW))
}

/// Somebody else than the first owner holds the unit.
fn moves(_: &World, state: &State) -> bool {
    let others = state.members.iter().skip(1);
    others
        .filter(|member| member.node.tenure(&unit()).is_some())
        .any(|_| state.store.tenure_max > 1 || state.store.last > 1)
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
        for (i, flying) in state.flying.iter().enumerate() {
            acts.push(Act::Deliver(i));
            if self.slow_replies && flying.reply.is_none() && flying.from.is_some() {
                acts.push(Act::Apply(i));
            }
            if flying.from.is_some() {
                acts.push(Act::TimeOut(i));
            }
        }
        for (m, member) in state.members.iter().enumerate() {
            self.member_actions(state, m, member.node.phase() != Phase::Ended, acts);
        }
        acts.extend((0..state.letters.len()).map(Act::Letter));
        if self.grants == 0 && self.views == 0 {
            acts.push(Act::Tick(None));
            if self.lag {
                let steady = |m: &usize| state.members[*m].steady == 0 && state.members[*m].up;
                acts.extend((0..self.members).filter(steady).map(|m| Act::Tick(Some(m))));
            }
        }
        if state.recreations < self.recreations {
            acts.push(Act::Recreate);
        }
    }

    fn next_state(&self, before: &State, act: Act) -> Option<State> {
        let mut state = before.clone();
        match act {
            Act::Deliver(i) => self.deliver(&mut state, i),
            Act::Apply(i) => self.apply_only(&mut state, i),
            Act::TimeOut(i) => self.time_out(&mut state, i),
            Act::Tick(slow) => self.tick(&mut state, slow),
            Act::Wake(m) => self.step(&mut state, m, Event::Tick),
            Act::Watch(m) => {
                let seen = state.store.lease.as_ref().map(|record| (record.revision, record.value.clone()));
                let seen = if self.grants > 0 { None } else { seen };
                self.step(&mut state, m, Event::Lease { unit: unit(), seen });
            }
            Act::Suspect(m, other) => self.evidence(&mut state, m, other),
            Act::Crash(m) => self.crash(&mut state, m),
            Act::Begin(m) => {
                state.members[m].up = true;
                self.begin(&mut state, m);
            }
            Act::Stopped(m) => self.step(&mut state, m, Event::Stopped { unit: unit() }),
            Act::Leave(m) => {
                state.leaves += 1;
                self.step(&mut state, m, Event::Leave { within_ms: crate::world::NEVER });
            }
            Act::Letter(i) => self.letter(&mut state, i),
            Act::View(m, mask) => self.set_view(&mut state, m, mask),
            Act::Recreate => self.recreate(&mut state),
            Act::SeeBucket(m) => {
                let generation = crate::protocol::record::Generation(state.store.generation);
                self.step(&mut state, m, Event::Bucket { generation, regressed: false });
            }
            Act::Work(m) => {
                let Some(worker) = &mut state.members[m].worker else { return None };
                worker.waits = true;
                let position = worker.next();
                self.step(&mut state, m, Event::Write { unit: unit(), batch: Batch(0), position });
            }
            Act::Publish(m) => {
                state.publications += 1;
                state.members[m].no = u64::from(state.publications);
                let spec = self.spec(state.members[m].no);
                self.step(&mut state, m, Event::Units(spec));
            }
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
            Property::sometimes("a member may act", acts),
            Property::sometimes("the unit moves", moves),
        ]
    }
}

impl World {
    fn member_actions(&self, state: &State, m: usize, alive: bool, acts: &mut Vec<Act>) {
        let member = &state.members[m];
        if !alive {
            if member.lives < self.lives {
                acts.push(Act::Begin(m));
            }
            return;
        }
        let record = state.store.lease.as_ref().map(|record| (record.revision, record.value.clone()));
        let record = if self.grants > 0 { None } else { record };
        acts.push(Act::Wake(m));
        if !member.node.has_seen(&unit(), record.as_ref()) {
            acts.push(Act::Watch(m));
        }
        if state.suspicions < self.suspicions {
            let others = (0..self.members).filter(|other| *other != m && state.members[*other].lives > 0);
            acts.extend(others.map(|other| Act::Suspect(m, other)));
        }
        if state.crashes < self.crashes {
            acts.push(Act::Crash(m));
        }
        if member.node.is_stopping(&unit()) {
            acts.push(Act::Stopped(m));
        }
        if state.leaves < self.leaves && member.node.phase() == Phase::Live {
            acts.push(Act::Leave(m));
        }
        if state.views < self.views {
            acts.extend((1..1 << self.members).filter(|mask| mask & (1 << m) != 0).map(|mask| Act::View(m, mask)));
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

    fn letter(&self, state: &mut State, i: usize) {
        use crate::protocol::record::TenureNumber;
        let (to, letter) = state.letters.remove(i);
        let m = crate::world::member_of(to);
        if state.members[m].node.incarnation() != to {
            return;
        }
        let event = match letter {
            crate::world::Letter::Claim { from, tenure } => {
                Event::Claim { from, unit: unit(), tenure: TenureNumber(tenure) }
            }
            crate::world::Letter::Decline { from, tenure } => {
                Event::Declined { from, unit: unit(), tenure: TenureNumber(tenure) }
            }
        };
        self.step(state, m, event);
    }

    pub fn with(mut self, mutant: crate::protocol::mutant::Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }

    pub fn flawed(mut self, flaw: Flaw) -> Self {
        self.flaw = Some(flaw);
        self
    }

    /// Explores all states; every invariant holds and the world is not vacuous. Returns the number of distinct states.
    pub fn exhaust(self) -> usize {
        let name = self.name;
        let checker = self.checker().threads(THREADS).target_state_count(STATES_MAX).spawn_bfs().join();
        assert!(checker.state_count() < STATES_MAX, "{name}: not explored to the end");
        let states = checker.unique_state_count();
        println!("{name}: {states} distinct states, depth {}", checker.max_depth());
        for id in IDS {
            if let Some(path) = checker.discovery(id) {
                panic!("{name}: {id} breaks: {:#?}\n{:?}", path.clone().into_actions(), path.last_state().broken);
            }
        }
        for lively in ["a member may act", "the unit moves"] {
            assert!(checker.discovery(lively).is_some(), "{name}: never seen: {lively}");
        }
        states
    }

    /// The wrong rule is caught by one of `ids`. Returns the steps of the counterexample.
    pub fn caught_by(self, ids: &[&str]) -> usize {
        use stateright::HasDiscoveries;
        let (name, mutant, flaw) = (self.name, self.mutant, self.flaw);
        let known = IDS.iter().copied().collect();
        let checker = self.checker().finish_when(HasDiscoveries::AnyOf(known)).threads(THREADS).spawn_bfs().join();
        let found: Vec<_> = IDS.iter().filter_map(|id| Some((*id, checker.discovery(id)?))).collect();
        let what = mutant.map_or_else(|| format!("{flaw:?}"), |mutant| format!("{mutant:?}"));
        let Some((id, path)) = found.into_iter().next() else {
            panic!("{name}: {what} is not caught in {} states", checker.unique_state_count());
        };
        let steps = path.into_actions().len();
        println!("{name}: {what} is caught by {id} in {steps} steps ({} states)", checker.unique_state_count());
        assert!(ids.contains(&id), "{name}: {what} is caught by {id}, not by {ids:?}");
        steps
    }
}
