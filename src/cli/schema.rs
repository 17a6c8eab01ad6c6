//! `vejas schema`: the JSON Schemas of the manifests.

use std::path::PathBuf;
use std::{fs, io};

use super::exit::Exit;
use super::output;
use crate::manifest::generate;
use crate::manifest::problem::did_you_mean;

/// Print the JSON Schema of a kind of manifest, or of all.
///
/// Editors use it for completion: begin a manifest with
/// `# yaml-language-server: $schema=<path to vejas.json>`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The kind; all of them when left out.
    kind: Option<String>,
    /// Writes one file per kind and `vejas.json` into this folder instead.
    #[arg(long, value_name = "FOLDER", conflicts_with = "kind")]
    write: Option<PathBuf>,
}

pub fn run(args: &Args) -> Exit {
    if let Some(folder) = &args.write {
        return match write(folder) {
            Ok(()) => Exit::Ok,
            Err(error) => {
                output::error(&format!("error: {}: {error}", folder.display()));
                Exit::Failed
            }
        };
    }
    let Some(kind) = &args.kind else {
        output::line(&format!("{:#}", generate::any_kind()));
        return Exit::Ok;
    };
    match kind_named(kind) {
        Some(kind) => {
            output::line(&format!("{:#}", generate::document(kind).unwrap_or(&serde_json::Value::Null)));
            Exit::Ok
        }
        None => unknown_kind(kind),
    }
}

fn write(folder: &PathBuf) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in generate::files() {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// A kind however it is written: `HttpIn`, `httpin`, `http-in`.
pub(super) fn kind_named(text: &str) -> Option<&'static str> {
    let plain = text.replace('-', "");
    generate::KINDS.iter().copied().find(|kind| kind.eq_ignore_ascii_case(&plain))
}

pub(super) fn unknown_kind(text: &str) -> Exit {
    let help = match did_you_mean(text, generate::KINDS.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("kinds there are: {}", generate::KINDS.join(", ")),
    };
    output::error(&format!("error: there is no kind `{text}`; {help}"));
    Exit::Usage
}
