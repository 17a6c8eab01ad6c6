//! HTTP in: the entrance, and the server parts that the API shares with it.

pub mod auth;
pub mod server;
pub mod tls;

#[cfg(feature = "full")]
mod answer;
#[cfg(feature = "full")]
mod body;
#[cfg(feature = "full")]
mod message_id;
#[cfg(feature = "full")]
mod request;
#[cfg(feature = "full")]
pub mod source;
