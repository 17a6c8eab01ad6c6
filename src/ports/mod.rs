//! What the core asks of the world: traits and their errors, nothing else. Adapters are in `bus` and `connectors`.

pub mod bus;
pub mod clock;
pub mod peers;
pub mod sink;
pub mod store;
