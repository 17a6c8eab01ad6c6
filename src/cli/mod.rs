//! The command line.

pub mod run;
pub mod status;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "vejas", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}
#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
}

pub fn main() -> std::process::ExitCode {
    match Cli::parse().command {
        Command::Run(args) => match run::run(args) {
            Ok(()) => std::process::ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                std::process::ExitCode::FAILURE
            }
        },
    }
}
