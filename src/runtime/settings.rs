//! What the references in connector settings stand for: `${env:…}`, `${file:…}`, `${secret:…}`.
//!
//! The environment and the folders are handed in. Errors name the reference, never a value. Secrets come from a
//! folder of files, `<folder>/<path>/<key>`, as Kubernetes and systemd mount them; a secret server is not spoken to in
//! this version.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub use crate::connectors::secret::{Secret, Unresolved};
use crate::manifest::reference::{self, Part, Target};
use crate::manifest::value::Setting;

/// Largest file or secret a reference may name, in bytes.
pub const REFERENCED_BYTES_MAX: u64 = 64 * 1024;
/// Largest file of certificates, in bytes.
pub const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;

/// Looks up an environment variable.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub struct Settings {
    environment: Environment,
    /// Relative file references start here.
    base: PathBuf,
    /// `VEJAS_SECRETS_DIR`.
    secrets: Option<PathBuf>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("base", &self.base).field("secrets", &self.secrets).finish_non_exhaustive()
    }
}

impl Settings {
    pub fn new(environment: Environment, base: PathBuf, secrets: Option<PathBuf>) -> Self {
        Settings { environment, base, secrets }
    }

    /// The setting with every reference replaced. Reads files: not for a thread of the runtime under load.
    pub fn resolve(&self, setting: &Setting) -> Result<Secret, Unresolved> {
        let parts = reference::parse(&setting.0).map_err(|error| Unresolved {
            reference: setting.0.get(error.span.clone()).unwrap_or_default().to_owned(),
            reason: error.message,
        })?;
        let mut text = String::new();
        let mut referenced = false;
        for part in parts {
            match part {
                Part::Text(part) => text.push_str(&part),
                Part::Reference(reference) => {
                    referenced = true;
                    let value = self.look_up(&reference.target).map_err(|reason| Unresolved {
                        reference: setting.0[reference.span.clone()].to_owned(),
                        reason,
                    })?;
                    text.push_str(&value);
                }
            }
        }
        Ok(if referenced { Secret::new(text) } else { Secret::open(text) })
    }

    /// A file of certificates that a setting such as `ca` names, relative to the base.
    pub fn certificates(&self, path: &str) -> Result<Vec<u8>, Unresolved> {
        read(&self.base.join(path), CERTIFICATES_BYTES_MAX)
            .map_err(|reason| Unresolved { reference: path.to_owned(), reason })
    }

    fn look_up(&self, target: &Target) -> Result<String, String> {
        match target {
            Target::Env { name, default } => (self.environment)(name)
                .or_else(|| default.clone())
                .ok_or_else(|| format!("the environment variable {name} is not set")),
            Target::File { path } => text(&self.base.join(path)),
            Target::Secret { path, key } => {
                let folder = self.secrets.as_ref().ok_or(
                    "no place for secrets is set: put them into files and set VEJAS_SECRETS_DIR; secret servers are not in this version",
                )?;
                let inside = Path::new(path).join(key);
                if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
                    return Err("a secret is named by plain folder and file names".to_owned());
                }
                text(&folder.join(inside))
            }
        }
    }
}

/// The text of a file without one line end at its end.
fn text(path: &Path) -> Result<String, String> {
    let bytes = read(path, REFERENCED_BYTES_MAX)?;
    let mut text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| format!("cannot open the file: {error}"))?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot read the file: {error}"))?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("the file is larger than {bytes_max} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(folder: &Path) -> Settings {
        let environment = |name: &str| (name == "HOST").then(|| "erp.example".to_owned());
        Settings::new(Arc::new(environment), folder.to_owned(), Some(folder.join("secrets")))
    }

    fn setting(text: &str) -> Setting {
        Setting(text.to_owned())
    }

    #[test]
    fn every_kind_of_reference_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("secrets/erp/eu")).unwrap();
        std::fs::write(folder.path().join("secrets/erp/eu/token"), "s3cret\r\n").unwrap();
        std::fs::write(folder.path().join("path"), "orders\n\n").unwrap();
        let settings = settings(folder.path());
        let resolved = settings
            .resolve(&setting("https://${env:HOST}/${env:NO:-x}?k=${secret:erp/eu/token}&p=${file:path}$${"))
            .unwrap();
        assert_eq!(resolved.expose(), "https://erp.example/x?k=s3cret&p=orders\n${");
        assert!(resolved.is_referenced());
        assert!(!settings.resolve(&setting("plain")).unwrap().is_referenced());
    }

    #[test]
    fn errors_name_the_reference_and_no_value() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("big"), vec![b'x'; REFERENCED_BYTES_MAX as usize + 1]).unwrap();
        let settings = settings(folder.path());
        for (text, reference, reason) in [
            ("${env:HOST}${env:NO}", "${env:NO}", "not set"),
            ("a${file:big}", "${file:big}", "larger than 65536"),
            ("${file:none}", "${file:none}", "cannot open"),
            ("${secret:../../etc/passwd}", "${secret:../../etc/passwd}", "plain folder"),
            ("x${env:HOST", "${env:HOST", "not closed"),
        ] {
            let error = settings.resolve(&setting(text)).unwrap_err();
            assert_eq!(error.reference, reference);
            assert!(error.reason.contains(reason), "{error}");
            assert!(!error.to_string().contains("erp.example"));
        }
    }

    #[test]
    fn secrets_without_a_folder_say_what_to_set() {
        let settings = Settings::new(Arc::new(|_: &str| None), PathBuf::new(), None);
        let error = settings.resolve(&setting("${secret:erp/token}")).unwrap_err();
        assert!(error.reason.contains("VEJAS_SECRETS_DIR"));
    }
}
