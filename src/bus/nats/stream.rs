//! Streams: made or checked, told of, and remembered, so that a message can be judged without asking.
//!
//! A stream that is found with another configuration is brought in line where that is harmless, and refused with both values
//! where it is not. Unknown settings, such as those of a newer server, are left as they are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Shared;
use super::api::{self, Fail};
use crate::id::subject_matches;
use crate::ports::bus::{Error, SETTLEMENT_RESERVE_PERCENT, StreamConfig, StreamInfo};
use crate::time::Timestamp;

/// Looks for a stream that somebody else is making.
const LOOKS_MAX: u32 = 40;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Added to a stream's message limit at the server for what this adapter writes beside a message: its transport id, batch
/// and condition.
const OWN_HEADERS_BYTES_MAX: u64 = 64 * 1024;
/// Storage a message takes beyond its size, about.
const STORED_OVERHEAD_BYTES: u64 = 40;
/// How old what is known of a stream's bytes may be while messages are stored.
const BYTES_KNOWN_FOR: Duration = Duration::from_secs(1);
/// How often a refused message may make us look whether there is room again.
const FULL_LOOK_PERIOD: Duration = Duration::from_millis(50);

/// What is known of a stream.
pub(super) struct Known {
    pub config: StreamConfig,
    /// Bytes it holds: as last told, and what was sent since.
    bytes: AtomicU64,
    /// When they were told, in milliseconds of the monotonic clock.
    told_ms: AtomicU64,
    looking: AtomicBool,
}

impl Known {
    pub fn stores(&self, subject: &str) -> bool {
        let plain = !subject.is_empty()
            && subject.split('.').all(|token| !matches!(token, "" | "*" | ">"))
            && !subject.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control());
        plain && self.config.subjects.iter().any(|filter| subject_matches(filter, subject))
    }

    fn open_bytes_max(&self) -> u64 {
        self.config.bytes_max / 100 * (100 - SETTLEMENT_RESERVE_PERCENT)
    }

    /// Counts what is about to be stored. `false` when only a settlement may store it now.
    fn admits(&self, bytes: u64, settlement: bool) -> bool {
        let bytes = bytes + STORED_OVERHEAD_BYTES;
        if settlement {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            return true;
        }
        let max = self.open_bytes_max();
        let add = |held: u64| (held + bytes <= max).then_some(held + bytes);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

#[derive(Default)]
pub(super) struct Streams {
    known: RwLock<HashMap<String, Arc<Known>>>,
    /// One at a time: two that make the same stream would each find the other's.
    making: tokio::sync::Mutex<()>,
}

impl Streams {
    pub fn find(&self, name: &str) -> Option<Arc<Known>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub fn forget(&self, name: &str) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn note(&self, info: &StreamInfo, now: Duration) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let told_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        match known.get(&info.config.name) {
            Some(stream) if stream.config == info.config => {
                stream.bytes.store(info.bytes, Ordering::Relaxed);
                stream.told_ms.store(told_ms, Ordering::Relaxed);
            }
            _ => {
                let stream = Known {
                    config: info.config.clone(),
                    bytes: AtomicU64::new(info.bytes),
                    told_ms: AtomicU64::new(told_ms),
                    looking: AtomicBool::new(false),
                };
                known.insert(info.config.name.clone(), Arc::new(stream));
            }
        }
    }
}

impl Shared {
    /// What is known of the stream; asks the server the first time.
    pub(super) async fn known(&self, name: &str) -> Result<Arc<Known>, Error> {
        if let Some(known) = self.streams.find(name) {
            return Ok(known);
        }
        self.stream_info(name).await?;
        self.streams.find(name).ok_or_else(|| Error::NoStream(name.to_owned()))
    }

    pub(super) async fn stream_info(&self, name: &str) -> Result<StreamInfo, Error> {
        let answer = self.connection.ask(&format!("STREAM.INFO.{}", token(name)?), &Value::Null).await;
        let answer = answer.map_err(|fail| self.stream_failed(name, fail))?;
        let info = info(&answer);
        self.streams.note(&info, self.now());
        Ok(info)
    }

    pub(super) fn stream_failed(&self, name: &str, fail: Fail) -> Error {
        if fail.code() == api::NO_STREAM {
            self.streams.forget(name);
        }
        fail.error(name)
    }

    /// Whether these bytes may be stored now by something that is no settlement.
    pub(super) fn admits(self: &Arc<Self>, known: &Arc<Known>, bytes: usize, settlement: bool) -> bool {
        let age = self.age(known);
        if age > BYTES_KNOWN_FOR && !known.looking.swap(true, Ordering::AcqRel) {
            let (shared, known) = (Arc::clone(self), Arc::clone(known));
            tokio::spawn(async move {
                let _ = shared.stream_info(&known.config.name).await;
                known.looking.store(false, Ordering::Release);
            });
        }
        known.admits(bytes as u64, settlement)
    }

    /// Asked again after a look at the server.
    pub(super) async fn admits_after_all(self: &Arc<Self>, known: &Arc<Known>, bytes: usize) -> Result<(), Error> {
        if self.age(known) >= FULL_LOOK_PERIOD {
            self.stream_info(&known.config.name).await?;
        }
        if known.admits(bytes as u64, false) {
            return Ok(());
        }
        Err(Error::Full { stream: known.config.name.clone(), bytes_max: known.config.bytes_max })
    }

    fn age(&self, known: &Known) -> Duration {
        self.now().saturating_sub(Duration::from_millis(known.told_ms.load(Ordering::Relaxed)))
    }

    pub(super) async fn ensure_stream(&self, wanted: StreamConfig) -> Result<StreamInfo, Error> {
        token(&wanted.name)?;
        let _making = self.streams.making.lock().await;
        let link = self.connection.link()?;
        let payload_max = link.server.payload_bytes_max;
        if wanted.message_bytes_max > payload_max {
            tracing::warn!(
                stream = wanted.name,
                "messages of more than {payload_max} bytes are refused: that is the server's max_payload, below the {} wanted",
                wanted.message_bytes_max
            );
        }
        let shape = shape(&wanted, self.connection.options.replicas);
        let info = self.ensure_shape(&wanted.name, shape).await?;
        let info = self::info(&info);
        self.streams.note(&info, self.now());
        Ok(info)
    }

    /// Makes the stream or brings it in line; answers the server's view of it.
    pub(super) async fn ensure_shape(&self, name: &str, shape: Shape) -> Result<Value, Error> {
        let Shape { fixed, adjusted, created_only } = shape;
        let found = match self.connection.ask(&format!("STREAM.INFO.{name}"), &Value::Null).await {
            Ok(found) => found,
            Err(fail) if fail.code() == api::NO_STREAM => {
                let mut config = fixed.clone();
                config.extend(adjusted.clone());
                config.extend(created_only);
                match self.connection.ask(&format!("STREAM.CREATE.{name}"), &Value::Object(config)).await {
                    Ok(made) => return Ok(made),
                    // Somebody else was faster.
                    Err(fail) if fail.code() == api::STREAM_EXISTS => self.made_by_another(name).await?,
                    Err(fail) => return Err(refused_shape(name, &fixed, fail)),
                }
            }
            Err(fail) => return Err(fail.error(name)),
        };
        let config = found["config"].as_object().cloned().unwrap_or_default();
        for (key, wanted) in &fixed {
            if !same(config.get(key), wanted) {
                return Err(Error::Mismatch {
                    what: format!("{key} of stream {name}"),
                    found: config.get(key).map_or_else(|| "unset".to_owned(), Value::to_string),
                    wanted: wanted.to_string(),
                });
            }
        }
        if adjusted.iter().all(|(key, wanted)| same(config.get(key), wanted)) {
            return Ok(found);
        }
        let changed: Vec<String> = adjusted
            .iter()
            .filter(|(key, wanted)| !same(config.get(*key), wanted))
            .map(|(key, wanted)| format!("{key} {} to {wanted}", config.get(key).unwrap_or(&Value::Null)))
            .collect();
        tracing::info!(stream = name, "brought in line: {}", changed.join(", "));
        let mut config = config;
        config.extend(adjusted);
        let updated = self.connection.ask(&format!("STREAM.UPDATE.{name}"), &Value::Object(config)).await;
        updated.map_err(|fail| refused_shape(name, &fixed, fail))
    }

    /// What another client is making exists for those who want to make it before it does for those who ask.
    async fn made_by_another(&self, name: &str) -> Result<Value, Error> {
        for _ in 0..LOOKS_MAX {
            match self.connection.ask(&format!("STREAM.INFO.{name}"), &Value::Null).await {
                Err(fail) if fail.code() == api::NO_STREAM => tokio::time::sleep(LOOK_AGAIN_AFTER).await,
                found => return found.map_err(|fail| fail.error(name)),
            }
        }
        Err(Error::Unavailable(format!("stream {name} is being made by somebody else")))
    }
}

/// A configuration in three parts.
pub(super) struct Shape {
    /// Refused when it is found otherwise.
    pub fixed: Map<String, Value>,
    /// Brought in line.
    pub adjusted: Map<String, Value>,
    /// Of no concern once it exists.
    pub created_only: Map<String, Value>,
}

pub(super) fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(i64::MAX.unsigned_abs())
}

fn shape(wanted: &StreamConfig, replicas: usize) -> Shape {
    let message_bytes_max = (wanted.message_bytes_max as u64 + OWN_HEADERS_BYTES_MAX).min(i32::MAX as u64);
    Shape {
        fixed: object(json!({
            "name": wanted.name, "subjects": wanted.subjects, "retention": "limits", "storage": "file",
            "deny_delete": false, "deny_purge": false, "sealed": false,
        })),
        adjusted: object(json!({
            "max_bytes": wanted.bytes_max, "max_msg_size": message_bytes_max, "duplicate_window": nanos(wanted.duplicate_window),
            "discard": "new", "max_age": 0, "max_msgs": -1, "max_msgs_per_subject": -1,
            "num_replicas": replicas, "allow_atomic": true, "allow_direct": false,
        })),
        created_only: Map::new(),
    }
}

/// The server leaves out what is false or empty.
fn same(found: Option<&Value>, wanted: &Value) -> bool {
    match (found, wanted) {
        (None, Value::Bool(false)) => true,
        (None, Value::Number(number)) => number.as_i64() == Some(0),
        (Some(Value::Array(found)), Value::Array(wanted)) => {
            found.len() == wanted.len() && wanted.iter().all(|one| found.contains(one))
        }
        (found, wanted) => found == Some(wanted),
    }
}

fn refused_shape(name: &str, fixed: &Map<String, Value>, fail: Fail) -> Error {
    match fail {
        Fail::Refused(refusal) if refusal.err_code == api::SUBJECTS_OVERLAP => Error::Mismatch {
            what: format!("subjects of stream {name}"),
            found: refusal.to_string(),
            wanted: fixed.get("subjects").map(Value::to_string).unwrap_or_default(),
        },
        Fail::Refused(refusal) if refusal.code < 500 || refusal.err_code == api::CANNOT_MAKE => Error::Mismatch {
            what: format!("configuration of stream {name}"),
            found: refusal.to_string(),
            wanted: "a server that takes it".to_owned(),
        },
        other => other.error(name),
    }
}

/// Stream and durable names go into API subjects.
pub(super) fn token(name: &str) -> Result<&str, Error> {
    let fits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b".*>/\\".contains(&byte));
    if fits {
        return Ok(name);
    }
    let wanted = "printable ASCII without . * > / \\ and spaces".to_owned();
    Err(Error::Mismatch { what: "a name on the bus".to_owned(), found: format!("{name:?}"), wanted })
}

pub(super) fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(Timestamp::parse).unwrap_or_default()
}

fn info(answer: &Value) -> StreamInfo {
    let (config, state) = (&answer["config"], &answer["state"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let name = config["name"].as_str().unwrap_or_default().to_owned();
    let config = StreamConfig {
        subjects: strings(&config["subjects"]),
        bytes_max: number(&config["max_bytes"]),
        message_bytes_max: usize::try_from(number(&config["max_msg_size"]).saturating_sub(OWN_HEADERS_BYTES_MAX))
            .unwrap_or(0),
        duplicate_window: Duration::from_nanos(number(&config["duplicate_window"])),
        name,
    };
    let (last, messages, bytes) = (number(&state["last_seq"]), number(&state["messages"]), number(&state["bytes"]));
    let first = if messages == 0 { last + 1 } else { number(&state["first_seq"]) };
    let full = config.bytes_max > 0 && bytes >= config.bytes_max / 100 * (100 - SETTLEMENT_RESERVE_PERCENT);
    let refuses = full.then(|| format!("{bytes} of {} bytes are taken", config.bytes_max));
    StreamInfo { created: time(&answer["created"]), first, last, messages, bytes, refuses, config }
}

pub(super) fn strings(value: &Value) -> Vec<String> {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
