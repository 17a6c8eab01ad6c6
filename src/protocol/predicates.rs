//! The invariants of the protocol as functions: what the model checks after every step.
//!
//! Each has the id under which `src/protocol/README.md` tells it. Those over the whole cluster take what an omniscient observer sees.

use std::collections::{BTreeMap, BTreeSet};

use super::Node;
use super::lease::Stage;
use super::node::Phase;
use super::record::{
    Fence, Generation, Hold, Incarnation, KvRevision, Lease, Position, Sequence, Session, SessionState, TenureNumber,
    Unit,
};
use super::timers::Moment;

/// An invariant that does not hold, by id, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Broken {
    pub id: &'static str,
    pub what: String,
}

fn broken(id: &'static str, what: impl Into<String>) -> Result<(), Broken> {
    Err(Broken { id, what: what.into() })
}

/// What must hold inside one node after every step.
///
/// # Panics
///
/// When it does not: the node is wrong, not its input.
pub fn check_node(node: &Node) {
    for (unit, state) in &node.units {
        if node.phase == Phase::Ended {
            assert!(state.tenure.is_none(), "own-L3: {unit} is held by an incarnation that is over");
        }
        let active = state.tenure.as_ref().is_some_and(|tenure| tenure.stage == Stage::Active);
        assert!(!active || state.running, "own-L3: {unit} is active and was not started");
        assert!(state.writer.is_none() || state.tenure.is_some(), "own-O4: {unit} may write without a tenure");
        assert!(!state.stopping || state.running, "own-L3: {unit} stops without running");
        assert!(!active || !state.spec.fenced || state.writer.is_some(), "own-O1: {unit} is active and was not opened");
    }
}

/// own-L3: at most one member may act for a unit. Each member comes with its own clock.
pub fn one_acts<'a>(members: impl IntoIterator<Item = (&'a Node, Moment)>, unit: &Unit) -> Result<(), Broken> {
    let acting: Vec<_> = members
        .into_iter()
        .filter(|(node, now)| node.may_act(unit, *now))
        .map(|(node, _)| node.incarnation())
        .collect();
    match acting.as_slice() {
        [] | [_] => Ok(()),
        [a, b, ..] => broken("own-L3", format!("{a} and {b} may both act for {unit}")),
    }
}

/// own-L1: at most one incarnation holds a tenure of a bucket. A win that is not confirmed, or was given up before it was used, is not
/// held.
pub fn one_holder<'a>(members: impl IntoIterator<Item = &'a Node>, unit: &Unit) -> Result<(), Broken> {
    let mut holders: BTreeMap<(Option<Generation>, TenureNumber), Incarnation> = BTreeMap::new();
    for node in members {
        let Some(state) = node.units.get(unit) else { continue };
        let Some(tenure) = &state.tenure else { continue };
        let used = match tenure.stage {
            Stage::Confirming => false,
            Stage::Opening | Stage::Active => true,
            Stage::Yielding { .. } => state.running || state.writer.is_some(),
        };
        if !used {
            continue;
        }
        let (number, inc) = (tenure.number, node.incarnation());
        let holder = *holders.entry((node.generation(), number)).or_insert(inc);
        if holder != inc {
            return broken("own-L1", format!("tenure {} of {unit} is held by {holder} and {inc}", number.0));
        }
    }
    Ok(())
}

/// own-L2: no record carries a lower tenure than any record before it; `grows` says so.
pub fn tenures_grow(grows: bool, after: &Lease) -> Result<(), Broken> {
    if grows { Ok(()) } else { broken("own-L2", format!("the tenure of {} goes back", after.unit)) }
}

/// own-L4: who frees or offers a unit removes its own lease, never a successor's.
pub fn only_own_is_given_up(before: Option<&(KvRevision, Lease)>, after: &Lease) -> Result<(), Broken> {
    match (before, after.hold) {
        (Some((_, lease)), Hold::Free | Hold::Offered { .. }) if lease.hold == Hold::Held && lease.inc != after.inc => {
            broken("own-L4", format!("{} gave up a lease of {}", after.inc, lease.inc))
        }
        _ => Ok(()),
    }
}

/// own-H1: after the first owners (one; two where ranks do not wait for each other), a unit starts anew at most once per change of
/// somebody's view.
pub fn moves_are_bounded(starts: u8, first: u8, changes: u8) -> Result<(), Broken> {
    if starts <= changes.saturating_add(first) {
        return Ok(());
    }
    broken("own-H1", format!("{starts} starts after {changes} changes of view"))
}

/// own-A1: a tenure that an answer ended is no longer named by the record.
pub fn ended_is_not_named(
    inc: Incarnation,
    number: TenureNumber,
    record: Option<&(KvRevision, Lease)>,
) -> Result<(), Broken> {
    match record {
        Some((revision, lease))
            if lease.hold == Hold::Held && lease.inc == inc && lease.tenure_at(*revision) == number =>
        {
            broken("own-A1", format!("tenure {} ended while the record names it", number.0))
        }
        _ => Ok(()),
    }
}

/// own-A1, for a whole life: an answer ended it, and its session does not stand any more.
pub fn ended_life_is_over(inc: Incarnation, session: Option<&Session>) -> Result<(), Broken> {
    match session {
        Some(session) if session.inc == inc && session.state != SessionState::Dead => {
            broken("own-A1", format!("{inc} ended while its session stands"))
        }
        _ => Ok(()),
    }
}

/// own-L5: once nothing fails any more, and as long as one member lives, nobody acts for a unit for at most `bound` units of time.
pub fn owned_again(idle: u64, bound: u64, unit: &Unit) -> Result<(), Broken> {
    if idle <= bound { Ok(()) } else { broken("own-L5", format!("nobody acts for {unit} after {idle}")) }
}

/// own-T1: a unit is taken over only from an incarnation that can never act again.
pub fn taken_from_the_gone<'a>(
    before: Option<&(KvRevision, Lease)>,
    after: &Lease,
    mut members: impl Iterator<Item = (&'a Node, Moment)>,
) -> Result<(), Broken> {
    let Some((_, lease)) = before else { return Ok(()) };
    let taken = lease.hold == Hold::Held && after.hold == Hold::Held && lease.inc != after.inc;
    let acts = |(node, now): (&Node, Moment)| node.incarnation() == lease.inc && node.may_act(&lease.unit, now);
    if taken && members.any(acts) {
        return broken("own-T1", format!("{} was taken from {} that may act", lease.unit, lease.inc));
    }
    Ok(())
}

/// What a unit stored, in order of sequence: its messages by an id, and its fence records.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stored {
    Message { inc: Incarnation, tenure: TenureNumber, run: super::record::Run, page: u64, off: u64 },
    Fence(Fence),
}

/// own-L7 with its parts, over all that one unit ever stored: no message twice and none missing (own-L7), the position never ahead of what
/// is stored (own-D2), tenures never interleave (own-D3), the position never goes back (own-D4), the publication number neither (own-D6),
/// and nothing is stored under a publication that was not opened (own-D7).
pub fn stored_is_right(log: &[(Sequence, Stored)]) -> Result<(), Broken> {
    let mut messages: BTreeSet<(u64, super::record::Run, u64)> = BTreeSet::new();
    let mut whole: BTreeSet<u64> = BTreeSet::new();
    let mut over: BTreeSet<(TenureNumber, Incarnation)> = BTreeSet::new();
    let mut writer: Option<(TenureNumber, Incarnation)> = None;
    let mut position: Option<&Position> = None;
    let mut no = 0;
    let mut in_batch = false;
    for (_, entry) in log {
        let by = match entry {
            Stored::Message { inc, tenure, .. } => (*tenure, *inc),
            Stored::Fence(fence) => (fence.tenure, fence.inc),
        };
        if let Some(before) = writer.replace(by)
            && before != by
        {
            over.insert(before);
            if over.contains(&by) || by.0 < before.0 {
                return broken("own-D3", format!("tenure {} writes after tenure {}", by.0.0, before.0.0));
            }
        }
        match entry {
            Stored::Message { run, page, off, .. } => {
                if !messages.insert((*page, *run, *off)) || whole.contains(page) {
                    return broken("own-L7", format!("message {off} of page {page} is stored twice"));
                }
            }
            Stored::Fence(fence) => {
                if fence.no < no {
                    return broken("own-D6", format!("publication {} after {no}", fence.no));
                }
                if fence.no != no && in_batch {
                    return broken("own-D7", format!("publication {} writes and was not opened", fence.no));
                }
                no = fence.no;
                position_follows(position, fence.position.as_ref(), &messages)?;
                position = fence.position.as_ref();
                if let Some(Position { done: true, page, .. }) = position {
                    whole.insert(*page);
                }
            }
        }
        in_batch = matches!(entry, Stored::Message { .. });
    }
    Ok(())
}

/// own-G2: where content differs from run to run, what is stored of one run was made by one incarnation in one tenure.
pub fn runs_are_of_one_maker(log: &[(Sequence, Stored)]) -> Result<(), Broken> {
    let mut makers: BTreeMap<(u64, super::record::Run), (TenureNumber, Incarnation)> = BTreeMap::new();
    for (_, entry) in log {
        let Stored::Message { inc, tenure, run, page, .. } = entry else { continue };
        let maker = *makers.entry((*page, *run)).or_insert((*tenure, *inc));
        if maker != (*tenure, *inc) {
            return broken("own-G2", format!("a run of page {page} mixes tenures {} and {}", maker.0.0, tenure.0));
        }
    }
    Ok(())
}

fn position_follows(
    before: Option<&Position>,
    after: Option<&Position>,
    messages: &BTreeSet<(u64, super::record::Run, u64)>,
) -> Result<(), Broken> {
    let passed = |position: &Position| if position.done { position.page + 1 } else { position.page };
    match (before, after) {
        (Some(_), None) => return broken("own-D4", "the position is gone"),
        (Some(before), Some(after)) => {
            let back = passed(after) < passed(before) || (after.run == before.run && after.off < before.off);
            if back {
                return broken("own-D4", format!("the position goes back to page {}", after.page));
            }
        }
        (None, _) => {}
    }
    let Some(after) = after else { return Ok(()) };
    let missing = (0..after.off).find(|off| !messages.contains(&(after.page, after.run, *off)));
    match missing {
        Some(off) => broken("own-D2", format!("page {} is passed without its message {off} in one run", after.page)),
        None => Ok(()),
    }
}
