//! `vejas new`: a commented manifest to begin with.

use super::exit::Exit;
use super::output;
use super::schema::{kind_named, unknown_kind};

/// Print a commented manifest of a kind; it passes `vejas check` as it is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The kind: http-in, source, flow, sink, table, schema or test.
    kind: String,
    /// What to call it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub fn run(args: &Args) -> Exit {
    let Some(kind) = kind_named(&args.kind) else { return unknown_kind(&args.kind) };
    let name = args.name.as_deref().unwrap_or("example");
    if let Err(error) = crate::manifest::value::Name::parse(name) {
        output::error(&format!("error: {error}"));
        return Exit::Usage;
    }
    let named = scaffold(kind).replace("name: example", &format!("name: {name}"));
    // A test is about the flow of the same name until somebody says otherwise.
    output::line(named.replace("flow: example", &format!("flow: {name}")).trim_end());
    Exit::Ok
}

/// A manifest of the kind named `example`.
pub fn scaffold(kind: &str) -> &'static str {
    match kind {
        "HttpIn" => include_str!("new/http-in.yaml"),
        "Source" => include_str!("new/source.yaml"),
        "Flow" => include_str!("new/flow.yaml"),
        "Sink" => include_str!("new/sink.yaml"),
        "Table" => include_str!("new/table.yaml"),
        "Schema" => include_str!("new/schema.yaml"),
        _ => include_str!("new/test.yaml"),
    }
}
