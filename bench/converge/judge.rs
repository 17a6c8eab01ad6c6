//! Looks at every message: what came of it, how often, under which version.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use vejas::flow::message::{ID, REVISION, Stored};
use vejas::id::Names;
use vejas::ports::bus::Bus;
use vejas::protocol::parts::Run;
use vejas::time::Timestamp;

use crate::support::Failure;

/// Subjects as in manifests.
pub const FROM: &str = "bench.in";
pub const TO: &str = "bench.out";

const READ_MESSAGES: usize = 1_000;

/// Which version the flow's record named for which sequences.
#[derive(Debug, Default)]
pub struct Parts {
    /// The digest by the first sequence.
    from: BTreeMap<u64, String>,
}

impl Parts {
    /// A part, once granted into, stays as it is; one that is empty may be replaced.
    pub fn see(&mut self, run: &Run) {
        for part in &run.parts {
            let digest = part.digest.clone().unwrap_or_default();
            self.from.insert(part.from, digest);
        }
    }

    fn of(&self, sequence: u64) -> Option<&str> {
        self.from.range(..=sequence).next_back().map(|(_, digest)| digest.as_str())
    }
}

/// Times of the bus.
pub struct Window {
    pub from: Timestamp,
    pub to: Timestamp,
}

#[derive(Debug, Default)]
pub struct Found {
    /// Stored and without an output.
    pub lost: u64,
    /// Outputs beyond the first of a message.
    pub duplicated: u64,
    /// Messages with outputs of two versions, of another version than the record names, or of an older one than a message before.
    pub mixed: u64,
    /// Versions with an output.
    pub versions: usize,
    /// Between two outputs inside the window.
    pub gap_ms: f64,
    pub gap_p99_ms: f64,
}

struct Output {
    version: u64,
    digest: String,
}

/// Messages a second between the first output and the last.
pub async fn rate(bus: &dyn Bus) -> Result<f64, Failure> {
    let mut times = Vec::new();
    each(bus, TO, |stored| times.push(stored.time)).await?;
    let (first, last) = times.first().zip(times.last()).ok_or("no output")?;
    Ok(times.len() as f64 / last.since(*first).as_secs_f64())
}

/// The numbers below `sent` were stored under [`FROM`].
pub async fn judge(bus: &dyn Bus, parts: &Parts, sent: u64, window: &Window) -> Result<Found, Failure> {
    let number = |stored: &Stored| stored.headers.get(ID).and_then(|id| id.split('/').next_back()?.parse::<u64>().ok());
    let (mut places, mut outputs, mut times) = (BTreeMap::new(), BTreeMap::<u64, Vec<Output>>::new(), Vec::new());
    each(bus, FROM, |stored| _ = number(&stored).map(|number| places.insert(number, stored.sequence))).await?;
    each(bus, TO, |stored| {
        let body: Value = serde_json::from_slice(&stored.payload).unwrap_or_default();
        if let Some((number, version)) = body["n"].as_u64().zip(body["version"].as_u64()) {
            let digest = stored.headers.get(REVISION).unwrap_or_default().to_owned();
            outputs.entry(number).or_default().push(Output { version, digest });
        }
        if stored.time >= window.from && stored.time <= window.to {
            times.push(stored.time);
        }
    })
    .await?;

    let mut found = Found::default();
    if places.len() as u64 != sent {
        return Err(format!("{} of {sent} messages are on the stream", places.len()).into());
    }
    let (mut newest, mut versions) = (0, BTreeSet::new());
    // Numbers ascend with the sequences: one program stored them.
    for (number, sequence) in &places {
        let Some(of) = outputs.get(number) else {
            found.lost += 1;
            continue;
        };
        found.duplicated += of.len() as u64 - 1;
        let version = of[0].version;
        let one = !of[0].digest.is_empty()
            && of.iter().all(|output| output.version == version && output.digest == of[0].digest);
        // The header has the first digits.
        let named = parts.of(*sequence).is_none_or(|digest| digest.starts_with(&of[0].digest));
        if !one || !named || version < newest {
            found.mixed += 1;
        }
        newest = newest.max(version);
        versions.insert(version);
    }
    found.versions = versions.len();
    let mut gaps: Vec<f64> = times.windows(2).map(|two| two[1].since(two[0]).as_secs_f64() * 1e3).collect();
    gaps.sort_by(f64::total_cmp);
    found.gap_ms = gaps.last().copied().ok_or("no output in the window")?;
    found.gap_p99_ms = gaps[(gaps.len() - 1) * 99 / 100];
    Ok(found)
}

/// All messages under a subject, in the order of the stream.
async fn each(bus: &dyn Bus, subject: &str, mut see: impl FnMut(Stored)) -> Result<(), Failure> {
    let (stream, subjects) = (Names::default().messages(), [Names::default().stored(subject)]);
    let mut from = 1;
    loop {
        let messages = bus.read(&stream, from, &subjects, READ_MESSAGES).await?;
        let Some(last) = messages.last() else { return Ok(()) };
        from = last.sequence + 1;
        messages.into_iter().for_each(&mut see);
    }
}
