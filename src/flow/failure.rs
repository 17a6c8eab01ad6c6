//! Why a message could not be processed or delivered.

/// For people, and for the dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Stable and short, such as `http-503`, `timeout`, `schema`, `expression`.
    pub code: String,
    /// What happened, with the place in the manifest where there is one.
    pub message: String,
    /// `file:line:column` in the manifest, where there is one.
    pub position: Option<String>,
}

impl Failure {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Failure { code: code.into(), message: message.into(), position: None }
    }
}
