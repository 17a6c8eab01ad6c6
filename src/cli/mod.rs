//! The command line: one file per verb, each over one library function.

pub mod check;
pub mod exit;
pub mod explain;
pub mod new;
pub mod output;
pub mod run;
pub mod schema;
pub mod status;

use clap::{Parser, Subcommand};

use exit::Exit;

/// Runs flows that YAML manifests declare.
#[derive(Debug, Parser)]
#[command(name = "vejas", version, after_help = exit::HELP, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Check(check::Args),
    Schema(schema::Args),
    Explain(explain::Args),
    New(new::Args),
}

/// Reads the command line and does what it says.
pub fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; whether they can be printed changes nothing.
            let wrong = error.use_stderr();
            let _ = error.print();
            return if wrong { Exit::Usage } else { Exit::Ok };
        }
    };
    match cli.command {
        Command::Run(args) => match run::run(*args) {
            Ok(()) => Exit::Ok,
            Err(error) => {
                output::error(&format!("error: {error}"));
                Exit::Failed
            }
        },
        Command::Check(args) => check::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::New(args) => new::run(&args),
    }
}
