//! Instances of the real binary that share a real nats-server and were given the same manifests. For programs that have
//! `tests/support/nats.rs` as their module `server`.

#![allow(dead_code, reason = "each program uses its part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use vejas::bus::nats::Nats;

use super::server::{self, Server};
use super::support::Failure;
use super::support::process::{Process, get};

/// Lines of each log that a failure shows.
const LOG_LINES: usize = 30;

pub struct Cluster {
    pub instances: Vec<Process>,
    pub bus: Arc<Nats>,
    pub runtime: tokio::runtime::Runtime,
    binary: PathBuf,
    manifests: Manifests,
    server: Server,
}

/// Where the instances have them from.
enum Manifests {
    Folder(String),
    /// Settings beyond the cluster's.
    Git(Vec<(&'static str, String)>),
}

pub fn name(number: usize) -> String {
    format!("vejas-{number}")
}

impl Cluster {
    /// A server, and no instance yet.
    pub fn new(binary: &Path, manifests: &str) -> Result<Self, Failure> {
        Cluster::with(binary, Manifests::Folder(manifests.to_owned()))
    }

    /// A server, and no instance yet; the instances follow a repository as these settings say.
    pub fn following(binary: &Path, settings: &[(&'static str, String)]) -> Result<Self, Failure> {
        Cluster::with(binary, Manifests::Git(settings.to_vec()))
    }

    fn with(binary: &Path, manifests: Manifests) -> Result<Self, Failure> {
        let server = Server::start();
        let runtime = tokio::runtime::Runtime::new()?;
        let bus = runtime.block_on(server::connect(&server));
        Ok(Cluster { instances: Vec::new(), bus, runtime, binary: binary.to_owned(), manifests, server })
    }

    /// Starts so many more instances and waits for none.
    pub fn launch(&mut self, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            let mut process = match &self.manifests {
                Manifests::Folder(text) => Process::new(text)?,
                Manifests::Git(settings) => {
                    let mut process = Process::without_manifests()?;
                    settings.iter().for_each(|(name, value)| process.environment(name, value));
                    process
                }
            };
            process.environment("VEJAS_CLUSTER", "1");
            process.environment("VEJAS_NATS_URL", self.server.url());
            process.environment("VEJAS_INSTANCE", name(self.instances.len()));
            process.launch(&self.binary)?;
            self.instances.push(process);
        }
        Ok(())
    }

    /// Starts an instance that was stopped or killed.
    pub fn launch_again(&mut self, number: usize) -> Result<(), Failure> {
        self.instances[number].launch(&self.binary)
    }

    pub fn wait_ready(&mut self) -> Result<(), Failure> {
        self.instances.iter_mut().try_for_each(Process::wait_ready)
    }

    /// What the first instance that answers says; `None` when none does.
    pub fn ask(&self, path: &str) -> Option<Value> {
        let answers = self.instances.iter().filter_map(|instance| get(instance.api, path).ok());
        answers.filter(|(status, _)| *status == 200).find_map(|(_, body)| serde_json::from_str(&body).ok())
    }

    /// Who holds each source that is held: the name of the instance by unit.
    pub fn owners(&self) -> Option<BTreeMap<String, String>> {
        let leases = self.ask("/api/v1/leases")?;
        let held = leases["leases"].as_array()?.iter().filter(|lease| {
            lease["state"] == "held" && lease["unit"].as_str().is_some_and(|unit| unit.starts_with("source/"))
        });
        held.map(|lease| Some((lease["unit"].as_str()?.to_owned(), lease["instance"].as_str()?.to_owned()))).collect()
    }

    /// The ends of their logs.
    pub fn logs(&self) -> String {
        let end = |log: String| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
        };
        self.instances.iter().map(|instance| format!("{}\n", end(instance.log()))).collect()
    }
}
