//! Which API a command asks.

use std::path::PathBuf;

use clap::Args;

use super::status::{At, SERVER_DEFAULT};

#[derive(Debug, Args)]
pub struct Api {
    /// The API to ask.
    #[arg(long, env = "VEJAS_SERVER", default_value = SERVER_DEFAULT)]
    pub server: String,
    /// The token to ask with; for what changes nothing the read token will do.
    #[arg(long, env = "VEJAS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// A PEM file of certificate authorities to trust besides the system's.
    #[arg(long)]
    pub ca: Option<PathBuf>,
}

impl Api {
    pub(super) fn at(&self) -> At<'_> {
        At { server: &self.server, token: self.token.as_deref(), ca: self.ca.as_deref() }
    }
}
