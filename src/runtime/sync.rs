//! The chore that follows a git repository: fetches on a period and when asked, and publishes what it finds.
//!
//! One member does it for all. What came of the last look is a record in the versions bucket, so that every member can show it: whether
//! the repository was read and its manifests published is one thing, whether they run well another.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::load::{self, Shown};
use super::ownership::Owned;
use super::planning::Given;
use super::publisher::{self, How, Publisher};
use crate::origin::git::{self, Commit, Mirror};
use crate::ports::bus;
use crate::ports::store::Change;
use crate::protocol::Role;
use crate::protocol::publish::Made;
use crate::unit::status::short;
use crate::unit::tenancy::Tenancy;

/// Problems kept in the record.
const PROBLEMS_MAX: usize = 50;
/// A set that a member rejected is offered again this often, besides after every change.
const OFFERED_AGAIN: Duration = Duration::from_secs(300);
/// How long a shorter wait for a head or a request may be cut into.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How the repository stands to what is published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "SyncState")]
pub enum State {
    /// Nothing was read yet.
    #[default]
    Pending,
    /// The newest commit is published.
    Synced,
    /// The newest commit is not published; the reason says why and what to do.
    Refused,
    /// The repository cannot be read now; what is published goes on.
    Failing,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Synced => "synced",
            State::Refused => "refused",
            State::Failing => "failing",
        }
    }
}

/// What came of the last look at the repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Sync")]
pub struct Sync {
    pub state: State,
    /// Without credentials.
    pub url: String,
    /// The branch, tag or commit that is followed.
    pub reference: String,
    /// The commit that was looked at last.
    pub commit: Option<String>,
    /// Its author and the first line of its message.
    pub author: Option<String>,
    pub subject: Option<String>,
    pub reason: Option<String>,
    /// The commit before was not an ancestor of this one: somebody rewrote the history.
    pub rewritten: bool,
    /// Errors and warnings in the manifests of the commit.
    pub problems: Vec<Shown>,
    /// Which process looked.
    pub instance: String,
    /// Since when it stands so, RFC 3339.
    pub since: String,
}

/// The chore, for whichever instance owns it.
pub fn chore(publisher: Publisher, mirror: Mirror, period: Duration) -> Owned {
    Owned::exclusive(
        Role::Worker,
        Arc::new(move |tenancy| {
            let (publisher, mirror) = (publisher.clone(), mirror.clone());
            Box::pin(async move {
                Syncing { publisher, mirror, period, offered: None, told: None }.run(tenancy).await;
                Ok(())
            })
        }),
    )
}

/// What was tried last, and what it came to.
struct Offered {
    commit: Commit,
    /// The head it was tried against.
    no: u64,
    confirmed: Option<String>,
    /// Nothing but another commit or head changes the outcome.
    settled: bool,
    at: Duration,
}

struct Syncing {
    publisher: Publisher,
    mirror: Mirror,
    period: Duration,
    offered: Option<Offered>,
    told: Option<Sync>,
}

type Requests = BoxStream<'static, Result<Change, bus::Error>>;

/// Why a wait is over.
enum Woken {
    Look,
    /// The requests cannot be heard any more.
    Broken,
}

impl Syncing {
    async fn run(&mut self, mut tenancy: Tenancy) {
        // Kept over all looks: what is asked during one is not known to it, and causes another. What stood there at the beginning causes
        // one too many.
        let mut requests = self.publisher.versions.watch_sync_requests();
        while tenancy.permitted().await {
            tenancy.progress();
            let stopping = tenancy.stopping.clone();
            let turn = async {
                self.look(&mut tenancy).await;
                self.wait(&mut tenancy, &mut requests).await
            };
            match stopping.run_until_cancelled(turn).await {
                None => return,
                Some(Woken::Look) => {}
                Some(Woken::Broken) => requests = self.publisher.versions.watch_sync_requests(),
            }
        }
    }

    /// Until it is time, somebody asks, or the head is another one.
    async fn wait(&self, tenancy: &mut Tenancy, requests: &mut Requests) -> Woken {
        let clock = Arc::clone(&self.publisher.context.clock);
        let until = clock.monotonic() + self.period;
        while clock.monotonic() < until {
            tenancy.progress();
            let left = until.saturating_sub(clock.monotonic()).min(WAIT_MAX);
            match tokio::time::timeout(left, requests.next()).await {
                Ok(Some(Ok(Change::Put(_)))) => return Woken::Look,
                Ok(Some(Ok(_))) | Err(_) => {}
                Ok(None | Some(Err(_))) => {
                    // The bus is away; a watch that is made at once would break at once.
                    tokio::time::sleep(left).await;
                    return Woken::Broken;
                }
            }
            let head = self.publisher.head().await.ok();
            let moved = head.zip(self.offered.as_ref()).is_some_and(|(head, offered)| {
                (head.no, &head.confirmed) != (offered.no, &offered.confirmed) && head.candidate.is_none()
            });
            if moved {
                return Woken::Look;
            }
        }
        Woken::Look
    }

    /// Says that it is alive while it looks: a server may take its time.
    async fn look(&mut self, tenancy: &mut Tenancy) {
        let mut alive = tokio::time::interval(WAIT_MAX);
        let look = self.look_once();
        tokio::pin!(look);
        loop {
            tokio::select! {
                () = &mut look => return,
                _ = alive.tick() => tenancy.progress(),
            }
        }
    }

    async fn look_once(&mut self) {
        let sync = match self.sync().await {
            Ok(sync) => sync,
            Err(reason) => {
                Sync { state: State::Failing, reason: Some(reason), ..self.told.clone().unwrap_or_default() }
            }
        };
        self.tell(sync).await;
    }

    async fn sync(&mut self) -> Result<Sync, String> {
        let commit = self.blocking(|mirror| mirror.fetch()).await?.map_err(|error| error.to_string())?;
        let head = self.publisher.head().await.map_err(|error| error.to_string())?;
        let now = self.publisher.context.clock.monotonic();
        if let (Some(offered), Some(told)) = (&self.offered, &self.told)
            && offered.commit == commit
            && (offered.no, &offered.confirmed) == (head.no, &head.confirmed)
            && (offered.settled || now.saturating_sub(offered.at) < OFFERED_AGAIN)
            && told.state != State::Failing
        {
            return Ok(told.clone());
        }
        let mut sync = self.about(&commit).await?;
        let (state, reason) = self.offer(&commit, &mut sync).await?;
        (sync.state, sync.reason) = (state, reason);
        let head = self.publisher.head().await.map_err(|error| error.to_string())?;
        let settled = state == State::Synced;
        self.offered = Some(Offered { commit, no: head.no, confirmed: head.confirmed, settled, at: now });
        Ok(sync)
    }

    async fn about(&self, commit: &Commit) -> Result<Sync, String> {
        let before = self.told.as_ref().and_then(|told| told.commit.clone());
        let (id, was) = (commit.id.clone(), before.clone());
        let rewritten = match was {
            Some(was) => !self.blocking(move |mirror| mirror.follows(&id, &was)).await?,
            None => false,
        };
        if rewritten {
            let before = before.unwrap_or_default();
            tracing::warn!(before, commit = commit.id, "the history of the repository was rewritten");
        }
        Ok(Sync {
            commit: Some(commit.id.clone()),
            author: Some(commit.author.clone()),
            subject: Some(commit.subject.clone()),
            rewritten,
            ..Sync::default()
        })
    }

    /// Publishes the commit, or says why not. The error is one that the next look may not meet.
    async fn offer(&self, commit: &Commit, sync: &mut Sync) -> Result<(State, Option<String>), String> {
        let (wanted, config) = (commit.clone(), Arc::clone(self.publisher.config()));
        let loaded = self
            .blocking(move |mirror| {
                let snapshot = mirror.snapshot(&wanted).map_err(|error| (error.to_string(), is_final(&error)))?;
                load::compile(&config, &snapshot).map_err(|error| (error.to_string(), false))
            })
            .await?;
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err((reason, true)) => return Ok((State::Refused, Some(reason))),
            Err((reason, false)) => return Err(reason),
        };
        sync.problems = loaded.problems.iter().take(PROBLEMS_MAX).cloned().collect();
        if loaded.documents == 0 {
            let reason = format!(
                "commit {} has no manifest below {:?}; nothing is removed for that",
                short(&commit.id),
                self.mirror.options().path
            );
            return Ok((State::Refused, Some(reason)));
        }
        let given = Given::of(loaded, String::new());
        if self.publisher.config().strict && given.errors > 0 {
            let reason =
                format!("its manifests have {}, and --strict takes none with errors", load::errors_text(given.errors));
            return Ok((State::Refused, Some(reason)));
        }
        let made = Made {
            commit: Some(commit.id.clone()),
            author: Some(commit.author.clone()),
            reason: Some(commit.subject.clone()).filter(|subject| !subject.is_empty()),
            ..self.publisher.made("git")
        };
        match self.publisher.publish(&given, made, &How::default()).await {
            Ok(published) => {
                if !published.unchanged {
                    tracing::info!(commit = commit.id, no = published.head.no, "published from git");
                }
                let reason = (given.errors > 0).then(|| {
                    format!(
                        "{}: what has one keeps its last good version; the first is {}",
                        load::errors_text(given.errors),
                        given.first_error
                    )
                });
                Ok((State::Synced, reason))
            }
            Err(publisher::Error::Bus(error)) if error.is_retryable() => Err(error.to_string()),
            Err(error) => Ok((State::Refused, Some(error.to_string()))),
        }
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(Mirror) -> T + Send + 'static) -> Result<T, String> {
        let mirror = self.mirror.clone();
        let work = tokio::task::spawn_blocking(move || work(mirror));
        work.await.map_err(|panic| format!("the look at the repository broke off: {panic}"))
    }

    /// Writes the record when something about it is new.
    async fn tell(&mut self, sync: Sync) {
        let (options, context) = (self.mirror.options(), &self.publisher.context);
        let mut sync = Sync {
            url: options.shown(),
            reference: options.reference.clone().unwrap_or_else(|| "the default branch".to_owned()),
            instance: context.instance.to_string(),
            ..sync
        };
        let same = |told: &Sync| Sync { since: sync.since.clone(), ..told.clone() } == sync;
        let count = |state: State| metrics::counter!("vejas_git_looks_total", "state" => state.as_str()).increment(1);
        count(sync.state);
        if self.told.as_ref().is_some_and(same) {
            return;
        }
        sync.since = context.clock.now().to_string();
        match (&sync.state, &sync.reason) {
            (State::Synced, None) => tracing::info!(commit = sync.commit, "in line with the repository"),
            (state, reason) => {
                tracing::error!(
                    state = state.as_str(),
                    commit = sync.commit,
                    "git: {}",
                    reason.as_deref().unwrap_or("")
                );
            }
        }
        match self.publisher.versions.write_sync(&sync).await {
            Ok(()) => self.told = Some(sync),
            // Told again with the next look.
            Err(error) => tracing::warn!("how the repository stands cannot be told: {error}"),
        }
    }
}

/// Whether another look at the same commit would find the same.
fn is_final(error: &git::Error) -> bool {
    matches!(error, git::Error::NotSigned { .. } | git::Error::NoPath { .. } | git::Error::TooLarge { .. })
}

impl Publisher {
    /// How the repository stands; none without one.
    pub async fn sync(&self) -> Result<Option<Sync>, bus::Error> {
        self.versions.sync().await
    }
}
