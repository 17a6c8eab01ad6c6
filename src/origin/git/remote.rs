//! Speaks to the server: credentials, trust, time limits.

use std::fs;
use std::path::Path;
use std::time::Instant;

use git2::cert::Cert;
use git2::{
    AutotagOption, CertificateCheckStatus, Cred, CredentialType, FetchOptions, FetchPrune, ProxyOptions,
    RemoteCallbacks, RemoteRedirect, Repository,
};

use super::{Credentials, Error, FETCH_MAX, Options, refused};

/// Branches and tags; what else a server has, such as the heads of pull requests, is not wanted.
const REFSPECS: [&str; 2] = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
/// The library asks for credentials again and again while they are refused.
const CREDENTIALS_MAX: u32 = 3;
/// Largest file of known hosts, in bytes.
const KNOWN_HOSTS_BYTES_MAX: u64 = 4 << 20;

/// Fetches, and answers the server's default branch.
#[allow(clippy::disallowed_methods, reason = "the time limit of a call that blocks")]
pub(super) fn fetch(options: &Options, repository: &Repository) -> Result<Option<String>, Error> {
    let mut remote = repository.remote_anonymous(&options.url)?;
    let deadline = Instant::now() + FETCH_MAX;
    let mut fetching = FetchOptions::new();
    fetching.prune(FetchPrune::On).download_tags(AutotagOption::None).update_fetchhead(false);
    // To another host not even once, which is the library's default: our credentials are for the one that is named.
    fetching.follow_redirects(RemoteRedirect::None);
    fetching.proxy_options(proxy()).remote_callbacks(callbacks(options, deadline));
    remote.fetch(&REFSPECS, Some(&mut fetching), None).map_err(|error| refused(options, &error))?;
    if options.reference.is_some() {
        return Ok(None);
    }
    // Told with the references that were just read; an empty repository has none.
    Ok(remote.default_branch().ok().and_then(|name| name.as_str().ok().map(str::to_owned)))
}

fn proxy<'p>() -> ProxyOptions<'p> {
    let mut proxy = ProxyOptions::new();
    proxy.auto();
    proxy
}

fn callbacks(options: &Options, deadline: Instant) -> RemoteCallbacks<'_> {
    let mut callbacks = RemoteCallbacks::new();
    let mut asked = 0;
    callbacks.credentials(move |_, user, allowed| {
        asked += 1;
        if asked > CREDENTIALS_MAX {
            return Err(denied("they were refused"));
        }
        credentials(&options.credentials, user, allowed)
    });
    if let Some(known_hosts) = &options.credentials.known_hosts {
        callbacks.certificate_check(move |certificate, host| check_host(known_hosts, certificate, host));
    }
    #[allow(clippy::disallowed_methods, reason = "the time limit of a call that blocks")]
    callbacks.transfer_progress(move |_| Instant::now() < deadline);
    callbacks
}

fn denied(reason: &str) -> git2::Error {
    git2::Error::new(git2::ErrorCode::Auth, git2::ErrorClass::Callback, reason)
}

fn credentials(given: &Credentials, user: Option<&str>, allowed: CredentialType) -> Result<Cred, git2::Error> {
    let user = given.user.as_deref().or(user);
    if allowed.is_username() {
        return Cred::username(user.unwrap_or("git"));
    }
    if allowed.is_ssh_key() {
        let Some(key) = &given.ssh_key else {
            return Err(denied("the server wants an SSH key; VEJAS_GIT_SSH_KEY names a file with one"));
        };
        return Cred::ssh_key(user.unwrap_or("git"), None, key, given.ssh_passphrase.as_deref());
    }
    match &given.token {
        Some(token) if allowed.is_user_pass_plaintext() => Cred::userpass_plaintext(user.unwrap_or("git"), token),
        _ => Err(denied("the server wants a token; VEJAS_GIT_TOKEN gives one")),
    }
}

/// Looks the host's key up in a file of known hosts. Names that OpenSSH has hashed cannot be compared, and match nothing.
fn check_host(known_hosts: &Path, certificate: &Cert<'_>, host: &str) -> Result<CertificateCheckStatus, git2::Error> {
    let Some(key) = certificate.as_hostkey().and_then(|key| key.hostkey().map(<[u8]>::to_vec)) else {
        // A certificate of TLS: the library has checked it.
        return Ok(CertificateCheckStatus::CertificatePassthrough);
    };
    let untrusted = |reason: String| git2::Error::new(git2::ErrorCode::Certificate, git2::ErrorClass::Ssh, reason);
    if is_known(&read_known(known_hosts).map_err(untrusted)?, host, &key) {
        return Ok(CertificateCheckStatus::CertificateOk);
    }
    Err(untrusted(not_listed(known_hosts)))
}

fn read_known(known_hosts: &Path) -> Result<String, String> {
    if fs::metadata(known_hosts).is_ok_and(|metadata| metadata.len() > KNOWN_HOSTS_BYTES_MAX) {
        return Err(format!("{} is too large", known_hosts.display()));
    }
    fs::read_to_string(known_hosts).map_err(|error| format!("{} cannot be read: {error}", known_hosts.display()))
}

fn not_listed(known_hosts: &Path) -> String {
    format!("{} does not list this key of the host", known_hosts.display())
}

/// Why a host's key is not trusted: the library tells its own words instead of ours.
pub(super) fn why_unknown(known_hosts: Option<&Path>) -> String {
    match known_hosts {
        None => "no file of known hosts lists its key; VEJAS_GIT_KNOWN_HOSTS names one".to_owned(),
        Some(path) => read_known(path).err().unwrap_or_else(|| not_listed(path)),
    }
}

fn is_known(known_hosts: &str, host: &str, key: &[u8]) -> bool {
    use base64::Engine;
    known_hosts.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '@'])).any(|line| {
        let mut fields = line.split_whitespace();
        let (Some(names), Some(_), Some(encoded)) = (fields.next(), fields.next(), fields.next()) else { return false };
        let bare = |name: &str| name.trim_start_matches('[').split("]:").next().unwrap_or(name).to_owned();
        let is_named = names.split(',').any(|name| bare(name) == host);
        is_named && base64::engine::general_purpose::STANDARD.decode(encoded).is_ok_and(|known| known == key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_name_and_key() {
        let known = "# ours\nother ssh-ed25519 QUJD\ngit.example,[git.example]:2222 ssh-ed25519 QUJD comment\n";
        assert!(is_known(known, "git.example", b"ABC"));
        assert!(!is_known(known, "git.example", b"ABD"), "another key");
        assert!(!is_known(known, "evil.example", b"ABC"), "another host");
        assert!(!is_known("@revoked git.example ssh-ed25519 QUJD", "git.example", b"ABC"));
    }
}
