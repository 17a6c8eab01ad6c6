//! What the protocol stores: sessions and leases in the lease bucket, fence records in the stream a unit writes to.
//!
//! Only the values are here; how they are spelt on a bus is the adapter's business. Times of day are not part of them: a store
//! stamps what it stores, and no decision reads that stamp. Everything is ordered and hashable, so that a whole world of them can be
//! the state of a model.

use std::fmt;
use std::sync::Arc;

/// One life of a process: 128 random bits, made by the shell at every start and after every rejoin. Records name it, never an
/// instance name alone: names may clash or come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u128);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What can be owned: `source/heartbeat`, `source/orders-kafka/3`, `chore/git-sync`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit(Arc<str>);

impl Unit {
    pub fn new(name: &str) -> Self {
        Unit(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name an operator gave a process (`VEJAS_INSTANCE`). For people; decisions use [`Incarnation`].
pub type Instance = Arc<str>;

/// Which lease bucket: the time it was created. Part of every key, so that a late request for an older bucket matches nothing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The counter of a key in the lease bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvRevision(pub u64);

/// A sequence of the stream that a unit writes to. That of a fence record is the *epoch*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// The number of one holding of a unit. Only grows within a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenureNumber(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionState {
    Alive,
    /// Somebody had evidence that it died. Gives nobody anything; the next beat takes it back.
    Suspect,
    /// This incarnation can never act again.
    Dead,
}

/// `<gen>.session.<inc>`
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    pub instance: Instance,
    pub inc: Incarnation,
    pub state: SessionState,
    /// Who wrote it: the member itself, or whoever marked it.
    pub by: Incarnation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    Held,
    /// Stopped, and meant for `heir`.
    Offered {
        heir: Incarnation,
    },
    Free,
}

/// `<gen>.unit.<unit>`
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    pub unit: Unit,
    pub hold: Hold,
    pub instance: Instance,
    /// The holder, or whoever offered or freed it.
    pub inc: Incarnation,
    /// `None`: the kv revision of this very write. Every later write of the tenure repeats the number.
    pub tenure: Option<TenureNumber>,
    /// Digest of the members the writer ranked. For people who wonder why two members disagree; no decision reads it.
    pub view: u64,
}

impl Lease {
    /// The tenure this record stands for when it is stored at `revision`.
    pub fn tenure_at(&self, revision: KvRevision) -> TenureNumber {
        self.tenure.unwrap_or(TenureNumber(revision.0))
    }
}

/// One execution or fetch of a source. New for each: never the slot, the page or the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Sequence of the opening record under which it began.
    pub opening: Sequence,
    pub counter: u64,
}

/// How far a source has stored its input. Travels in the fence record, in the same batch as the messages it stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub run: Run,
    /// What the source counts: a slot, a page, an offset.
    pub page: u64,
    /// Messages of the run that are stored.
    pub off: u64,
    /// The run is stored whole.
    pub done: bool,
    /// What makes the source skip or advance (ETag, cursor, body hash). Changes only together with `done`. At most
    /// [`POSITION_STATE_BYTES_MAX`].
    pub state: Arc<[u8]>,
}

/// Longest [`Position::state`]. A fence record is read at every opening and after every doubt.
pub const POSITION_STATE_BYTES_MAX: usize = 16 * 1024;

/// `vxown.<kind>.<name>`, in the stream the unit writes to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    pub unit: Unit,
    pub instance: Instance,
    pub inc: Incarnation,
    pub tenure: TenureNumber,
    /// Number of the publication the owner works under. Never decreases.
    pub no: u64,
    /// Digest of the unit's manifest under that publication.
    pub digest: u64,
    /// `None` until the unit has stored something.
    pub position: Option<Position>,
}
