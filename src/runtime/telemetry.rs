//! Logs and metrics of the process: set up once, before anything else.

use std::io::IsTerminal;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    Human,
    Json,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("log filter {filter:?}: {source}")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("{0:?} is not a log level: error, warn, info, debug, trace or off")]
    Level(String),
    #[error("logs are set up already")]
    Logs(#[source] tracing_subscriber::util::TryInitError),
    #[error("metrics: {0}")]
    Metrics(#[source] metrics_exporter_prometheus::BuildError),
}

/// Logs go to the standard error. `filter` is a level, which is that of Vejas itself (libraries say only what is wrong), or a
/// list such as `warn,vejas=debug,fjall=info`.
pub fn logs(filter: &str, format: LogFormat) -> Result<(), Error> {
    let parsed = directives(filter)?;
    let terminal = std::io::stderr().is_terminal();
    let json = format == LogFormat::Json || (format == LogFormat::Auto && !terminal);
    let registry = tracing_subscriber::registry().with(parsed);
    let done = if json {
        let layer = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
        registry.with(layer).try_init()
    } else {
        let layer =
            tracing_subscriber::fmt::layer().with_target(false).with_ansi(terminal).with_writer(std::io::stderr);
        registry.with(layer).try_init()
    };
    done.map_err(Error::Logs)
}

fn directives(filter: &str) -> Result<EnvFilter, Error> {
    // A misspelt level would be taken for the name of a library, and silence everything.
    for part in filter.split(',').filter(|part| !part.contains('=')) {
        if part.trim().parse::<LevelFilter>().is_err() {
            return Err(Error::Level(part.to_owned()));
        }
    }
    let plain = !filter.contains([',', '=']);
    let directives = if plain { format!("warn,vejas={filter}") } else { filter.to_owned() };
    EnvFilter::try_new(directives).map_err(|source| Error::Filter { filter: filter.to_owned(), source })
}

/// Seconds; from a fast fsync to a slow receiver.
const LATENCY_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Makes the recorder of this process. The handle renders what `/metrics` answers.
pub fn metrics() -> Result<PrometheusHandle, Error> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), LATENCY_BUCKETS)
        .map_err(Error::Metrics)?
        .install_recorder()
        .map_err(Error::Metrics)
        .inspect(|_| describe())
}

/// What the counters of units mean, for the scraper.
fn describe() {
    for (name, text) in [
        ("vejas_unit_received_total", "Messages taken in: pulled and finished, or accepted by an entrance"),
        ("vejas_unit_emitted_total", "Messages stored or delivered"),
        ("vejas_unit_dropped_total", "Messages ended on purpose by a filter, a dedupe or a missing route"),
        ("vejas_unit_retries_total", "Attempts that failed and will be made again"),
        ("vejas_unit_dead_letters_total", "Messages that became dead letters"),
        ("vejas_unit_refused_total", "Requests an entrance refused"),
    ] {
        metrics::describe_counter!(name, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_that_of_vejas_and_libraries_say_only_what_is_wrong() {
        assert_eq!(directives("info").unwrap().to_string(), "vejas=info,warn");
        assert_eq!(directives("warn,fjall=info").unwrap().to_string(), "fjall=info,warn");
    }

    #[test]
    fn a_misspelt_level_is_refused() {
        for wrong in ["inof", "loud,vejas=info"] {
            assert!(matches!(directives(wrong), Err(Error::Level(_))), "{wrong}");
        }
    }
}
