//! A bare repository with a work tree that pushes to it, by git itself.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::Failure;

pub struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    pub fn new() -> Result<Self, Failure> {
        let repository = Repository { folder: tempfile::tempdir()? };
        fs::create_dir(repository.tree())?;
        repository.git(&["init", "--quiet", "--bare", "--initial-branch=main", "../bare"])?;
        repository.git(&["init", "--quiet", "--initial-branch=main"])?;
        repository.git(&["remote", "add", "origin", "../bare"])?;
        Ok(repository)
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.folder.path().join("bare").display())
    }

    pub fn write(&self, path: &str, text: &str) -> Result<(), Failure> {
        Ok(fs::write(self.tree().join(path), text)?)
    }

    /// Commits everything and answers the commit.
    pub fn commit(&self, reason: &str) -> Result<String, Failure> {
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "-m", reason])?;
        self.git(&["rev-parse", "HEAD"])
    }

    pub fn push(&self) -> Result<(), Failure> {
        self.git(&["push", "--quiet", "origin", "main"]).map(|_| ())
    }

    fn git(&self, arguments: &[&str]) -> Result<String, Failure> {
        let identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"];
        let output = Command::new("git")
            .args(identity)
            .args(arguments)
            .current_dir(self.tree())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?.trim().to_owned());
        }
        Err(format!("git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}
