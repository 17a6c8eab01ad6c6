//! `/metrics`: what the process counted, and what the bus says at this moment.
//!
//! Lag is asked at the scrape and written here, not kept as a gauge: the gauge of a unit that is gone would stay.

use std::fmt::Write;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use super::view::{Lag, Stream, state_text};
use super::{Told, lag, status};
use crate::unit::status::State as UnitState;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(super) async fn metrics(State(told): State<Told>) -> Response {
    let mut text = told.metrics.as_ref().map(|handle| handle.render()).unwrap_or_default();
    let units = told.registry.all();
    let lags = lag::of_units(&told.bus, &units, told.clock.now()).await;
    let (streams, _) = status::streams(&told).await;
    let lags: Vec<(String, Lag)> =
        units.iter().zip(lags).filter_map(|(unit, lag)| Some((unit.id.to_string(), lag?))).collect();
    let states: Vec<(String, UnitState)> = units.iter().map(|unit| (unit.id.to_string(), unit.state())).collect();
    write_units(&mut text, &lags, &states);
    write_streams(&mut text, &streams);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

fn family<'a, T: 'a>(
    text: &mut String,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = &'a T>,
    sample: impl Fn(&T) -> Option<(String, f64)>,
) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (labels, value) in rows.into_iter().filter_map(sample) {
        let _ = writeln!(text, "{name}{{{labels}}} {value}");
    }
}

// Unit and stream names are made of letters, digits, `-`, `_` and `/`: nothing in a label needs escaping.

fn write_units(text: &mut String, lags: &[(String, Lag)], states: &[(String, UnitState)]) {
    let of_unit = |unit: &str, value: f64| Some((format!("unit=\"{unit}\""), value));
    family(text, "vejas_unit_pending", "Messages not handed out yet.", lags, |(unit, lag)| {
        of_unit(unit, lag.pending as f64)
    });
    family(text, "vejas_unit_in_flight", "Messages handed out and not acknowledged.", lags, |(unit, lag)| {
        of_unit(unit, lag.in_flight as f64)
    });
    family(text, "vejas_unit_redelivering", "Messages that wait for another delivery.", lags, |(unit, lag)| {
        of_unit(unit, lag.redelivering as f64)
    });
    let help = "Age of the oldest message not acknowledged; 0 when there is none.";
    family(text, "vejas_unit_oldest_unacknowledged_seconds", help, lags, |(unit, lag)| {
        of_unit(unit, lag.oldest_seconds.unwrap_or(0.0))
    });
    family(text, "vejas_unit_state", "1 for the state a unit is in.", states, |(unit, state)| {
        Some((format!("unit=\"{unit}\",state=\"{}\"", state_text(*state)), 1.0))
    });
}

fn write_streams(text: &mut String, streams: &[Stream]) {
    let of_stream = |stream: &Stream, value: u64| Some((format!("stream=\"{}\"", stream.name), value as f64));
    family(text, "vejas_stream_bytes", "Bytes held.", streams, |stream| of_stream(stream, stream.bytes));
    family(text, "vejas_stream_bytes_max", "Bytes at which new messages are refused.", streams, |stream| {
        of_stream(stream, stream.bytes_max)
    });
    let help = "1 when 80 % of the limit are used: at the limit entrances refuse, or units that fail pause.";
    family(text, "vejas_stream_nearly_full", help, streams, |stream| {
        of_stream(stream, u64::from(stream.is_nearly_full()))
    });
    family(text, "vejas_stream_messages", "Messages held.", streams, |stream| of_stream(stream, stream.messages));
    family(text, "vejas_stream_last_sequence", "Sequence of the newest message.", streams, |stream| {
        of_stream(stream, stream.last)
    });
}
