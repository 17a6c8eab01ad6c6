//! How the protocol's records are spelt: JSON values, and keys that carry the generation of the bucket (own-R2).

use serde::{Deserialize, Serialize};

use crate::protocol::record::{
    Fence, Generation, Hold, Incarnation, KvRevision, Lease, Position, Run, Sequence, Session, SessionState,
    TenureNumber, Unit,
};

/// A record that this program did not write, or a newer one did.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be read: {reason}")]
pub struct Unreadable {
    pub what: String,
    pub reason: String,
}

pub fn session_key(generation: Generation, inc: Incarnation) -> String {
    format!("{}.session.{inc}", generation.0)
}

pub fn lease_prefix(generation: Generation) -> String {
    format!("{}.unit.", generation.0)
}

pub fn lease_key(generation: Generation, unit: &Unit) -> String {
    format!("{}{unit}", lease_prefix(generation))
}

pub fn parse_incarnation(text: &str) -> Option<Incarnation> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Incarnation)).flatten()
}

#[derive(Serialize, Deserialize)]
struct SessionRecord {
    instance: String,
    inc: String,
    state: String,
    by: String,
}

pub fn encode_session(session: &Session) -> Vec<u8> {
    let state = match session.state {
        SessionState::Alive => "alive",
        SessionState::Suspect => "suspect",
        SessionState::Dead => "dead",
    };
    json(&SessionRecord {
        instance: session.instance.to_string(),
        inc: session.inc.to_string(),
        state: state.to_owned(),
        by: session.by.to_string(),
    })
}

pub fn decode_session(value: &[u8]) -> Result<Session, Unreadable> {
    let what = "a session";
    let record: SessionRecord = parse(what, value)?;
    let state = match record.state.as_str() {
        "alive" => SessionState::Alive,
        "suspect" => SessionState::Suspect,
        "dead" => SessionState::Dead,
        other => return Err(unreadable(what, &format!("state {other:?}"))),
    };
    let (inc, by) = (incarnation(what, &record.inc)?, incarnation(what, &record.by)?);
    Ok(Session { instance: record.instance.into(), inc, state, by })
}

#[derive(Serialize, Deserialize)]
struct LeaseRecord {
    unit: String,
    /// `held`, `offered` or `free`.
    state: String,
    instance: String,
    inc: String,
    /// None: the kv revision of this very write.
    tenure: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    heir: Option<String>,
    view: String,
}

pub fn encode_lease(lease: &Lease) -> Vec<u8> {
    let (state, heir) = match lease.hold {
        Hold::Held => ("held", None),
        Hold::Offered { heir } => ("offered", Some(heir.to_string())),
        Hold::Free => ("free", None),
    };
    json(&LeaseRecord {
        unit: lease.unit.to_string(),
        state: state.to_owned(),
        instance: lease.instance.to_string(),
        inc: lease.inc.to_string(),
        tenure: lease.tenure.map(|tenure| tenure.0),
        heir,
        view: format!("{:016x}", lease.view),
    })
}

pub fn decode_lease(value: &[u8]) -> Result<Lease, Unreadable> {
    let what = "a lease";
    let record: LeaseRecord = parse(what, value)?;
    let hold = match (record.state.as_str(), &record.heir) {
        ("held", None) => Hold::Held,
        ("free", None) => Hold::Free,
        ("offered", Some(heir)) => Hold::Offered { heir: incarnation(what, heir)? },
        (other, _) => return Err(unreadable(what, &format!("state {other:?}"))),
    };
    Ok(Lease {
        unit: Unit::new(&record.unit),
        hold,
        instance: record.instance.into(),
        inc: incarnation(what, &record.inc)?,
        tenure: record.tenure.map(TenureNumber),
        view: u64::from_str_radix(&record.view, 16).unwrap_or(0),
    })
}

#[derive(Serialize, Deserialize)]
struct FenceRecord {
    unit: String,
    instance: String,
    #[serde(default)]
    inc: Option<String>,
    #[serde(default)]
    tenure: u64,
    #[serde(default)]
    no: u64,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    position: Option<PositionRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PositionRecord {
    Run {
        opening: u64,
        counter: u64,
        page: u64,
        off: u64,
        done: bool,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        state: String,
    },
    /// Of an interval source, in folders that were written before there were tenures.
    Slot { slot: i64 },
}

pub fn encode_fence(fence: &Fence) -> Vec<u8> {
    let position = fence.position.as_ref().map(|position| PositionRecord::Run {
        opening: position.run.opening.0,
        counter: position.run.counter,
        page: position.page,
        off: position.off,
        done: position.done,
        state: String::from_utf8_lossy(&position.state).into_owned(),
    });
    json(&FenceRecord {
        unit: fence.unit.to_string(),
        instance: fence.instance.to_string(),
        inc: Some(fence.inc.to_string()),
        tenure: fence.tenure.0,
        no: fence.no,
        digest: format!("{:016x}", fence.digest),
        position,
    })
}

pub fn decode_fence(value: &[u8], sequence: Sequence) -> Result<Fence, Unreadable> {
    let what = format!("the fence record at sequence {}", sequence.0);
    let record: FenceRecord = parse(&what, value)?;
    let position = record.position.map(|position| match position {
        PositionRecord::Run { opening, counter, page, off, done, state } => Position {
            run: Run { opening: Sequence(opening), counter },
            page,
            off,
            done,
            state: state.into_bytes().into(),
        },
        PositionRecord::Slot { slot } => Position {
            run: Run { opening: sequence, counter: 0 },
            page: slot.cast_unsigned(),
            off: 1,
            done: true,
            state: Vec::new().into(),
        },
    });
    Ok(Fence {
        unit: Unit::new(&record.unit),
        instance: record.instance.into(),
        inc: record.inc.map_or(Ok(Incarnation(0)), |inc| incarnation(&what, &inc))?,
        tenure: TenureNumber(record.tenure),
        no: record.no,
        digest: u64::from_str_radix(&record.digest, 16).unwrap_or(0),
        position,
    })
}

/// A lease as it was found.
pub type FoundLease = (KvRevision, Lease);

fn json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("strings and numbers are JSON")
}

fn parse<'a, T: Deserialize<'a>>(what: &str, value: &'a [u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(value).map_err(|error| unreadable(what, &error.to_string()))
}

fn unreadable(what: &str, reason: &str) -> Unreadable {
    Unreadable { what: what.to_owned(), reason: reason.to_owned() }
}

fn incarnation(what: &str, text: &str) -> Result<Incarnation, Unreadable> {
    parse_incarnation(text).ok_or_else(|| unreadable(what, &format!("incarnation {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let session =
            Session { instance: "a".into(), inc: Incarnation(7), state: SessionState::Suspect, by: Incarnation(9) };
        assert_eq!(decode_session(&encode_session(&session)).unwrap(), session);
        for hold in [Hold::Held, Hold::Free, Hold::Offered { heir: Incarnation(3) }] {
            let lease = Lease {
                unit: Unit::new("source/beat"),
                hold,
                instance: "a".into(),
                inc: Incarnation(u128::MAX),
                tenure: Some(TenureNumber(5)),
                view: 11,
            };
            assert_eq!(decode_lease(&encode_lease(&lease)).unwrap(), lease);
        }
        let position = Position {
            run: Run { opening: Sequence(4), counter: 2 },
            page: (-5_i64).cast_unsigned(),
            off: 1,
            done: true,
            state: b"\"etag\"".to_vec().into(),
        };
        let fence = Fence {
            unit: Unit::new("source/beat"),
            instance: "a".into(),
            inc: Incarnation(1),
            tenure: TenureNumber(2),
            no: 3,
            digest: 4,
            position: Some(position),
        };
        assert_eq!(decode_fence(&encode_fence(&fence), Sequence(9)).unwrap(), fence);
    }

    #[test]
    fn the_position_of_a_folder_without_tenures_is_read() {
        let old = br#"{"unit":"source/beat","instance":"alpha","position":{"slot":1700000000100}}"#;
        let fence = decode_fence(old, Sequence(12)).unwrap();
        assert_eq!((fence.tenure, fence.inc), (TenureNumber(0), Incarnation(0)));
        let position = fence.position.unwrap();
        assert_eq!((position.page, position.done), (1_700_000_000_100, true));
    }

    #[test]
    fn what_is_no_record_is_refused_with_its_place() {
        let error = decode_fence(b"{", Sequence(12)).unwrap_err().to_string();
        assert!(error.starts_with("the fence record at sequence 12 cannot be read"), "{error}");
        assert!(
            decode_lease(br#"{"unit":"u","state":"mine","instance":"a","inc":"1","tenure":null,"view":"0"}"#).is_err()
        );
    }
}
