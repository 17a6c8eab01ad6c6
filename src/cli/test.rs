//! `vejas test`: the Test manifests of a tree.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;

use clap::ValueEnum;

use super::exit::Exit;
use super::output;
use crate::language::Compiler;
use crate::manifest::check::{self, Checked, World};
use crate::manifest::http_in::LISTEN_DEFAULT;
use crate::manifest::report as problems;
use crate::manifest::test::GOLDEN_BYTES_MAX;
use crate::manifest::tree;
use crate::ports::clock::Clock;
use crate::runtime::clock::SystemClock;
use crate::testing::report::{Ran, Report};
use crate::testing::{self, Case, Golden};

/// Run the Test manifests of a tree: messages through a flow, what comes out beside what was expected.
///
/// Nothing is stored, sent or asked of the network. Ends with 1 when a test fails, when a manifest has an error, and when
/// there is no test at all. `vejas new test` prints one to begin with.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and folders; the flows and tables that tests name have to be among them.
    #[arg(value_name = "PATH", default_value = "manifests")]
    paths: Vec<PathBuf>,
    /// Only tests with this text in their own name or in that of their flow.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Writes golden files that differ or are not there. What changed is then for a person to read.
    #[arg(long)]
    update: bool,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
    /// Where an entrance listens that does not say.
    #[arg(long, env = "VEJAS_INGRESS_ADDR", default_value = LISTEN_DEFAULT, hide = true)]
    listen_default: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One line per test, differences below it.
    Human,
    /// JUnit XML, for build servers.
    Junit,
    /// One JSON document.
    Json,
}

pub fn run(args: &Args) -> Exit {
    let checked = check(args);
    let mut report = Report::new(&checked.problems);
    if args.output == Output::Human {
        let colour = output::colour();
        report.errors.iter().for_each(|problem| output::error(&format!("{}\n", problems::human(problem, colour))));
    }
    for case in testing::cases(&checked).into_iter().filter(|case| selected(case, args.filter.as_deref())) {
        match one(args, &checked, &case) {
            Ok(ran) => {
                if args.output == Output::Human {
                    output::line(&ran.human());
                }
                report.ran.push(ran);
            }
            Err(error) => {
                output::error(&format!("error: {error}"));
                return Exit::Failed;
            }
        }
    }
    match args.output {
        Output::Human => output::line(&report.summary()),
        Output::Junit => output::line(&report.junit()),
        Output::Json => output::line(&report.json()),
    }
    if report.is_success() { Exit::Ok } else { Exit::Problems }
}

fn check(args: &Args) -> Checked {
    let read_beside =
        |manifest: &str, relative: &str, bytes_max: u64| tree::read_beside(&args.paths, manifest, relative, bytes_max);
    let world = World {
        compiler: &Compiler::new(),
        read_beside: &read_beside,
        // Tests use no settings, so what those refer to need not be there.
        is_set: None,
        api_address: None,
        listen_default: args.listen_default,
        threads: thread::available_parallelism().map_or(1, usize::from),
    };
    check::check(&tree::read(&args.paths), &world)
}

fn selected(case: &Case<'_>, filter: Option<&str>) -> bool {
    filter.is_none_or(|text| case.name().contains(text) || case.flow().contains(text))
}

fn one(args: &Args, checked: &Checked, case: &Case<'_>) -> Result<Ran, String> {
    let read_golden = |manifest: &str, path: &str| tree::read_beside(&args.paths, manifest, path, GOLDEN_BYTES_MAX);
    let clock = SystemClock;
    let began = clock.monotonic();
    let verdict = case.run(checked, &read_golden).map_err(|error| error.to_string())?;
    let took = clock.monotonic().saturating_sub(began);
    let update = verdict.golden.filter(|_| args.update);
    if let Some(golden) = &update {
        write(&case.file(), golden).map_err(|error| format!("{}: {error}", golden.path))?;
    }
    Ok(Ran {
        name: case.name().to_owned(),
        flow: case.flow().to_owned(),
        file: case.file(),
        line: case.line(),
        inputs: case.inputs(),
        took,
        differences: if update.is_some() { Vec::new() } else { verdict.differences },
        updated: update.is_some(),
    })
}

/// The path was checked: it lies beside or below the manifest. Links are not followed, they may lead elsewhere.
fn write(manifest: &str, golden: &Golden) -> io::Result<()> {
    let mut path = Path::new(manifest).parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(&golden.path).components() {
        path.push(part);
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Err(io::Error::other(format!("{} is a link; give the file itself", path.display())));
        }
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, &golden.contents)
}
