//! `vejas members`, `vejas leases`, `vejas drain`: the cluster as one of its processes sees it.

use std::io::Write;

use clap::Args as ClapArgs;

use super::api::Api;
use super::exit::Exit;
use super::status::{self, Output};
use crate::api::view;
use crate::unit::status::short;

/// Shows the processes of the cluster, what they run and how many units they own.
#[derive(Debug, ClapArgs)]
pub struct MembersArgs {
    #[command(flatten)]
    api: Api,
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Shows the units that only one process may run, and which one does.
#[derive(Debug, ClapArgs)]
pub struct LeasesArgs {
    #[command(flatten)]
    api: Api,
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Tells a process of the cluster to hand over what it owns, finish what it holds and end, as SIGTERM would.
#[derive(Debug, ClapArgs)]
pub struct DrainArgs {
    /// The name of the process; `vejas members` lists them.
    instance: String,
    #[command(flatten)]
    api: Api,
}

pub(super) fn members(args: MembersArgs) -> Exit {
    status::block_on(async move {
        let found: view::Members = status::ask(&args.api.at(), reqwest::Method::GET, "/api/v1/members").await?;
        if args.output == Output::Json {
            return print(&format!("{:#}\n", serde_json::json!(found)));
        }
        let head = ["INSTANCE", "SESSION", "OWNS", "NO", "GIVEN", "VERSION", "ADDRESS", "STARTED"];
        let (mut rows, mut text, mut notes) = (Vec::new(), String::new(), String::new());
        for member in &found.members {
            let own = if member.own { "*" } else { "" };
            rows.push([
                format!("{}{own}", member.instance),
                member.session.clone(),
                member.owns.to_string(),
                member.no.to_string(),
                short(&member.revision).to_owned(),
                member.version.clone(),
                member.address.clone(),
                member.started.clone(),
            ]);
            if let Some(reason) = &member.degraded {
                notes.push_str(&format!("{} is degraded: {reason}\n", member.instance));
            }
        }
        status::align(&mut text, head, rows.into_iter(), "llrrllll");
        print(&format!("{text}{notes}"))
    })
}

pub(super) fn leases(args: LeasesArgs) -> Exit {
    status::block_on(async move {
        let found: view::Leases = status::ask(&args.api.at(), reqwest::Method::GET, "/api/v1/leases").await?;
        if args.output == Output::Json {
            return print(&format!("{:#}\n", serde_json::json!(found)));
        }
        let head = ["UNIT", "STATE", "INSTANCE", "TENURE", "RENEWED"];
        let (mut rows, mut text) = (Vec::new(), String::new());
        for lease in &found.leases {
            let state = match &lease.heir {
                Some(heir) => format!("{} to {heir}", lease.state),
                None => lease.state.clone(),
            };
            rows.push([
                lease.unit.clone(),
                state,
                lease.instance.clone(),
                lease.tenure.to_string(),
                lease.renewed.clone(),
            ]);
        }
        status::align(&mut text, head, rows.into_iter(), "lllrl");
        print(&text)
    })
}

pub(super) fn drain(args: DrainArgs) -> Exit {
    if args.instance.is_empty() || args.instance.contains('/') {
        eprintln!("vejas: {:?} is no name of a process; `vejas members` lists them", args.instance);
        return Exit::Usage;
    }
    status::block_on(async move {
        let path = format!("/api/v1/members/{}/drain", args.instance);
        let drained: view::Drained = status::ask(&args.api.at(), reqwest::Method::POST, &path).await?;
        print(&format!("{} was told to leave; `vejas members` shows when it has\n", drained.instance))
    })
}

fn print(text: &str) -> Result<(), status::Error> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // `vejas members | head` is no error.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
