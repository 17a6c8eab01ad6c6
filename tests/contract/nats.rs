//! The contract on a real nats-server. Its clock runs by itself, so times are short and have margins.

use std::sync::Arc;
use std::time::Duration;

use vejas::bus::nats::Nats;
use vejas::ports::bus::Bus;
use vejas::ports::store::Store;

use crate::Fixture;

#[path = "../support/nats.rs"]
mod server;

use server::Server;

pub struct NatsFixture {
    server: Server,
    bus: Arc<Nats>,
}

impl NatsFixture {
    pub async fn new() -> Self {
        let server = Server::start();
        let bus = server::connect(&server).await;
        NatsFixture { server, bus }
    }
}

impl Fixture for NatsFixture {
    const ACK_WAIT: Duration = Duration::from_millis(1500);
    const WINDOW: Duration = Duration::from_millis(1500);
    const PUT_OFF: Duration = Duration::from_secs(4);
    const BUCKET_TTL: Duration = Duration::from_secs(7);
    const ENTRY_TTL: Duration = Duration::from_secs(3);
    const EXPIRY_LAG: Duration = Duration::from_secs(1);
    const GRAIN: Duration = Duration::from_millis(500);
    const PACE: Duration = Duration::from_millis(20);

    fn bus(&self) -> Arc<dyn Bus> {
        self.bus.clone()
    }

    fn store(&self) -> Arc<dyn Store> {
        self.bus.clone()
    }

    /// The server too.
    async fn reopen(&mut self) {
        self.bus.close();
        self.server.stop();
        self.server.restart();
        self.bus = server::connect(&self.server).await;
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::sleep(by).await;
    }
}

crate::contract_cases! { super::NatsFixture::new().await;
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
