//! What a set of manifests would change: the units that are published beside the units that are given.
//!
//! Pure. A manifest with an error keeps what it declared before, in its last good version; an empty or unreadable tree removes nothing;
//! and who would remove much has to be sure ([`Plan::guard`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::contents::{self, Piece};
use super::load::{Loaded, LoadedUnit};
use crate::id::UnitId;
use crate::manifest::check::LeftOut;

/// So many removals at least, and more than a third of all units, wait for a person.
const REMOVALS_GUARDED: usize = 5;

/// A set of manifests as it was read.
#[derive(Default)]
pub struct Given {
    pub wanted: BTreeMap<UnitId, Arc<LoadedUnit>>,
    pub left_out: BTreeMap<UnitId, LeftOut>,
    /// Files and folders with an error in them.
    pub faulty: BTreeSet<String>,
    /// What all paths begin with: an error there hides everything.
    pub root: String,
    pub documents: usize,
    pub errors: usize,
    pub first_error: String,
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Given({} units)", self.wanted.len())
    }
}

/// A unit as the set in effect has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// Hex digits.
    pub digest: String,
    /// The file that declares it; none while only its record is known.
    pub file: Option<String>,
}

pub type Units = BTreeMap<UnitId, Current>;

/// One unit of a set.
#[derive(Debug, Clone)]
pub struct Listed {
    pub id: UnitId,
    pub digest: String,
    pub pieces: Vec<Arc<Piece>>,
}

/// What follows from a set.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub set: Vec<Listed>,
    /// The digest over the set.
    pub revision: String,
    pub removed: Vec<UnitId>,
    /// Those that run on in an earlier version, because what they are now cannot be told.
    pub kept: Vec<UnitId>,
    /// How many units there are without the removals.
    pub before: usize,
}

impl Given {
    pub fn of(loaded: Loaded, root: String) -> Self {
        let (first_error, errors) = (loaded.first_error(), loaded.errors());
        let wanted: BTreeMap<UnitId, Arc<LoadedUnit>> =
            loaded.units.into_iter().map(|unit| (unit.id.clone(), Arc::new(unit))).collect();
        let left_out = loaded.left_out.into_iter().map(|one| (one.id.clone(), one));
        let left_out = left_out.filter(|(id, _)| !wanted.contains_key(id)).collect();
        let (faulty, documents) = (loaded.faulty, loaded.documents);
        Given { left_out, wanted, faulty, root, documents, errors, first_error }
    }

    /// A set that is published: nothing is wrong with it.
    pub fn published(wanted: BTreeMap<UnitId, Arc<LoadedUnit>>) -> Self {
        Given { wanted, documents: 1, ..Given::default() }
    }

    pub fn plan(&self, current: &Units) -> Plan {
        let mut plan = Plan { before: current.len(), ..Plan::default() };
        for (id, unit) in current {
            if self.wanted.contains_key(id) {
                continue;
            }
            let stays = self.documents == 0 || self.left_out.contains_key(id) || self.hides(unit.file.as_deref());
            if stays { &mut plan.kept } else { &mut plan.removed }.push(id.clone());
        }
        let wanted = self.wanted.iter().map(|(id, unit)| Listed {
            id: id.clone(),
            digest: unit.digest.clone(),
            pieces: unit.pieces.clone(),
        });
        let kept = plan.kept.iter().map(|id| Listed {
            id: id.clone(),
            digest: current[id].digest.clone(),
            pieces: Vec::new(),
        });
        plan.set = wanted.chain(kept).collect();
        plan.revision = revision(&plan.set);
        plan
    }

    /// Whether something with an error in it may still declare what `file` declared.
    fn hides(&self, file: Option<&str>) -> bool {
        let holds = |place: &String| match file {
            Some(file) => place == file || file.strip_prefix(place.as_str()).is_some_and(|rest| rest.starts_with('/')),
            None => true,
        };
        self.faulty.contains(&self.root) || self.faulty.iter().any(holds)
    }
}

impl Plan {
    /// Names this change: what is in effect, and what would be.
    pub fn hash(&self, parent: u64) -> String {
        let mut hash = Sha256::new();
        hash.update(parent.to_be_bytes());
        hash.update(self.revision.as_bytes());
        contents::hex(&hash.finalize().into())
    }

    /// Why a person has to confirm it.
    pub fn guard(&self) -> Option<String> {
        let (removed, before) = (self.removed.len(), self.before);
        (removed >= REMOVALS_GUARDED && removed * 3 > before)
            .then(|| format!("it removes {removed} of {before} units, which is more than a third"))
    }

    /// The same without its removals, which then are kept.
    pub fn without_removals(mut self, current: &Units) -> Plan {
        let removed = std::mem::take(&mut self.removed);
        let listed = |id: &UnitId| Listed { id: id.clone(), digest: current[id].digest.clone(), pieces: Vec::new() };
        self.set.extend(removed.iter().map(listed));
        self.kept.extend(removed);
        self.revision = revision(&self.set);
        self
    }
}

/// What becomes of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Create,
    /// Goes on at the message behind the last granted one; nothing stops.
    InPlace,
    /// Stops and starts: a source.
    Restart,
    /// Reads something else: another durable takes over where the former version ends.
    Recreate,
    /// Its messages wait for its return.
    Remove,
    /// Has an error; its last good version goes on.
    Keep,
}

/// The set as it is stored and digested: sorted lines `<unit> <digest>`.
pub fn lines(set: &[Listed]) -> String {
    let sorted: BTreeMap<&UnitId, &str> = set.iter().map(|unit| (&unit.id, unit.digest.as_str())).collect();
    sorted.into_iter().map(|(id, digest)| format!("{id} {digest}\n")).collect()
}

/// SHA-256 over the lines of a set.
pub fn revision(set: &[Listed]) -> String {
    contents::hex(&Sha256::digest(lines(set).as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::UnitKind;

    fn unit(name: &str) -> UnitId {
        UnitId::new(UnitKind::Flow, name)
    }

    fn current(names: &[&str]) -> Units {
        let one =
            |name: &&str| (unit(name), Current { digest: format!("{name}-1"), file: Some(format!("m/{name}.yaml")) });
        names.iter().map(one).collect()
    }

    fn given(documents: usize, faulty: &[&str]) -> Given {
        let faulty = faulty.iter().map(|place| (*place).to_owned()).collect();
        Given { documents, faulty, root: "m".to_owned(), ..Given::default() }
    }

    #[test]
    fn what_is_gone_is_removed_and_what_an_error_hides_is_kept() {
        let plan = given(3, &["m/b.yaml"]).plan(&current(&["a", "b"]));
        assert_eq!((plan.removed, plan.kept), (vec![unit("a")], vec![unit("b")]));
        let plan = given(3, &["m"]).plan(&current(&["a", "b"]));
        assert_eq!(plan.removed, [], "the folder itself cannot be read");
        let plan = given(0, &[]).plan(&current(&["a", "b"]));
        assert_eq!(plan.removed, [], "an empty tree says nothing");
    }

    #[test]
    fn a_third_or_less_and_fewer_than_five_go_without_asking() {
        let names: Vec<String> = (0..15).map(|n| format!("u{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let removing = |n: usize| Plan {
            removed: names[..n].iter().map(|name| unit(name)).collect(),
            before: names.len(),
            ..Plan::default()
        };
        assert_eq!((removing(4).guard(), removing(5).guard()), (None, None));
        assert!(removing(6).guard().is_some());
        let four = Plan { removed: vec![unit("a"); 4], before: 4, ..Plan::default() };
        assert_eq!(four.guard(), None);
    }

    #[test]
    fn a_plan_without_its_removals_is_another_plan_and_keeps_what_was() {
        let current = current(&["a", "b"]);
        let plan = given(3, &[]).plan(&current);
        let kept = plan.clone().without_removals(&current);
        assert_eq!((kept.removed.len(), kept.kept.len(), kept.set.len()), (0, 2, 2));
        assert_ne!(plan.hash(1), kept.hash(1));
        assert_ne!(plan.hash(1), plan.hash(2), "the same set against another publication");
    }
}
