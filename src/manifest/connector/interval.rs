//! Times on a grid.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::manifest::value::Span;

/// Shortest period of `every`, in milliseconds.
pub const EVERY_MS_MIN: u128 = 10;
/// Missed slots that `fireAll` makes up for at most.
pub const MISSED_SLOTS_MAX: usize = 1_000;

/// One message per slot, also across a restart. Its id is `i/<source>/<slot>`, the slot in milliseconds since 1970.
///
/// Exactly one of `every` and `cron`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Interval {
    /// The period, at least 10 ms. Slots lie on whole multiples of it since 1970-01-01T00:00:00Z.
    #[serde(default)]
    pub every: Option<Span>,
    /// A cron schedule of five fields, or six with seconds first.
    #[serde(default)]
    pub cron: Option<String>,
    /// The time zone of `cron`, such as `Europe/Vilnius`. Default UTC.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// The payload of each message. Default: `{"slot": "<time of the slot>"}`.
    #[serde(default)]
    pub payload: Option<serde_json::Value>,
    /// What happens with slots that passed while nothing ran.
    #[serde(default)]
    pub on_missed: OnMissed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnMissed {
    /// They are left out.
    #[default]
    Skip,
    /// The newest of them is made up for.
    FireOnce,
    /// All are made up for, the newest 1,000 at most.
    FireAll,
}
