//! `vejas check`: everything that is wrong with a tree of manifests, before anything runs.

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;

use clap::ValueEnum;

use super::exit::Exit;
use super::output;
use crate::language::Compiler;
use crate::manifest::check::{self, Checked, FileFault, Tree, TreeFile, World};
use crate::manifest::http_in::LISTEN_DEFAULT;
use crate::manifest::problem::{Problem, Severity};
use crate::manifest::report::{self, Summary};
use crate::manifest::{reader, tree};

/// Where the API listens when nothing is said.
const API_ADDRESS_DEFAULT: &str = "127.0.0.1:8686";

/// Check manifests and print every problem at once, each with its place and how to mend it.
///
/// Nothing is run and nothing is asked of the network. Ends with 1 when there are errors.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and folders; `-` reads one file from the standard input.
    #[arg(value_name = "PATH", default_value = "manifests")]
    paths: Vec<PathBuf>,
    /// How problems are printed.
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
    /// Ends with 1 when there are warnings, too.
    #[arg(long)]
    deny_warnings: bool,
    /// Does not ask whether the variables that settings refer to are set.
    #[arg(long)]
    no_env: bool,
    /// Where the API will listen; no entrance may take the same port.
    #[arg(long, env = "VEJAS_HTTP_ADDR", default_value = API_ADDRESS_DEFAULT, hide = true)]
    api_address: SocketAddr,
    /// Where an entrance listens that does not say.
    #[arg(long, env = "VEJAS_INGRESS_ADDR", default_value = LISTEN_DEFAULT, hide = true)]
    listen_default: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The source line with a caret.
    Human,
    /// One JSON document.
    Json,
    /// Workflow commands that GitHub shows at the lines of a pull request.
    Github,
    /// SARIF 2.1.0.
    Sarif,
}

pub fn run(args: &Args) -> Exit {
    let tree = match gather(&args.paths) {
        Ok(tree) => tree,
        Err(error) => {
            output::error(&format!("error: the standard input cannot be read: {error}"));
            return Exit::Failed;
        }
    };
    let checked = check(args, &tree);
    print(args, &checked);
    if checked.documents == 0 && checked.problems.is_empty() {
        let paths: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
        output::error(&format!("warning: there are no manifests (.yaml, .yml) in {}", paths.join(", ")));
    }
    let fails = |problem: &Problem| problem.severity == Severity::Error || args.deny_warnings;
    if checked.problems.iter().any(fails) { Exit::Problems } else { Exit::Ok }
}

/// The manifests below `paths`, checked as by the command with its defaults and without a look at the environment.
pub(super) fn of(paths: Vec<PathBuf>) -> std::io::Result<Checked> {
    let address = |text: &str| text.parse().expect("a default is an address");
    let args = Args {
        paths,
        output: Output::Human,
        deny_warnings: false,
        no_env: true,
        api_address: address(API_ADDRESS_DEFAULT),
        listen_default: address(LISTEN_DEFAULT),
    };
    Ok(check(&args, &gather(&args.paths)?))
}

fn gather(paths: &[PathBuf]) -> std::io::Result<Tree> {
    let mut files: Vec<PathBuf> = paths.to_vec();
    let stdin = files.iter().any(|path| path.as_os_str() == "-");
    files.retain(|path| path.as_os_str() != "-");
    let mut tree = tree::read(&files);
    if stdin {
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(reader::FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        tree.files.push(TreeFile { path: "-".to_owned(), bytes });
    }
    Ok(tree)
}

fn check(args: &Args, tree: &Tree) -> Checked {
    let mut roots = args.paths.clone();
    // What comes from the standard input stands in the current folder.
    roots.iter_mut().filter(|path| path.as_os_str() == "-").for_each(|path| *path = PathBuf::from("."));
    let read_beside = |manifest: &str, relative: &str, bytes_max: u64| -> Result<Vec<u8>, FileFault> {
        tree::read_beside(&roots, if manifest == "-" { "./-" } else { manifest }, relative, bytes_max)
    };
    let is_set = |name: &str| super::run::environment(name).is_some();
    let world = World {
        compiler: &Compiler::new(),
        read_beside: &read_beside,
        is_set: if args.no_env { None } else { Some(&is_set) },
        api_address: Some(args.api_address),
        listen_default: args.listen_default,
        threads: thread::available_parallelism().map_or(1, usize::from),
    };
    check::check(tree, &world)
}

fn print(args: &Args, checked: &Checked) {
    let summary = Summary::of(&checked.problems, checked.documents);
    match args.output {
        Output::Json => output::line(&report::json(&checked.problems, summary)),
        Output::Sarif => output::line(&report::sarif(&checked.problems)),
        Output::Github => {
            checked.problems.iter().for_each(|problem| output::line(&report::github(problem)));
            output::line(&summary.to_string());
        }
        Output::Human => {
            let colour = output::colour();
            for problem in &checked.problems {
                output::line(&report::human(problem, colour));
                output::line("");
            }
            output::line(&summary.to_string());
        }
    }
}
