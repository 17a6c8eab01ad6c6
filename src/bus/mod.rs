//! Adapters of `ports::bus` and `ports::store`.

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "nats")]
pub mod nats;
