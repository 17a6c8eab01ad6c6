//! Which set of units the instances run, until a publisher decides that for them.
//!
//! Each instance is given a set of manifests; `head` in the versions bucket says which set the cluster runs. The first instance of all
//! publishes its own. From then on the head moves to another set only when every member reports that it was given that set, for a while:
//! so a roll-out that goes through the instances one by one takes effect when the last of them has it, and at no moment do two run
//! different sets. An instance that was given another set runs the cluster's, from the contents of the versions bucket, and says so.
//!
//! A process that has its bus to itself publishes what it is given.

use std::time::Duration;

use super::planning::Plan;
use super::publisher::{Publisher, shown};
use super::units::{Change, Error};
use super::versions::Written;
use crate::protocol::publish::{Head, Suspension};
use crate::unit::status::short;

/// How long all members must have reported the same set before it is published.
const SETTLE: Duration = Duration::from_secs(3);

/// Tries of a start while nobody answers: servers that have just made a bucket may lose the first write to it.
const FIRST_TRIES_MAX: u32 = 4;
const AGAIN_AFTER: Duration = Duration::from_millis(250);

pub(super) enum Decision {
    /// The given set is the one that runs, under this head.
    Run(Head),
    /// Another one runs; why, for people.
    Differs(Head, String),
}

/// What runs here.
#[derive(Debug, PartialEq, Eq)]
struct Running {
    no: u64,
    revision: String,
    suspended: Vec<Suspension>,
    /// Why it is not the given set, if it is not.
    degraded: Option<String>,
}

pub(super) struct Agreement {
    publisher: Publisher,
    running: Option<Running>,
    /// Since when all members have reported this set, by the monotonic clock.
    agreed: Option<(String, Duration)>,
}

impl Agreement {
    pub fn new(publisher: &Publisher) -> Self {
        Agreement { publisher: publisher.clone(), running: None, agreed: None }
    }

    /// Decides for a set that this instance was given, and publishes it when it is time.
    pub async fn decide(&mut self, plan: &Plan) -> Result<Decision, Error> {
        self.publisher.ownership.describe(|describes| plan.revision.clone_into(&mut describes.revision));
        loop {
            let (head, at) = self.publisher.versions.head().await?;
            if head.is_published() && head.revision == plan.revision {
                return Ok(Decision::Run(head));
            }
            if head.is_published() && !self.may_publish(&head, &plan.revision) {
                let reason = self.reason(&plan.revision, &head);
                return Ok(Decision::Differs(head, reason));
            }
            self.publisher.store(plan).await?;
            let next = head.overtaken(&plan.revision, self.publisher.made("directory"), false);
            // Lost: somebody else published, and what that was decides.
            if let Written::Won(_) = self.publisher.versions.write_head(&next, at).await? {
                return Ok(Decision::Run(next));
            }
        }
    }

    /// The head, waiting a little at a start.
    pub async fn head(&self) -> Result<Head, Error> {
        // Later there is a set that runs, and another look in a moment.
        let tries_max = if self.running.is_none() { FIRST_TRIES_MAX } else { 1 };
        let mut tries = 1;
        loop {
            match self.publisher.head().await {
                Err(error) if error.is_retryable() && tries < tries_max => {
                    tracing::warn!("what is published is not known yet: {error}");
                    tries += 1;
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                head => return Ok(head?),
            }
        }
    }

    fn may_publish(&mut self, head: &Head, revision: &str) -> bool {
        head.pin_of(revision, None).is_none() && (self.publisher.is_alone() || self.is_agreed(revision))
    }

    /// Every member reports this set, and has for a while.
    fn is_agreed(&mut self, revision: &str) -> bool {
        let members = self.publisher.ownership.members();
        let own = self.publisher.ownership.shown().inc;
        let here = members.iter().any(|member| Some(member.inc) == own);
        let all = members.iter().all(|member| member.describes.revision == revision);
        if !here || !all {
            self.agreed = None;
            return false;
        }
        let now = self.publisher.context.clock.monotonic();
        match &self.agreed {
            Some((agreed, since)) if agreed == revision => now.saturating_sub(*since) >= SETTLE,
            _ => {
                self.agreed = Some((revision.to_owned(), now));
                false
            }
        }
    }

    fn reason(&self, revision: &str, head: &Head) -> String {
        if head.pin_of(revision, None).is_some() {
            return format!(
                "{} set the manifests of this instance aside: they take effect again when they change, or with `vejas publish`",
                shown(&head.current())
            );
        }
        let members = self.publisher.ownership.members();
        let others = members.iter().filter(|member| member.describes.revision != revision);
        let others: Vec<&str> = others.map(|member| member.instance.as_ref()).collect();
        let (given, runs) = (short(revision), short(&head.revision));
        // Whom it does not see itself among, it does not see whole.
        let own = self.publisher.ownership.shown().inc;
        let until = if !members.iter().any(|member| Some(member.inc) == own) {
            "once all instances have them".to_owned()
        } else if others.is_empty() {
            "in a moment".to_owned()
        } else {
            format!("once {} has them too", others.join(", "))
        };
        format!(
            "the cluster runs {runs} (no {}), this instance was given {given}: its manifests take effect {until}",
            head.no
        )
    }

    /// Whether something is to be done: the head has moved, the given set is agreed on, or it waits for other instances than it said.
    pub fn is_due(&mut self, head: &Head, revision: Option<&str>) -> bool {
        let differs = revision.filter(|revision| head.revision != *revision);
        let reason = differs.map(|revision| self.reason(revision, head));
        let agreed = differs.is_some_and(|revision| self.may_publish(head, revision));
        let is_told = |running: &Running| {
            let reason = reason.is_none() || running.degraded == reason;
            (running.no, &running.revision, &running.suspended) == (head.no, &head.revision, &head.suspended) && reason
        };
        agreed || !self.running.as_ref().is_some_and(is_told)
    }

    /// This runs here now.
    pub fn runs(&mut self, change: &Change, head: &Head) {
        self.running = Some(Running {
            no: change.no,
            revision: head.revision.clone(),
            suspended: head.suspended.clone(),
            degraded: change.degraded.clone(),
        });
        metrics::gauge!("vejas_publication").set(change.no as f64);
        self.describe(change.no, change.degraded.as_deref());
    }

    /// What is published is not in effect here.
    pub fn failed(&self, reason: &str) {
        let no = self.running.as_ref().map_or(0, |running| running.no);
        self.describe(no, Some(reason));
    }

    fn describe(&self, no: u64, degraded: Option<&str>) {
        metrics::gauge!("vejas_degraded").set(if degraded.is_some() { 1.0 } else { 0.0 });
        self.publisher.ownership.describe(|describes| {
            describes.no = no;
            describes.degraded = degraded.map(str::to_owned);
        });
    }
}
