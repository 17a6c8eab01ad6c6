//! The protocol, explored to the end in small worlds.

#[path = "../../src/protocol/mod.rs"]
#[allow(dead_code, unused_imports)]
mod protocol;
