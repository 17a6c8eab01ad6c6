//! `vejas plan|apply|publish|history|diff|rollback|suspend|resume`: what is published, and changing it.

mod show;
mod upload;

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api::Api;
use super::exit::Exit;
use super::status::{self, Output};
use crate::api::view::revisions::{
    Confirm, Confirmed, Diff, History, Plan, Publish, Published, Rollback, Suspend, Suspended,
};

/// Which API to ask, and how to answer.
#[derive(Debug, ClapArgs)]
struct Asked {
    #[command(flatten)]
    at: Api,
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

impl Asked {
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, status::Error> {
        status::ask(&self.at.at(), Method::GET, path).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, status::Error> {
        status::send(&self.at.at(), Method::POST, path, Some(body)).await
    }

    /// As a table, or as the API gave it.
    fn print<T: Serialize>(&self, found: &T, table: impl FnOnce(&T) -> String) -> Result<(), status::Error> {
        let text = match self.output {
            Output::Json => format!("{:#}\n", serde_json::json!(found)),
            Output::Table => table(found),
        };
        match std::io::stdout().lock().write_all(text.as_bytes()) {
            // `vejas history | head` is no error.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}

/// Shows what a folder of manifests would change. Ends with 2 when it would change something.
#[derive(Debug, ClapArgs)]
pub struct PlanArgs {
    /// Folder or file of manifests.
    #[arg(default_value = "manifests", env = "VEJAS_MANIFESTS")]
    manifests: PathBuf,
    #[command(flatten)]
    api: Asked,
}

/// Applies exactly what a plan said: with a folder it publishes it, without one it says yes to a plan that waits.
///
/// A plan of git, or of the folder that the process follows, waits when it removes much.
#[derive(Debug, ClapArgs)]
pub struct ApplyArgs {
    /// The hash that `vejas plan` printed, or its first digits, at least eight.
    #[arg(long)]
    plan: String,
    /// Folder or file of manifests.
    manifests: Option<PathBuf>,
    #[command(flatten)]
    about: About,
    #[command(flatten)]
    api: Asked,
}

/// Puts a folder of manifests into effect on all members, for use in CI.
///
/// Nothing changes when any member cannot run it. What was in effect before is set aside: git or the folder that the process
/// follows do not bring it back by themselves.
#[derive(Debug, ClapArgs)]
pub struct PublishArgs {
    /// Folder or file of manifests.
    #[arg(default_value = "manifests", env = "VEJAS_MANIFESTS")]
    manifests: PathBuf,
    /// Also if it removes more than a third of the units.
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    about: About,
    #[command(flatten)]
    api: Asked,
}

/// Who, and why.
#[derive(Debug, ClapArgs)]
struct Why {
    /// Who asks for it. Default: the name of the user.
    #[arg(long)]
    by: Option<String>,
    /// Why.
    #[arg(long, short = 'm')]
    reason: Option<String>,
}

/// What the history says of a publication.
#[derive(Debug, ClapArgs)]
struct About {
    #[command(flatten)]
    why: Why,
    /// The commit that the manifests come from.
    #[arg(long)]
    commit: Option<String>,
    /// Also with errors: what has one keeps its last good version.
    #[arg(long)]
    keep_going: bool,
}

/// Shows what was published, the newest first.
#[derive(Debug, ClapArgs)]
pub struct HistoryArgs {
    #[command(flatten)]
    api: Asked,
}

/// Shows what differs between two publications. Ends with 2 when something does.
#[derive(Debug, ClapArgs)]
pub struct DiffArgs {
    /// The number of the earlier publication; 0 is nothing. Default: the one before.
    from: Option<u64>,
    /// The number of the later one. Default: the one in effect.
    to: Option<u64>,
    #[command(flatten)]
    api: Asked,
}

/// Brings an earlier publication back, as a new one, and sets the present one aside.
#[derive(Debug, ClapArgs)]
pub struct RollbackArgs {
    /// Its number; `vejas history` lists them. Default: the one before.
    to: Option<u64>,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    api: Asked,
}

/// Stops a unit on all members until it is resumed. What comes to it waits; an entrance answers 503.
#[derive(Debug, ClapArgs)]
pub struct SuspendArgs {
    /// Such as `flow/price-orders`.
    unit: String,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    api: Asked,
}

/// Lets a suspended unit go on.
#[derive(Debug, ClapArgs)]
pub struct ResumeArgs {
    /// Such as `flow/price-orders`.
    unit: String,
    #[command(flatten)]
    api: Asked,
}

pub(super) fn plan(args: PlanArgs) -> Exit {
    let upload = match upload::gather(&args.manifests) {
        Ok(upload) => upload,
        Err(reason) => return failed(&reason),
    };
    let mut exit = Exit::Ok;
    let ended = status::block_on(async {
        let plan: Plan = args.api.post("/api/v1/revisions/plan", &upload).await?;
        if plan.errors > 0 {
            exit = Exit::Problems;
        } else if plan.changes.iter().any(|change| change.from != change.to) {
            exit = Exit::Differs;
        }
        args.api.print(&plan, show::plan)
    });
    if ended == Exit::Ok { exit } else { ended }
}

pub(super) fn apply(args: ApplyArgs) -> Exit {
    let Some(manifests) = &args.manifests else {
        return status::block_on(async move {
            let confirm = Confirm { plan: args.plan.clone() };
            let confirmed: Confirmed = args.api.post("/api/v1/revisions/confirm", &confirm).await?;
            args.api.print(&confirmed, |confirmed| {
                format!("plan {} is confirmed, and takes effect within a moment\n", confirmed.plan)
            })
        });
    };
    put(manifests, args.about, Publish { plan: Some(args.plan), ..Publish::default() }, &args.api)
}

pub(super) fn publish(args: PublishArgs) -> Exit {
    put(&args.manifests, args.about, Publish { prune: args.prune, ..Publish::default() }, &args.api)
}

fn put(manifests: &std::path::Path, about: About, publish: Publish, api: &Asked) -> Exit {
    let upload = match upload::gather(manifests) {
        Ok(upload) => upload,
        Err(reason) => return failed(&reason),
    };
    let publish = Publish {
        upload,
        by: about.why.by.or_else(user),
        commit: about.commit,
        reason: about.why.reason,
        keep_going: about.keep_going,
        ..publish
    };
    status::block_on(async {
        let published: Published = api.post("/api/v1/revisions/publish", &publish).await?;
        api.print(&published, show::published)
    })
}

pub(super) fn history(args: HistoryArgs) -> Exit {
    status::block_on(async move {
        let history: History = args.api.get("/api/v1/revisions/history").await?;
        args.api.print(&history, show::history)
    })
}

pub(super) fn diff(args: DiffArgs) -> Exit {
    let mut exit = Exit::Ok;
    let ended = status::block_on(async {
        let numbers = [("from", args.from), ("to", args.to)];
        let query = numbers.iter().filter_map(|(name, no)| no.map(|no| format!("{name}={no}")));
        let path = format!("/api/v1/revisions/diff?{}", query.collect::<Vec<_>>().join("&"));
        let diff: Diff = args.api.get(path.trim_end_matches('?')).await?;
        if !diff.units.is_empty() {
            exit = Exit::Differs;
        }
        args.api.print(&diff, show::diff)
    });
    if ended == Exit::Ok { exit } else { ended }
}

pub(super) fn rollback(args: RollbackArgs) -> Exit {
    status::block_on(async move {
        let rollback = Rollback { to: args.to, by: args.why.by.or_else(user), reason: args.why.reason };
        let published: Published = args.api.post("/api/v1/revisions/rollback", &rollback).await?;
        args.api.print(&published, show::published)
    })
}

pub(super) fn suspend(args: SuspendArgs) -> Exit {
    let Some(path) = path(&args.unit, "suspend") else { return no_unit(&args.unit) };
    status::block_on(async move {
        let suspend = Suspend { by: args.why.by.or_else(user), reason: args.why.reason };
        let suspended: Suspended = args.api.post(&path, &suspend).await?;
        args.api.print(&suspended, show::suspended)
    })
}

pub(super) fn resume(args: ResumeArgs) -> Exit {
    let Some(path) = path(&args.unit, "resume") else { return no_unit(&args.unit) };
    status::block_on(async move {
        let resumed: Suspended = status::ask(&args.api.at.at(), Method::POST, &path).await?;
        args.api.print(&resumed, show::suspended)
    })
}

fn path(unit: &str, verb: &str) -> Option<String> {
    (unit.split('/').count() == 2).then(|| format!("/api/v1/units/{unit}/{verb}"))
}

fn no_unit(unit: &str) -> Exit {
    eprintln!("vejas: {unit:?} is no name of a unit such as flow/price-orders; `vejas status` lists them");
    Exit::Usage
}

fn failed(reason: &str) -> Exit {
    eprintln!("vejas: {reason}");
    Exit::Usage
}

fn user() -> Option<String> {
    ["USER", "LOGNAME"].into_iter().find_map(super::run::environment).filter(|user| !user.is_empty())
}
