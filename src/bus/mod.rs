//! Adapters of `ports::bus` and `ports::store`.

pub mod embedded;
