//! Drives the protocol: one task owns the [`Node`](crate::protocol::Node), tells it what happens and does what it says.
//!
//! [`start`] is the door; [`Handle`] is what the rest of the process holds. `driver` is the task, `requests` puts its questions to the
//! stores, `members` announces this process and lists the others, `neighbours` pings and carries claims, `records` spells what is stored, `overview` shows it to people.
//!
//! Upholds: every request leaves after the moment its gates count from, and is answered once, as Unknown at the latest after the request
//! time-out; a unit's task is told to stop before the node is told that it has; nothing here decides who owns what.

mod driver;
pub mod members;
mod neighbours;
pub mod overview;
pub mod records;
mod requests;
mod settings;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};

pub use members::Member;
pub use settings::{NotSafe, Settings};

use crate::id::UnitId;
use crate::ports::bus;
use crate::ports::peers::Peers;
use crate::protocol::record::{Generation, Incarnation, Unit};
use crate::protocol::{Class, Role, UnitSpec};
use crate::unit::context::Context;
use crate::unit::status;
use crate::unit::tenancy::Tenancy;

/// Messages to the driver that may wait.
const INBOX_MAX: usize = 1024;

/// Why a process cannot go on owning units.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another start may find it back.
    #[error("the lease bucket has not answered for {} s: {reason}", silent.as_secs())]
    Lost { silent: Duration, reason: String },
    #[error(
        "the lease bucket keeps records for {} s, but this process is set to {} s (VEJAS_LEASE_TTL_SECS): all instances need the same; \
         to change it stop them all, delete the bucket {bucket} and start again",
        found.as_secs(),
        wanted.as_secs()
    )]
    Ttl { bucket: String, found: Duration, wanted: Duration },
    #[error("{unit}: {reason}")]
    Unit { unit: Unit, reason: String },
    #[error("bus: {0}")]
    Bus(#[from] bus::Error),
    #[error("{0} ended by itself")]
    Ended(&'static str),
}

/// What a unit does while it is held.
pub type Task = BoxFuture<'static, Result<(), String>>;

/// A unit that only one member may run, as this process would run it.
#[derive(Clone)]
pub struct Owned {
    pub spec: UnitSpec,
    /// Where its fence records are, if it has any.
    pub fence_subject: Option<String>,
    /// Its line in the status; chores have none.
    pub line: Option<Arc<status::Unit>>,
    pub run: Arc<dyn Fn(Tenancy) -> Task + Send + Sync>,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.spec)
    }
}

/// The protocol's name of a unit.
pub fn unit_of(id: &UnitId) -> Unit {
    Unit::new(&id.to_string())
}

/// What goes into a fence record of a digest in hex digits.
pub fn digest_of(hex: &str) -> u64 {
    hex.get(..16).and_then(|first| u64::from_str_radix(first, 16).ok()).unwrap_or(0)
}

impl Owned {
    /// A unit without fence records that also acts outside the bus.
    pub fn exclusive(role: Role, run: Arc<dyn Fn(Tenancy) -> Task + Send + Sync>) -> Self {
        let spec = UnitSpec { role, class: Class::Exclusive, fenced: false, no: 0, digest: 0 };
        Owned { spec, fence_subject: None, line: None, run }
    }
}

/// What this process owns now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    pub inc: Option<Incarnation>,
    pub generation: Option<Generation>,
    /// With the number of the tenure.
    pub holds: BTreeMap<Unit, u64>,
}

enum Said {
    Units {
        units: BTreeMap<Unit, Owned>,
        stopped: oneshot::Sender<()>,
    },
    /// Publications up to this one are in effect here.
    Applied(u64),
    Leave {
        within: Duration,
    },
    Event(crate::protocol::Event),
    Members(Vec<Member>),
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    inbox: mpsc::Sender<Said>,
    shown: Arc<Mutex<Shown>>,
    members: watch::Receiver<Arc<Vec<Member>>>,
    describes: watch::Sender<members::Describes>,
    drain: Arc<tokio::sync::Notify>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ownership::Handle")
    }
}

impl Handle {
    /// From now on these are the units this process would run. Completes when none runs any more that is not among them, or that is
    /// among them with another specification.
    pub async fn units(&self, units: BTreeMap<Unit, Owned>) {
        let (stopped, all_stopped) = oneshot::channel();
        if self.inbox.send(Said::Units { units, stopped }).await.is_ok() {
            let _ = all_stopped.await;
        }
    }

    /// This publication is in effect here.
    pub async fn applied(&self, no: u64) {
        let _ = self.inbox.send(Said::Applied(no)).await;
    }

    /// What the other members are told of this one.
    pub fn describe(&self, change: impl FnOnce(&mut members::Describes)) {
        self.describes.send_if_modified(|describes| {
            let before = describes.clone();
            change(describes);
            *describes != before
        });
    }

    /// Stops all units, hands them over and leaves. The driver's future completes when that is done.
    pub async fn leave(&self, within: Duration) {
        let _ = self.inbox.send(Said::Leave { within }).await;
    }

    pub fn shown(&self) -> Shown {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The announced members, by instance name.
    pub fn members(&self) -> Arc<Vec<Member>> {
        Arc::clone(&self.members.borrow())
    }

    pub fn watch_members(&self) -> watch::Receiver<Arc<Vec<Member>>> {
        self.members.clone()
    }

    /// Completes when somebody asked this process to drain.
    pub async fn asked_to_drain(&self) {
        self.drain.notified().await;
    }

    /// Asks a member to leave as on SIGTERM. `None`: there is no such member.
    pub fn drain(&self, instance: &str, peers: &dyn Peers) -> Option<usize> {
        let own = self.shown().inc;
        let members = self.members();
        let named: Vec<_> = members.iter().filter(|member| *member.instance == *instance).collect();
        for member in &named {
            if Some(member.inc) == own {
                self.drain.notify_one();
            } else {
                neighbours::tell_to_drain(peers, member.inc);
            }
        }
        (!named.is_empty()).then_some(named.len())
    }
}

/// Starts the driver. The future runs until this process has left, and fails when it cannot go on.
pub fn start(
    context: Context,
    peers: Arc<dyn Peers>,
    settings: Settings,
    describes: members::Describes,
) -> (Handle, impl Future<Output = Result<(), Error>> + Send + 'static) {
    let (inbox, said) = mpsc::channel(INBOX_MAX);
    let (announced, members) = watch::channel(Arc::default());
    let (describes, described) = watch::channel(describes);
    let handle = Handle { inbox, shown: Arc::default(), members, describes, drain: Arc::default() };
    let driver = driver::run(context, peers, settings, handle.clone(), said, announced, described);
    (handle, driver)
}
