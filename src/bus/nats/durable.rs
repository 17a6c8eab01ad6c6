//! Durables: shared by all instances, so what one changes the others live with.
//!
//! Filters, start and acknowledgement never change. Ack wait, in-flight limit and metadata are those of the newest binary
//! that was here: its version is kept in the metadata, and an older one leaves them alone and says so.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subject;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::Shared;
use super::api;
use super::pull::Open;
use super::stream::{object, strings, token};
use crate::id::subject_matches;
use crate::ports::bus::{Durable, DurableConfig, DurableInfo, Error, Start};
use crate::time::Timestamp;

/// Metadata key: the version of the binary that last set the durable up.
pub const VERSION_KEY: &str = "vejas.version";
/// Deliveries remembered beyond the in-flight limit: those handed out twice, and late ones.
const REMEMBERED_SLACK: usize = 1024;

/// A delivery that was handed to us: where its answers go.
#[derive(Clone)]
pub(super) struct Out {
    pub reply: Subject,
    pub at: Duration,
    /// The number of the connection it came over.
    pub link: u64,
}

/// What this process keeps for a durable it pulls from.
pub(super) struct Local {
    pub name: Durable,
    pub in_flight_max: usize,
    pub ack_wait: Duration,
    pub out: Mutex<BTreeMap<u64, Out>>,
    /// Pulls that were answered and that the server may still fill.
    pub open: Mutex<Vec<Open>>,
}

impl Local {
    pub fn out(&self) -> MutexGuard<'_, BTreeMap<u64, Out>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has no more than the limit unanswered, so older ones beyond it were answered by somebody else.
    pub fn remember(&self, sequence: u64, out: Out) {
        let mut all = self.out();
        all.insert(sequence, out);
        if all.len() > 2 * self.in_flight_max + REMEMBERED_SLACK {
            let mut times: Vec<Duration> = all.values().map(|out| out.at).collect();
            times.sort_unstable();
            let oldest_kept = times[times.len() - self.in_flight_max];
            all.retain(|_, out| out.at >= oldest_kept);
        }
    }
}

#[derive(Default)]
pub(super) struct Durables(Mutex<HashMap<Durable, Arc<Local>>>);

impl Durables {
    pub fn find(&self, durable: &Durable) -> Option<Arc<Local>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(durable).cloned()
    }

    pub fn forget(&self, durable: &Durable) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(durable);
    }

    fn keep(&self, durable: &Durable, config: &DurableConfig) -> Arc<Local> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(local) = all.get(durable)
            && local.in_flight_max == config.in_flight_max
            && local.ack_wait == config.ack_wait
        {
            return Arc::clone(local);
        }
        let earlier = all.remove(durable);
        let out = earlier.as_ref().map(|earlier| earlier.out().clone()).unwrap_or_default();
        let open =
            earlier.map(|earlier| std::mem::take(&mut *earlier.open.lock().unwrap_or_else(PoisonError::into_inner)));
        let local = Arc::new(Local {
            name: durable.clone(),
            in_flight_max: config.in_flight_max,
            ack_wait: config.ack_wait,
            out: Mutex::new(out),
            open: Mutex::new(open.unwrap_or_default()),
        });
        all.insert(durable.clone(), Arc::clone(&local));
        local
    }
}

impl Shared {
    /// What this process keeps for the durable; asks the server the first time.
    pub(super) async fn local(&self, durable: &Durable) -> Result<Arc<Local>, Error> {
        if let Some(local) = self.durables.find(durable) {
            return Ok(local);
        }
        let found = self.consumer(&durable.stream, &durable.name).await?;
        Ok(self.durables.keep(durable, &config(&found)))
    }

    async fn consumer(&self, stream: &str, name: &str) -> Result<Value, Error> {
        let call = format!("CONSUMER.INFO.{}.{}", token(stream)?, token(name)?);
        let found = self.connection.ask(&call, &Value::Null).await;
        found.map_err(|fail| self.durable_failed(stream, name, fail))
    }

    pub(super) fn durable_failed(&self, stream: &str, name: &str, fail: api::Fail) -> Error {
        if fail.code() == api::NO_CONSUMER {
            self.durables.forget(&Durable { stream: stream.into(), name: name.into() });
            return Error::NoDurable { stream: stream.to_owned(), durable: name.to_owned() };
        }
        self.stream_failed(stream, fail)
    }

    pub(super) async fn ensure_durable(&self, stream: &str, wanted: DurableConfig) -> Result<Durable, Error> {
        let durable = Durable { stream: stream.into(), name: wanted.name.as_str().into() };
        let filters = without_covered(&wanted.filters);
        let found = match self.consumer(stream, &wanted.name).await {
            Ok(found) => found,
            Err(Error::NoDurable { .. }) => match self.create_durable(stream, &wanted, &filters).await? {
                Some(made) => made,
                // Somebody else was faster.
                None => self.consumer(stream, &wanted.name).await?,
            },
            Err(error) => return Err(error),
        };
        self.check_fixed(&found["config"], &filters, &wanted.name)?;
        let now = self.bring_in_line(stream, &wanted, found["config"].clone()).await?;
        self.durables
            .keep(&durable, &DurableConfig { ack_wait: ack_wait(&now), in_flight_max: in_flight_max(&now), ..wanted });
        Ok(durable)
    }

    fn check_fixed(&self, found: &Value, filters: &[String], name: &str) -> Result<(), Error> {
        let mismatch = |what: &str, found: String, wanted: String| Error::Mismatch {
            what: format!("{what} of durable {name}"),
            found,
            wanted,
        };
        let (mut has, mut wants) = (filters_of(found), filters.to_vec());
        has.sort_unstable();
        wants.sort_unstable();
        if has != wants {
            return Err(mismatch("filters", has.join(", "), wants.join(", ")));
        }
        let policy = found["ack_policy"].as_str().unwrap_or_default();
        if policy != "explicit" {
            return Err(mismatch("ack policy", policy.to_owned(), "explicit".to_owned()));
        }
        match found["deliver_subject"].as_str() {
            Some(subject) if !subject.is_empty() => Err(mismatch("kind", "push".to_owned(), "pull".to_owned())),
            _ => Ok(()),
        }
    }

    /// `None` when there is one already.
    async fn create_durable(
        &self,
        stream: &str,
        wanted: &DurableConfig,
        filters: &[String],
    ) -> Result<Option<Value>, Error> {
        let mut config = object(json!({
            "name": wanted.name, "durable_name": wanted.name, "ack_policy": "explicit", "max_deliver": -1,
            "filter_subjects": filters, "replay_policy": "instant",
        }));
        config.extend(start(wanted.start));
        config.extend(self.adjustable(wanted));
        let body = json!({ "stream_name": stream, "action": "create", "config": config });
        let call = format!("CONSUMER.CREATE.{}.{}", token(stream)?, token(&wanted.name)?);
        match self.connection.ask(&call, &body).await {
            Ok(made) => Ok(Some(made)),
            Err(fail) if api::CONSUMER_EXISTS.contains(&fail.code()) => Ok(None),
            Err(fail) => Err(self.durable_failed(stream, &wanted.name, fail)),
        }
    }

    fn adjustable(&self, wanted: &DurableConfig) -> Map<String, Value> {
        let ack_wait = u64::try_from(wanted.ack_wait.as_nanos()).unwrap_or(u64::MAX);
        object(json!({
            "ack_wait": ack_wait, "max_ack_pending": wanted.in_flight_max,
            "metadata": { VERSION_KEY: self.connection.options.version },
        }))
    }

    /// Answers the configuration that holds afterwards.
    async fn bring_in_line(&self, stream: &str, wanted: &DurableConfig, found: Value) -> Result<Value, Error> {
        let same_version = found["metadata"][VERSION_KEY] == *self.connection.options.version;
        if ack_wait(&found) == wanted.ack_wait && in_flight_max(&found) == wanted.in_flight_max && same_version {
            return Ok(found);
        }
        let theirs = found["metadata"][VERSION_KEY].as_str().unwrap_or_default();
        let ours = &self.connection.options.version;
        if is_newer(theirs, ours) {
            tracing::warn!(
                durable = wanted.name,
                "set up by version {theirs}, newer than this one ({ours}): its ack wait {:?} and in-flight limit {} stay (wanted {:?} and {})",
                ack_wait(&found),
                in_flight_max(&found),
                wanted.ack_wait,
                wanted.in_flight_max
            );
            return Ok(found);
        }
        let mut metadata = found["metadata"].as_object().cloned().unwrap_or_default();
        let mut config = object(found);
        let mut adjusted = self.adjustable(wanted);
        if let Some(Value::Object(own)) = adjusted.remove("metadata") {
            metadata.extend(own);
        }
        config.extend(adjusted);
        config.insert("metadata".to_owned(), Value::Object(metadata));
        let body = json!({ "stream_name": stream, "action": "update", "config": config });
        let call = format!("CONSUMER.CREATE.{}.{}", token(stream)?, token(&wanted.name)?);
        let updated = self.connection.ask(&call, &body).await;
        let updated = updated.map_err(|fail| self.durable_failed(stream, &wanted.name, fail))?;
        Ok(updated["config"].clone())
    }

    pub(super) async fn delete_durable(&self, durable: &Durable) -> Result<(), Error> {
        let call = format!("CONSUMER.DELETE.{}.{}", token(&durable.stream)?, token(&durable.name)?);
        self.durables.forget(durable);
        match self.connection.ask(&call, &Value::Null).await {
            Err(fail) if fail.code() == api::NO_CONSUMER => Ok(()),
            Err(fail) => Err(self.stream_failed(&durable.stream, fail)),
            Ok(_) => Ok(()),
        }
    }

    pub(super) async fn durable_info(&self, durable: &Durable) -> Result<DurableInfo, Error> {
        // Before the durable is asked: what is stored in between is not yet waited for.
        let last = self.stream_info(&durable.stream).await?.last;
        let found = self.consumer(&durable.stream, &durable.name).await?;
        self.told(&durable.stream, last, &found).await
    }

    pub(super) async fn durable_infos(&self, stream: &str) -> Result<Vec<DurableInfo>, Error> {
        let last = self.stream_info(stream).await?.last;
        let (mut found, mut infos) = (Vec::new(), Vec::new());
        loop {
            let page = json!({ "offset": found.len() });
            let answer = self.connection.ask(&format!("CONSUMER.LIST.{stream}"), &page).await;
            let answer = answer.map_err(|fail| self.stream_failed(stream, fail))?;
            let page = answer["consumers"].as_array().cloned().unwrap_or_default();
            let more = !page.is_empty();
            found.extend(page);
            if !more || answer["total"].as_u64().is_none_or(|total| found.len() as u64 >= total) {
                break;
            }
        }
        // Ephemeral ones are watches and other people's tools.
        for one in found.iter().filter(|one| one["config"]["durable_name"].is_string()) {
            infos.push(self.told(stream, last, one).await?);
        }
        infos.sort_by(|a, b| a.config.name.cmp(&b.config.name));
        Ok(infos)
    }

    async fn told(&self, stream: &str, last: u64, found: &Value) -> Result<DurableInfo, Error> {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let in_flight = usize::try_from(number(&found["num_ack_pending"])).unwrap_or(usize::MAX);
        let pending = number(&found["num_pending"]);
        let floor = number(&found["ack_floor"]["stream_seq"]);
        let config = config(found);
        let mut oldest: Option<(u64, Timestamp)> = None;
        if in_flight > 0 || pending > 0 {
            let which = |filter: &String| json!({ "seq": floor + 1, "next_by_subj": filter });
            let which: Vec<Value> = config.filters.iter().map(which).collect();
            for held in join_all(which.iter().map(|which| self.get(stream, which))).await {
                let Some(held) = held? else { continue };
                let one = (held.stored.sequence, held.stored.time);
                oldest = Some(oldest.map_or(one, |oldest| oldest.min(one)));
            }
        }
        let ack_floor = match oldest {
            Some((sequence, _)) => sequence - 1,
            None if in_flight == 0 && pending == 0 => last,
            None => floor,
        };
        Ok(DurableInfo {
            ack_floor,
            delivered: number(&found["delivered"]["stream_seq"]),
            in_flight,
            // The server does not tell deliveries that were put off from those that are out.
            redelivering: 0,
            pending,
            oldest_unacknowledged: oldest.map(|(_, time)| time),
            config,
        })
    }
}

fn start(start: Start) -> Map<String, Value> {
    object(match start {
        Start::First => json!({ "deliver_policy": "all" }),
        Start::End => json!({ "deliver_policy": "new" }),
        Start::Sequence(sequence) => {
            json!({ "deliver_policy": "by_start_sequence", "opt_start_seq": sequence.max(1) })
        }
        Start::Time(time) => {
            let time = chrono::DateTime::from_timestamp_nanos(time.0);
            let time = time.to_rfc3339_opts(chrono::SecondsFormat::Nanos, true);
            json!({ "deliver_policy": "by_start_time", "opt_start_time": time })
        }
    })
}

fn ack_wait(config: &Value) -> Duration {
    Duration::from_nanos(config["ack_wait"].as_u64().unwrap_or(0))
}

fn in_flight_max(config: &Value) -> usize {
    config["max_ack_pending"].as_u64().and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX)
}

fn filters_of(config: &Value) -> Vec<String> {
    match config["filter_subject"].as_str() {
        Some(one) if !one.is_empty() => vec![one.to_owned()],
        _ => strings(&config["filter_subjects"]),
    }
}

fn config(found: &Value) -> DurableConfig {
    let config = &found["config"];
    let start = match config["deliver_policy"].as_str() {
        Some("new") => Start::End,
        Some("by_start_sequence") => Start::Sequence(config["opt_start_seq"].as_u64().unwrap_or(1)),
        Some("by_start_time") => Start::Time(super::stream::time(&config["opt_start_time"])),
        _ => Start::First,
    };
    DurableConfig {
        name: found["name"].as_str().unwrap_or_default().to_owned(),
        filters: filters_of(config),
        start,
        ack_wait: ack_wait(config),
        in_flight_max: in_flight_max(config),
    }
}

/// The server refuses a filter that another one covers.
fn without_covered(filters: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for filter in filters {
        if kept.iter().any(|wider| covers(wider, filter)) {
            continue;
        }
        kept.retain(|narrower| !covers(filter, narrower));
        kept.push(filter.clone());
    }
    kept
}

/// Whether every subject that matches `narrow` matches `wide`.
fn covers(wide: &str, narrow: &str) -> bool {
    // A wildcard of the narrower one is a token like any other to the wider, but `>` is more than `*`.
    let ends_open = narrow.ends_with('>');
    subject_matches(wide, narrow)
        && (!ends_open || wide.ends_with('>') && narrow.split('.').count() >= wide.split('.').count())
}

/// By numbers; what is no version is older than any.
fn is_newer(left: &str, right: &str) -> bool {
    let numbers = |version: &str| -> Vec<u64> {
        let core = version.split(['-', '+']).next().unwrap_or_default();
        core.split('.').map(|part| part.parse().unwrap_or(0)).collect()
    };
    numbers(left) > numbers(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_covered_filters_are_left_out() {
        let kept = |filters: &[&str]| {
            without_covered(&filters.iter().map(|filter| (*filter).to_owned()).collect::<Vec<_>>()).join(" ")
        };
        assert_eq!(kept(&["a.x", "a.>", "a.*"]), "a.>");
        assert_eq!(kept(&["a.*", "*.x"]), "a.* *.x");
        assert_eq!(kept(&["a.b", "a.b"]), "a.b");
        assert_eq!(kept(&["a.*", "a.>"]), "a.>");
        assert_eq!(kept(&["a.b.>", "*.*.c"]), "a.b.> *.*.c");
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_newer("0.10.0", "0.9.3"));
        assert!(!is_newer("0.9.3", "0.9.3"));
        assert!(!is_newer("", "0.1.0"));
    }
}
