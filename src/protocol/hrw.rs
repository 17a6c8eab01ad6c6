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

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: usize = 10_000;

    fn members(count: u128) -> BTreeMap<Incarnation, Instance> {
        (0..count).map(|i| (Incarnation(i), format!("vejas-{i}").into())).collect()
    }

    fn owners(members: &BTreeMap<Incarnation, Instance>) -> Vec<Incarnation> {
        (0..UNITS).map(|i| ranking(&Unit::new(&format!("source/{i}")), members)[0]).collect()
    }

    /// Members of different versions must agree: these never change.
    #[test]
    fn golden_vectors() {
        let golden = [
            ("source/heartbeat", "vejas-0", 539_559_380_115_866_962),
            ("source/orders-kafka/3", "vejas-1", 2_772_315_303_728_967_175),
            ("chore/git-sync", "", 18_173_480_459_463_590_725),
            ("", "", 7_914_976_873_989_998_928_u64),
        ];
        for (unit, instance, expected) in golden {
            assert_eq!(weight(&Unit::new(unit), instance), expected, "{unit} {instance}");
        }
    }

    #[test]
    fn parts_are_framed_by_their_length() {
        assert_ne!(weight(&Unit::new("ab"), "c"), weight(&Unit::new("a"), "bc"));
    }

    #[test]
    fn rank_is_the_place_in_the_ranking_also_for_two_of_one_name() {
        let mut members = members(5);
        members.insert(Incarnation(77), "vejas-0".into());
        for i in 0..200 {
            let unit = Unit::new(&format!("source/{i}"));
            let order = ranking(&unit, &members);
            for (place, inc) in order.iter().enumerate() {
                assert_eq!(rank(&unit, &members, *inc), Some(place));
            }
        }
        assert_eq!(rank(&Unit::new("source/0"), &members, Incarnation(1_000)), None);
    }

    #[test]
    fn no_share_is_further_than_four_standard_deviations_from_even() {
        for count in [3_u32, 5, 16] {
            let owners = owners(&members(u128::from(count)));
            let p = 1.0 / f64::from(count);
            let (even, deviation) = (UNITS as f64 * p, (UNITS as f64 * p * (1.0 - p)).sqrt());
            for member in 0..u128::from(count) {
                let share = owners.iter().filter(|owner| owner.0 == member).count() as f64;
                assert!((share - even).abs() <= 4.0 * deviation, "{count} members: {member} owns {share} of {even}");
            }
        }
    }

    #[test]
    fn a_member_that_leaves_moves_only_its_own_share_in_the_whole_order() {
        let all = members(5);
        for i in 0..1_000 {
            let unit = Unit::new(&format!("source/{i}"));
            for gone in all.keys() {
                let mut rest = all.clone();
                rest.remove(gone);
                let without: Vec<_> = ranking(&unit, &all).into_iter().filter(|inc| inc != gone).collect();
                assert_eq!(ranking(&unit, &rest), without);
            }
        }
    }
}
