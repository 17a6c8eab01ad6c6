//! Rendezvous hashing: who should own a unit.
//!
//! Every member computes the same order from the same set; nobody sends a plan. What is hashed crosses processes and versions, so the
//! bytes are spelt out here, each part framed by its length (else `ab` + `c` and `a` + `bc` would be one), and pinned by golden
//! vectors. XXH3-64 is specified outside this program, mixes short inputs well and costs some ten nanoseconds.
//!
//! A member is ranked by its instance name, so that a restart gets its share back. Two members of one name tie and are ordered by
//! incarnation. One member that joins or leaves moves only its own share (own-M2).

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use super::record::{Incarnation, Instance, Unit};

/// First part of what is hashed: another layout of the bytes takes another name.
const DOMAIN: &[u8] = b"vejas.hrw.1";

/// The weight of `instance` for `unit`; the highest is first.
pub fn weight(unit: &Unit, instance: &str) -> u64 {
    let mut bytes = Vec::with_capacity(DOMAIN.len() + unit.as_str().len() + instance.len() + 24);
    for part in [DOMAIN, unit.as_str().as_bytes(), instance.as_bytes()] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    xxh3_64(&bytes)
}

/// The members in the order in which they should own `unit`.
pub fn ranking(unit: &Unit, members: &BTreeMap<Incarnation, Instance>) -> Vec<Incarnation> {
    let mut weighed: Vec<_> = members.iter().map(|(inc, instance)| (weight(unit, instance), instance, *inc)).collect();
    weighed.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)).then_with(|| a.2.cmp(&b.2)));
    weighed.into_iter().map(|(_, _, inc)| inc).collect()
}

/// Where `inc` stands in the order for `unit`; `None` when it is not a member.
pub fn rank(unit: &Unit, members: &BTreeMap<Incarnation, Instance>, inc: Incarnation) -> Option<usize> {
    let own = members.get(&inc)?;
    let own = (weight(unit, own), own, inc);
    let before = |(other, instance): (&Incarnation, &Instance)| {
        let weight = weight(unit, instance);
        weight > own.0 || (weight == own.0 && (instance, other) < (own.1, &own.2))
    };
    Some(members.iter().filter(|member| before((member.0, member.1))).count())
}
