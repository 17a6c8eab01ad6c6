//! A payload in the editor of the person who asked.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::super::run::environment;
use super::door::Error;

/// A private file that holds a payload while it is edited. Removed when the value is dropped, unless it is kept.
pub struct Draft {
    path: PathBuf,
    kept: bool,
}

impl Draft {
    pub fn write(sequence: u64, payload: &[u8]) -> Result<Self, Error> {
        // So that the editor colours what it shows.
        let is_json = serde_json::from_slice::<&serde_json::value::RawValue>(payload).is_ok();
        let extension = if is_json { "json" } else { "txt" };
        let name = format!("vejas-dead-letter-{sequence}-{}.{extension}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let failed = |error: std::io::Error| Error::Io(format!("cannot write {}: {error}", path.display()));
        // Never through a file that is there already, and for nobody else to read.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        let draft = Draft { path: path.clone(), kept: false };
        file.write_all(payload).map_err(failed)?;
        Ok(draft)
    }

    /// Opens the editor, waits for its end, and answers what is in the file then.
    pub fn edit(&self, before: &[u8]) -> Result<Vec<u8>, Error> {
        let set = |name| environment(name).filter(|value| !value.trim().is_empty());
        let editor = set("VISUAL").or_else(|| set("EDITOR")).ok_or_else(|| {
            Error::Usage("no editor is set: set EDITOR, or change fields with --set path=json".to_owned())
        })?;
        // Through the shell, as the variable may hold arguments; the path is one of them and needs no quoting.
        let status = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(&self.path).status();
        let status = status.map_err(|error| Error::Io(format!("cannot start {editor}: {error}")))?;
        if !status.success() {
            return Err(Error::Io(format!("{editor} ended with {status}: nothing was changed")));
        }
        let failed = |error: std::io::Error| Error::Io(format!("cannot read {}: {error}", self.path.display()));
        let mut after = Vec::new();
        File::open(&self.path).and_then(|mut file| file.read_to_end(&mut after)).map_err(failed)?;
        // Editors end the last line of a text; nobody asked for that byte.
        if after.ends_with(b"\n") && !before.ends_with(b"\n") {
            after.pop();
        }
        Ok(after)
    }

    /// What was typed is not thrown away with an error.
    pub fn keep(mut self) -> PathBuf {
        self.kept = true;
        self.path.clone()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
