//! The command line: one file per verb, each over one library function.

pub mod api;
pub mod check;
mod cluster;
pub mod completions;
pub mod data;
pub mod dlq;
pub mod exit;
pub mod explain;
mod git;
pub mod members;
pub mod new;
pub mod output;
pub mod purge;
pub mod replay;
pub mod revisions;
pub mod run;
pub mod schema;
pub mod status;
pub mod tap;
pub mod test;

use clap::{Parser, Subcommand};

use exit::Exit;

/// Runs flows that YAML manifests declare.
///
/// Without a command it runs the manifests of `manifests/`.
#[derive(Debug, Parser)]
#[command(name = "vejas", version, after_help = exit::HELP, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Check(check::Args),
    Test(test::Args),
    Status(status::Args),
    Dlq(Box<dlq::Args>),
    Plan(revisions::PlanArgs),
    Apply(revisions::ApplyArgs),
    Publish(revisions::PublishArgs),
    History(revisions::HistoryArgs),
    Diff(revisions::DiffArgs),
    Rollback(revisions::RollbackArgs),
    Suspend(revisions::SuspendArgs),
    Resume(revisions::ResumeArgs),
    Purge(purge::Args),
    Members(members::MembersArgs),
    Leases(members::LeasesArgs),
    Drain(members::DrainArgs),
    Data(data::Args),
    Tap(tap::Args),
    Replay(replay::ReplayArgs),
    Shadow(replay::ShadowArgs),
    Explain(explain::Args),
    New(new::Args),
    Schema(schema::Args),
    Completions(completions::Args),
}

/// Reads the command line and does what it says.
pub fn main() -> Exit {
    let parsed = Cli::try_parse().and_then(|cli| match cli.command {
        Some(command) => Ok(command),
        // `run` has its defaults and its environment variables; they are read by the same parser.
        None => Cli::try_parse_from(["vejas", "run"]).map(|cli| cli.command.expect("`run` is a command")),
    });
    let command = match parsed {
        Ok(command) => command,
        Err(error) => {
            // Help and version are no errors; whether they can be printed changes nothing.
            let wrong = error.use_stderr();
            let _ = error.print();
            return if wrong { Exit::Usage } else { Exit::Ok };
        }
    };
    match command {
        Command::Run(args) => run::run(*args),
        Command::Check(args) => check::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Status(args) => status::main(args),
        Command::Dlq(args) => dlq::main(*args),
        Command::Plan(args) => revisions::plan(args),
        Command::Apply(args) => revisions::apply(args),
        Command::Publish(args) => revisions::publish(args),
        Command::History(args) => revisions::history(args),
        Command::Diff(args) => revisions::diff(args),
        Command::Rollback(args) => revisions::rollback(args),
        Command::Suspend(args) => revisions::suspend(args),
        Command::Resume(args) => revisions::resume(args),
        Command::Purge(args) => purge::main(args),
        Command::Members(args) => members::members(args),
        Command::Leases(args) => members::leases(args),
        Command::Drain(args) => members::drain(args),
        Command::Data(args) => data::run(args),
        Command::Tap(args) => tap::main(args),
        Command::Replay(args) => replay::replay(args),
        Command::Shadow(args) => replay::shadow(args),
        Command::Explain(args) => explain::run(&args),
        Command::New(args) => new::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}
