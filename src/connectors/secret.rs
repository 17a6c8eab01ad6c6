//! Text that must not be shown: what a connector setting stands for once its references are replaced.

use std::fmt;

use crate::manifest::value::Setting;

/// Prints as `***`. Comes from a [`Setting`]; whether that held a reference is remembered, because text that stood
/// in the manifest in the open may be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    referenced: bool,
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret { text: text.into(), referenced: true }
    }

    /// Text as it stands in the manifest.
    pub fn open(text: impl Into<String>) -> Self {
        Secret { text: text.into(), referenced: false }
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Whether some of it came from outside the manifest.
    pub fn is_referenced(&self) -> bool {
        self.referenced
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A setting that could not be resolved. Names the reference, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reference}: {reason}")]
pub struct Unresolved {
    pub reference: String,
    pub reason: String,
}

/// Replaces the references of a setting. Handed to a connector when it opens.
pub type Resolve<'a> = &'a dyn Fn(&Setting) -> Result<Secret, Unresolved>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints_itself() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(secret.expose(), "hunter2");
    }
}
