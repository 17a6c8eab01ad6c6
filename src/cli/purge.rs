//! `vejas purge`: gives up what waits for a unit.

use std::io::{BufRead, IsTerminal, Write};

use clap::Args as ClapArgs;

use super::api::Api;
use super::exit::Exit;
use super::status;
use crate::api::view;

/// Gives up every message that waits for a flow or a sink.
///
/// For a removed unit that will not come back, or one that holds the stream full. What it has acknowledged and its dead letters
/// stay; messages that come later are read as before.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Such as `flow/price-orders`.
    unit: String,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: Api,
}

pub(super) fn main(args: Args) -> Exit {
    if args.unit.split('/').count() != 2 {
        eprintln!("vejas: {:?} is no name of a unit such as flow/price-orders; `vejas status` lists them", args.unit);
        return Exit::Usage;
    }
    if !args.yes && !std::io::stdin().is_terminal() {
        eprintln!("vejas: without a terminal to ask on, purge needs --yes");
        return Exit::Usage;
    }
    status::block_on(run(args))
}

async fn run(args: Args) -> Result<(), status::Error> {
    let at = args.api.at();
    let path = format!("/api/v1/units/{}", args.unit);
    if !args.yes {
        let unit: view::Unit = status::ask(&at, reqwest::Method::GET, &path).await?;
        let waiting = unit.lag.map_or(0, |lag| lag.pending + lag.in_flight + lag.redelivering);
        if !confirmed(&format!("Give up {waiting} messages that wait for {}?", args.unit))? {
            return Ok(());
        }
    }
    let purged: view::Purged = status::ask(&at, reqwest::Method::POST, &format!("{path}/purge")).await?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}: {} messages given up", purged.unit, purged.messages)?;
    Ok(())
}

fn confirmed(question: &str) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
