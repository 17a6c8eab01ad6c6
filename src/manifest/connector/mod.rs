//! The YAML shape of each connector, one file per outside system. Their code is in `connectors/`.

pub mod file;
pub mod http;
pub mod interval;
pub mod stdout;
