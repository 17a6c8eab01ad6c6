//! What a running unit is handed ([`context`], and [`tenancy`] if only one member may run it) and what it tells about itself ([`status`], [`rates`], [`tap`]). Shared by connectors, which
//! do the work, and the runtime, which starts and stops them.

pub mod context;
pub mod rates;
pub mod status;
pub mod tap;
pub mod tenancy;
