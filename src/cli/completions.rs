//! `vejas completions`: what a shell needs to complete commands and flags.

use std::io::Write;

use clap::{CommandFactory, ValueEnum};
use clap_complete::{Generator, Shell as Known};

use super::Cli;
use super::exit::Exit;

/// Print the completions of a shell.
///
/// bash: `vejas completions bash > ~/.local/share/bash-completion/completions/vejas`;
/// zsh: `vejas completions zsh > "${fpath[1]}/_vejas"`;
/// fish: `vejas completions fish > ~/.config/fish/completions/vejas.fish`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub fn run(args: &Args) -> Exit {
    let shell = match args.shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    let mut command = Cli::command();
    command.set_bin_name("vejas");
    command.build();
    // Into memory first: the generator panics when a pipe is closed under it.
    let mut text = Vec::new();
    shell.generate(&command, &mut text);
    let _ = std::io::stdout().lock().write_all(&text);
    Exit::Ok
}
