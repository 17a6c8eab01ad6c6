//! What this machine can do without Vejas: the bytes alone, the language alone.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use vejas::language::{Compiler, Environment, EventType, Input, Meta, Purpose, Table, Tables, json};

use crate::scenarios::{MAPPING, SIMPLE, message};
use crate::support::Failure;
use crate::{Figures, Options};

/// How long each limit is measured.
const SPAN: Duration = Duration::from_secs(2);
/// What a stored message takes beside its payload: headers, subject, framing.
const OVERHEAD_BYTES: usize = 200;

pub fn measure(_options: &Options, figures: &mut Figures) -> Result<(), Failure> {
    figures.insert("limit_disk_per_s", disk(1_000)?);
    figures.insert("limit_fsync_shared_per_s", disk(256)?);
    figures.insert("limit_language_per_s", language(MAPPING)?);
    figures.insert("limit_language_simple_per_s", language(SIMPLE)?);
    Ok(())
}

/// Messages a second, appended to one file and forced to disk in batches.
fn disk(batch: usize) -> Result<f64, Failure> {
    let mut file = tempfile::tempfile()?;
    let record = vec![b'x'; message(0).len() + OVERHEAD_BYTES];
    let bytes = record.repeat(batch);
    let began = Instant::now();
    let mut written = 0;
    while began.elapsed() < SPAN {
        file.write_all(&bytes)?;
        file.sync_data()?;
        written += batch;
    }
    Ok(written as f64 / began.elapsed().as_secs_f64())
}

/// Messages a second on one core: read, run, written.
fn language(source: &str) -> Result<f64, Failure> {
    let rate = json::from_slice(br#"{"rate":0.19}"#)?;
    let tables = Tables::from([("vat".to_owned(), Table::new("vat", [("DE".to_owned(), rate)], [0; 32]).into())]);
    let event = EventType::any();
    let environment = Environment { event: &event, tables: &tables };
    let program = Compiler::new()
        .compile(source, Purpose::Program, &environment)
        .map_err(|faults| format!("{source}: {}", faults[0].message))?;
    let payloads: Vec<Vec<u8>> = (0..1_000).map(message).collect();
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < SPAN {
        for payload in &payloads {
            let mut input = Input { event: json::from_slice(payload)?, meta: Meta::default() };
            program.run(&mut input)?;
            std::hint::black_box(json::to_bytes(&input.event));
        }
        done += payloads.len();
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}

/// The result of the load generator, the last line it printed.
pub fn load_result(output: &std::process::Output) -> Result<BTreeMap<String, serde_json::Value>, Failure> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        text.lines().rev().find(|line| line.starts_with('{')).ok_or_else(|| {
            format!("the load generator printed no result: {}", String::from_utf8_lossy(&output.stderr))
        })?;
    Ok(serde_json::from_str(line)?)
}
