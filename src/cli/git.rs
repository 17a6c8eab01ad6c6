//! The settings of a git repository as the origin of the manifests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args as ClapArgs;

use super::run::duration;
use crate::origin::git::{AllowedSigners, Credentials, Options};
use crate::runtime::config::Git;

/// The repository is not looked at more often than this.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Git")]
#[group(id = "git_settings")]
pub struct Args {
    /// Take the manifests from this repository: https, ssh, git or file URL, or a path.
    #[arg(long, env = "VEJAS_GIT_URL")]
    git_url: Option<String>,
    /// The branch, tag or commit to follow. Default: the server's default branch.
    #[arg(long, env = "VEJAS_GIT_REF")]
    git_ref: Option<String>,
    /// The folder of the manifests in the repository.
    #[arg(long, env = "VEJAS_GIT_PATH", default_value = "")]
    git_path: String,
    /// How often the repository is looked at, beside when a webhook says so.
    #[arg(long, env = "VEJAS_GIT_INTERVAL", default_value = "30s", value_parser = duration)]
    git_interval: Duration,
    /// How long the server may be silent.
    #[arg(long, env = "VEJAS_GIT_TIMEOUT", default_value = "30s", value_parser = duration)]
    git_timeout: Duration,
    /// Token for https.
    #[arg(long, env = "VEJAS_GIT_TOKEN", hide_env_values = true)]
    git_token: Option<String>,
    /// User for https and SSH, where the URL names none.
    #[arg(long, env = "VEJAS_GIT_USER")]
    git_user: Option<String>,
    /// File with a private key for SSH.
    #[arg(long, env = "VEJAS_GIT_SSH_KEY")]
    git_ssh_key: Option<PathBuf>,
    /// The passphrase of that key.
    #[arg(long, env = "VEJAS_GIT_SSH_PASSPHRASE", hide_env_values = true)]
    git_ssh_passphrase: Option<String>,
    /// File of host keys to trust. Default: ~/.ssh/known_hosts.
    #[arg(long, env = "VEJAS_GIT_KNOWN_HOSTS")]
    git_known_hosts: Option<PathBuf>,
    /// File of allowed signers (ssh-keygen(1)): only commits that one of them has signed are taken.
    #[arg(long, env = "VEJAS_GIT_VERIFY")]
    git_verify: Option<PathBuf>,
    /// Secret of the webhook; without one the webhook is closed.
    #[arg(long, env = "VEJAS_GIT_WEBHOOK_SECRET", hide_env_values = true)]
    git_webhook_secret: Option<String>,
}

impl Args {
    pub(super) fn config(self, data_dir: &Path) -> Result<Option<Git>, String> {
        let Some(url) = self.git_url.filter(|url| !url.is_empty()) else {
            return match self.git_ref.filter(|reference| !reference.is_empty()) {
                Some(_) => Err("VEJAS_GIT_REF is set and VEJAS_GIT_URL, which names the repository, is not".to_owned()),
                None => Ok(None),
            };
        };
        if self.git_path.split('/').any(|part| part == "..") {
            return Err(format!("VEJAS_GIT_PATH {:?} leads out of the repository", self.git_path));
        }
        for (name, file) in [("VEJAS_GIT_SSH_KEY", &self.git_ssh_key), ("VEJAS_GIT_KNOWN_HOSTS", &self.git_known_hosts)]
        {
            if let Some(file) = file.as_ref().filter(|file| !file.is_file()) {
                return Err(format!("{name}: there is no file {}", file.display()));
            }
        }
        let verify = self.git_verify.as_deref().map(AllowedSigners::read).transpose();
        let options = Options {
            url,
            reference: self.git_ref.filter(|reference| !reference.is_empty()),
            path: self.git_path.trim_matches('/').to_owned(),
            credentials: Credentials {
                token: self.git_token.filter(|token| !token.is_empty()),
                user: self.git_user.filter(|user| !user.is_empty()),
                ssh_key: self.git_ssh_key,
                ssh_passphrase: self.git_ssh_passphrase,
                known_hosts: self.git_known_hosts,
            },
            verify: verify.map_err(|reason| format!("VEJAS_GIT_VERIFY: {reason}"))?,
            timeout: self.git_timeout.max(TIMEOUT_MIN),
            mirror: data_dir.join("git"),
        };
        let webhook_secret = self.git_webhook_secret.filter(|secret| !secret.is_empty());
        Ok(Some(Git { options, period: self.git_interval.max(INTERVAL_MIN), webhook_secret }))
    }
}
