//! The contract on the embedded bus.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vejas::bus::embedded::{Embedded, Options};
use vejas::flow::message::{MESSAGE_BYTES_MAX, Outgoing};
use vejas::ports::bus::{Bus, StreamConfig};
use vejas::ports::clock::Clock;
use vejas::ports::store::Store;
use vejas::time::Timestamp;

use crate::{Fixture, message, stream_config};

/// What the entrance admits at most, and its dead letter, which is larger by what is known of the failure.
#[tokio::test]
async fn the_largest_message_and_its_dead_letter_are_stored_and_survive_a_restart() {
    let mut fixture = EmbeddedFixture::new();
    let largest = MESSAGE_BYTES_MAX + (64 << 10);
    let limits = StreamConfig { bytes_max: 1 << 30, message_bytes_max: largest, ..stream_config::<EmbeddedFixture>() };
    fixture.bus().ensure_stream(limits.clone()).await.unwrap();
    let stream: Arc<str> = limits.name.as_str().into();
    let payload = vec![b'x'; largest - message("a.b", "").size_bytes()];
    let message = Outgoing { payload: payload.clone().into(), ..message("a.b", "") };
    assert_eq!(message.size_bytes(), largest);
    let sequence = fixture.bus().publish(&stream, message, None).await.unwrap().sequence;
    fixture.reopen().await;
    let read = fixture.bus().read(&stream, sequence, &[], 1).await.unwrap();
    assert!(read[0].payload == payload);
}

struct ManualClock(Mutex<Duration>);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_millis(1_800_000_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

pub struct EmbeddedFixture {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
    bus: Arc<Embedded>,
}

impl EmbeddedFixture {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock(Mutex::default()));
        let bus = Embedded::open(Options::new(dir.path(), clock.clone())).unwrap();
        EmbeddedFixture { dir, clock, bus }
    }
}

impl Fixture for EmbeddedFixture {
    const ACK_WAIT: Duration = Duration::from_secs(3);
    const WINDOW: Duration = Duration::from_secs(120);
    const PUT_OFF: Duration = Duration::from_secs(60);
    const BUCKET_TTL: Duration = Duration::from_secs(10);
    const ENTRY_TTL: Duration = Duration::from_secs(5);
    const EXPIRY_LAG: Duration = Duration::ZERO;
    const GRAIN: Duration = Duration::from_millis(1);
    const PACE: Duration = Duration::from_millis(100);

    fn bus(&self) -> Arc<dyn Bus> {
        self.bus.clone()
    }

    fn store(&self) -> Arc<dyn Store> {
        self.bus.clone()
    }

    async fn reopen(&mut self) {
        self.bus.close();
        self.bus = Embedded::open(Options::new(self.dir.path(), self.clock.clone())).unwrap();
    }

    async fn advance(&mut self, by: Duration) {
        *self.clock.0.lock().unwrap() += by;
        self.bus.wake();
    }
}

crate::contract_cases! { super::EmbeddedFixture::new();
    publish {
        sequences_are_gapless_and_in_call_order,
        concurrent_publishers_share_one_gapless_sequence,
        a_known_id_stores_nothing_and_answers_the_first_sequence,
        an_id_is_forgotten_after_the_window,
        ids_are_remembered_over_a_restart,
        concurrent_messages_with_one_id_are_stored_once,
        a_condition_on_the_last_sequence_wins_or_loses,
        one_of_many_conditional_publishers_wins,
        a_batch_is_stored_whole_or_not_at_all,
        a_full_stream_refuses_until_it_is_trimmed,
        a_message_above_the_limit_is_refused,
        a_foreign_subject_is_refused,
        ensuring_a_stream_is_idempotent_and_adjusts_limits_only,
        no_two_streams_share_a_subject,
        a_missing_stream_is_named,
    }
    durable {
        each_durable_gets_what_its_filters_match_in_order,
        a_message_that_matches_two_filters_comes_once,
        a_new_durable_begins_where_it_is_told,
        a_pull_waits_for_the_next_message,
        unanswered_messages_come_again_after_the_ack_wait,
        in_progress_keeps_a_message_from_coming_again,
        a_put_off_message_comes_again_after_its_delay,
        attempts_count_on_over_restarts,
        all_and_only_unacknowledged_messages_come_again_after_a_restart,
        put_off_messages_keep_their_time_over_a_restart,
        no_more_than_the_in_flight_limit_is_out,
        a_pull_keeps_to_its_bytes_but_gives_at_least_one,
        a_durable_far_behind_gets_everything_in_order,
        two_pullers_share_the_messages,
        ensuring_a_durable_is_idempotent_and_keeps_filters,
        a_deleted_durable_is_gone_and_may_be_made_again,
        the_state_of_a_durable_is_told,
        a_late_acknowledgement_counts,
    }
    settle {
        outputs_and_acknowledgements_go_together,
        the_last_acknowledgement_confirms_those_before_it,
        a_failing_condition_leaves_inputs_unacknowledged_and_outputs_absent,
        a_failing_store_write_refuses_the_whole_settlement,
        store_writes_go_with_the_settlement,
        acknowledging_the_unknown_changes_nothing,
        a_later_batch_sees_what_an_earlier_one_stores,
    }
    read {
        reading_filters_and_begins_where_it_is_told,
        a_read_is_bounded_in_messages,
        the_last_message_of_a_subject_is_found,
        times_are_found_by_sequence,
        trimming_keeps_the_last_of_named_subjects,
        removed_messages_are_gone_everywhere,
        trimmed_messages_stay_gone_after_a_restart,
    }
    store {
        an_absent_key_is_created_once,
        an_update_needs_the_current_revision,
        a_delete_needs_the_current_revision_and_the_key_reads_as_absent,
        concurrent_creators_have_one_winner,
        entries_expire_by_the_bucket_or_by_themselves,
        entries_survive_a_restart,
        a_list_is_by_prefix_in_order_and_in_pages,
        a_watch_shows_what_is_there_then_every_change,
        a_watch_of_one_key_tells_of_no_other,
        a_watcher_hears_of_expiry,
        a_slow_watcher_gets_the_last_value_of_every_key,
        a_value_above_the_limit_is_refused,
        each_write_wins_or_loses_for_itself,
    }
}
