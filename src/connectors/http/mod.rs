//! HTTP in both directions: the entrance, the sink, and the server parts that the API shares with the entrance.

mod answer;
pub mod auth;
mod body;
mod message_id;
mod request;
pub mod server;
pub mod sink;
pub mod source;
pub mod tls;
