//! `kind: HttpIn`: an HTTP entrance.

use schemars::JsonSchema;
use serde::Deserialize;

use super::value::{ByteSize, Name, Setting, Subject};

/// Where an entrance listens when it does not say.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:8787";
/// Largest body an entrance may allow, in bytes.
pub const BODY_BYTES_MAX: u64 = 64 << 20;

/// Accepts a request, stores its body as one message, and answers only after the bus has stored it.
///
/// 200 answers `{"id", "sequence"}`. `Idempotency-Key` gives one message and the same answer for two minutes; the same
/// key with another body is 422. A body that does not match the schema is 422 with the reason, a full bus 503.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpIn {
    /// Address and port. Several entrances may share one. `VEJAS_INGRESS_ADDR` overrides the default,
    /// `127.0.0.1:8787`. Beyond loopback an entrance needs `auth`.
    #[serde(default)]
    pub listen: Option<String>,
    /// The path, such as `/ingest/orders`. Matched exactly.
    pub path: String,
    /// The methods it answers to.
    #[serde(default = "methods_default")]
    pub methods: Vec<Method>,
    /// The subject that bodies are stored under.
    pub to: Subject,
    /// The name of a Schema manifest that a body must match. Bodies are then JSON.
    #[serde(default)]
    pub schema: Option<Name>,
    /// Who may send.
    #[serde(default)]
    pub auth: Option<Auth>,
    /// Largest body. Default 1 MiB, at most 64 MiB and what the bus takes.
    #[serde(default = "max_body_bytes_default")]
    pub max_body_bytes: ByteSize,
    /// Serves HTTPS. All entrances of one `listen` address state the same.
    #[serde(default)]
    pub tls: Option<Tls>,
}

fn methods_default() -> Vec<Method> {
    vec![Method::Post]
}

fn max_body_bytes_default() -> ByteSize {
    ByteSize(1 << 20)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    Post,
    Put,
    Patch,
}

/// Exactly one way.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Auth {
    /// Anybody. Says so on purpose: without it a listener beyond loopback is refused.
    None {},
    /// `Authorization: Bearer <token>`.
    Bearer {
        /// The token, as a reference: `${env:NAME}`, `${file:path}` or `${secret:path/key}`.
        token: Setting,
    },
    /// HTTP Basic.
    Basic { username: Setting, password: Setting },
    /// A signature over the body, as webhooks send it.
    Hmac(Hmac),
}

/// HMAC-SHA256 over the raw body, as lower-case hex.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hmac {
    pub secret: Setting,
    /// The request header that carries the signature.
    #[serde(default = "hmac_header_default")]
    pub header: String,
    /// What precedes the hex digits in the header.
    #[serde(default = "hmac_prefix_default")]
    pub prefix: String,
}

fn hmac_header_default() -> String {
    "X-Hub-Signature-256".to_owned()
}

fn hmac_prefix_default() -> String {
    "sha256=".to_owned()
}

/// PEM files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// The certificate chain, leaf first.
    pub cert: String,
    /// The private key.
    pub key: String,
}
