//! Follows the head: tells when it changes, answers for this member whether it can run a candidate, and ends a candidate whose
//! publisher does not.
//!
//! A candidate is answered once, from its contents alone. The answer is a statement, not a promise: nothing is held back for it.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::publisher::Publisher;
use super::versions::Answer;
use crate::ports::bus::Error;
use crate::protocol::publish::{Candidate, DEADLINE, Head};

/// A watch is only a notification: the head is also read this often.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// After the deadline its own publisher aborts it first.
const DEADLINE_MARGIN: Duration = Duration::from_secs(2);
/// Reasons written down.
const REASONS_MAX: usize = 20;

/// Tells of every other head, until stopped.
pub(super) async fn follow(publisher: Publisher, told: watch::Sender<Head>, stopping: CancellationToken) {
    let mut follower = Follower { publisher, told, answered: None };
    stopping.run_until_cancelled(follower.run()).await;
}

struct Follower {
    publisher: Publisher,
    told: watch::Sender<Head>,
    /// The last candidate that was answered, and since when it is known.
    answered: Option<(u64, Duration)>,
}

impl Follower {
    async fn run(&mut self) {
        loop {
            let mut changes = self.publisher.versions.watch_head();
            loop {
                let next = tokio::time::timeout(LOOK_PERIOD, changes.next()).await;
                if let Err(error) = self.look().await {
                    tracing::debug!("the head cannot be read: {error}");
                }
                if matches!(next, Ok(None | Some(Err(_)))) {
                    break;
                }
            }
            // The bus is away; a watch that is made at once would break at once.
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    async fn look(&mut self) -> Result<(), Error> {
        let (head, _) = self.publisher.versions.head().await?;
        self.told.send_if_modified(|told| {
            let changed = *told != head;
            told.clone_from(&head);
            changed
        });
        let Some(candidate) = &head.candidate else { return Ok(()) };
        let now = self.publisher.context.clock.monotonic();
        match self.answered {
            Some((id, since)) if id == candidate.id => {
                if now.saturating_sub(since) > DEADLINE + DEADLINE_MARGIN {
                    self.end(candidate).await;
                }
                Ok(())
            }
            _ => {
                let Some(inc) = self.publisher.ownership.shown().inc else { return Ok(()) };
                let answer = self.answer(candidate).await?;
                self.publisher.versions.answer(candidate.id, inc, &answer).await?;
                self.answered = Some((candidate.id, now));
                Ok(())
            }
        }
    }

    async fn answer(&self, candidate: &Candidate) -> Result<Answer, Error> {
        let publisher = &self.publisher;
        let mut reasons = match publisher.compile(&candidate.revision, true).await {
            Ok((_, failures)) => failures,
            Err(super::publisher::Error::Bus(error)) if error.is_retryable() => return Err(error),
            Err(error) => vec![error.to_string()],
        };
        reasons.truncate(REASONS_MAX);
        if !reasons.is_empty() {
            tracing::error!(candidate = candidate.id, "a candidate cannot be run here: {}", reasons.join("; "));
        }
        let (instance, at) = (publisher.context.instance.to_string(), publisher.context.clock.now().0);
        Ok(Answer { instance, reasons, at })
    }

    /// Its publisher has ended, or cannot write.
    async fn end(&self, candidate: &Candidate) {
        let reason = format!("it was not decided within {} s", DEADLINE.as_secs());
        match self.publisher.decide(candidate.id, &|head| head.aborted(candidate.id, &reason)).await {
            Ok(_) => tracing::warn!(candidate = candidate.id, by = candidate.made.by, "a candidate is ended: {reason}"),
            Err(error) => tracing::debug!("a candidate is ended later: {error}"),
        }
    }
}
