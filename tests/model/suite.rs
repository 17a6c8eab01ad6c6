//! What holds, world by world. What must not hold is in `wrong`.

use crate::world::World;
use crate::worlds::*;

#[test]
fn a_lease_by_ttl_has_one_holder() {
    lease().exhaust();
}

#[test]
fn a_clock_that_loses_a_tick_in_each_window_is_within_the_margin() {
    lease_of_slow_clocks().exhaust();
}

#[test]
fn a_bucket_made_anew_gives_nobody_a_second_holder() {
    bucket().exhaust();
}

#[test]
fn a_suspect_is_taken_over_only_when_it_cannot_act() {
    session().exhaust();
}

#[test]
fn session_gate_and_grace_hold_with_slow_clocks() {
    session_of_slow_clocks().exhaust();
    World { suspicions: 2, zombies: 0, ..session_of_slow_clocks() }.exhaust();
}

#[test]
fn who_leaves_stops_first() {
    leave().exhaust();
    World { suspicions: 1, zombies: 0, name: "L leaving, one suspicion", ..leave() }.exhaust();
}

#[test]
fn a_source_stores_each_message_once_whoever_is_granted_it() {
    source().exhaust();
}

#[test]
fn a_new_publication_opens_again_from_the_stored_position() {
    reopening().exhaust();
}

#[test]
fn a_unit_moves_once_per_change_of_view() {
    handover().exhaust();
}

/// The names of the members are such that each of a, b, c ranks above the one before it.
#[test]
fn c_ranks_before_b_before_a() {
    use crate::protocol::hrw::weight;
    let unit = crate::world::unit(0);
    assert!(weight(&unit, "c") > weight(&unit, "b") && weight(&unit, "b") > weight(&unit, "a"));
}

#[test]
fn two_of_one_name_are_two() {
    namesakes().exhaust();
}

#[test]
fn keys_of_an_older_bucket_touch_nothing_of_the_new_one() {
    bucket_of_restarting_numbers().exhaust();
}

#[test]
fn suspicion_and_expiry_of_sessions_together_give_nobody_a_second_owner() {
    session_that_expires().exhaust();
}

#[test]
fn who_leaves_with_two_units_hands_over_both() {
    leave_two_units().exhaust();
}

#[test]
fn claims_of_a_tenure_long_past_move_nothing() {
    old_claims().exhaust();
}

#[test]
fn an_owner_is_there_again_within_the_ttl() {
    healing_by_ttl().exhaust();
}

#[test]
fn an_owner_is_there_again_within_the_grace() {
    healing_by_suspicion().exhaust();
    World { zombies: 0, ..healing_of_orphans() }.exhaust();
}

#[test]
fn an_owner_is_always_there_where_nothing_fails() {
    calm_leaving().exhaust();
}
