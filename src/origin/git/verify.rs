//! Commits signed with SSH keys, checked against a file of allowed signers in the format of `ssh-keygen(1)`.
//!
//! The signature of the commit itself counts: it covers the tree, and through its parents the history. The committer's mail address
//! has to be one that the key may sign for.

use std::path::Path;
use std::str::FromStr;

use git2::{Oid, Repository};
use ssh_key::{PublicKey, SshSig};

/// What git signs for.
const NAMESPACE: &str = "git";
/// Largest file of allowed signers, in bytes.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone)]
struct Signer {
    /// Patterns of mail addresses.
    principals: Vec<String>,
    key: PublicKey,
}

/// Who may sign.
#[derive(Debug, Clone)]
pub struct AllowedSigners(Vec<Signer>);

impl AllowedSigners {
    /// Reads the file. The error is for people.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |reason: String| format!("the allowed signers {}: {reason}", path.display());
        let bytes = crate::manifest::tree::read_bounded(path, BYTES_MAX).map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8".to_owned()))?;
        AllowedSigners::parse(&text).map_err(failed)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut signers = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let signer = signer(line).map_err(|reason| format!("line {}: {reason}", at + 1))?;
            signers.extend(signer);
        }
        if signers.is_empty() {
            return Err("it names nobody who may sign".to_owned());
        }
        Ok(AllowedSigners(signers))
    }
}

/// `principals [options] type key`; none when it may not sign for git.
fn signer(line: &str) -> Result<Option<Signer>, String> {
    let (principals, rest) = line.split_once(char::is_whitespace).ok_or("it ends after the principals")?;
    let rest = rest.trim_start();
    let first = rest.split_whitespace().next().unwrap_or_default();
    let is_type = |text: &str| text.starts_with("ssh-") || text.starts_with("ecdsa-") || text.starts_with("sk-");
    let (options, key) = if is_type(first) { ("", rest) } else { (first, rest[first.len()..].trim_start()) };
    let mut signs_for_git = true;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some((name, namespaces)) if name.eq_ignore_ascii_case("namespaces") => {
                signs_for_git = namespaces.trim_matches('"').split(',').any(|namespace| namespace == NAMESPACE);
            }
            // To pass over one would admit more than the file says.
            _ => return Err(format!("the option {option} is not understood in this version")),
        }
    }
    let key = PublicKey::from_openssh(key).map_err(|error| format!("the key cannot be read: {error}"))?;
    let principals = principals.trim_matches('"').split(',').map(str::to_owned).collect();
    Ok(signs_for_git.then_some(Signer { principals, key }))
}

/// Whether a key that may sign has signed the commit. The error says why not.
pub(super) fn verify(repository: &Repository, commit: Oid, allowed: &AllowedSigners) -> Result<(), String> {
    let (signature, signed) = repository
        .extract_signature(&commit, None)
        .map_err(|_| "it is not signed, and VEJAS_GIT_VERIFY asks for a signature".to_owned())?;
    let text = signature.as_str().map_err(|_| "its signature is not UTF-8".to_owned())?;
    if !text.trim_start().starts_with("-----BEGIN SSH SIGNATURE-----") {
        return Err("it is not signed with an SSH key; others are not checked in this version".to_owned());
    }
    let signature = SshSig::from_str(text.trim()).map_err(|error| format!("its signature cannot be read: {error}"))?;
    let of_key: Vec<&Signer> =
        allowed.0.iter().filter(|signer| signer.key.key_data() == signature.public_key()).collect();
    if of_key.is_empty() {
        return Err("the key that signed it is none of the allowed signers".to_owned());
    }
    let found = repository.find_commit(commit).map_err(|error| error.message().to_owned())?;
    let committer = found.committer();
    let address = committer.email().unwrap_or_default().to_owned();
    let Some(signer) = of_key.iter().find(|signer| signer.principals.iter().any(|one| matches(one, &address))) else {
        return Err(format!("the key that signed it may not sign for {address}"));
    };
    signer.key.verify(NAMESPACE, &signed, &signature).map_err(|_| "its signature does not fit what it signs".to_owned())
}

/// A pattern with `*` and `?`.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, seen)) => {
                    star = Some((at, seen + 1));
                    (p, t) = (at + 1, seen + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM0ybHDehKwTO/i7EeSBA8PBk4Ms71X+7xbFVswLmIYj";

    #[test]
    fn a_file_of_signers_is_read_and_what_is_not_understood_is_refused() {
        let signers = AllowedSigners::parse(&format!("# ours\nada@example.com,*@ops.example {KEY} comment\n")).unwrap();
        assert_eq!(signers.0[0].principals, ["ada@example.com", "*@ops.example"]);
        assert_eq!(AllowedSigners::parse(&format!("a@b namespaces=\"git\" {KEY}")).unwrap().0.len(), 1);
        let refused = |text: &str| AllowedSigners::parse(text).unwrap_err();
        assert!(refused("").contains("nobody"));
        assert!(refused(&format!("a@b namespaces=\"file\" {KEY}")).contains("nobody"));
        assert!(refused(&format!("a@b valid-before=\"2020\" {KEY}")).contains("line 1: the option valid-before"));
        assert!(refused("a@b ssh-ed25519 xyz").contains("cannot be read"));
    }

    #[test]
    fn principals_are_patterns() {
        assert!(matches("*@ops.example", "ada@ops.example") && matches("a?a@b", "ada@b") && matches("*", ""));
        assert!(!matches("*@ops.example", "ada@ops.example.com") && !matches("ada@b", "ada@bc"));
    }
}
