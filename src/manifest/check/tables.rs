//! Table manifests: rows in the manifest or in a file beside it, each key once.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::Check;
use super::settings::missing_file;
use crate::language::{Table as Rows, Value};
use crate::manifest::digest::{self, Referred};
use crate::manifest::problem::{Code, Place, Problem, Region, Source};
use crate::manifest::table::{FILE_BYTES_MAX, ROWS_MAX, Table, TableFile};
use crate::manifest::{Spec, reader};

/// Row and the line of the file it came from.
type Read = Vec<(String, Value, usize)>;

/// What is wrong with a file: in words, the line, and another line that belongs to it.
struct Fault {
    code: Code,
    message: String,
    line: usize,
    first: Option<usize>,
}

impl Fault {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Fault { code: Code::InvalidTable, message: message.into(), line, first: None }
    }
}

impl Check<'_> {
    pub(super) fn check_tables(&mut self) {
        for at in 0..self.drafts.len() {
            let Some(manifest) = &self.drafts[at].manifest else { continue };
            let Spec::Table(spec) = &manifest.spec else { continue };
            let name = manifest.name().to_owned();
            match self.table(at, &name, spec) {
                Ok((table, referred)) => {
                    self.drafts[at].referred.extend(referred);
                    self.tables.insert(name, Arc::new(table));
                }
                Err(problem) => self.report(at, *problem),
            }
        }
    }

    fn table(&self, at: usize, name: &str, spec: &Table) -> Result<(Rows, Option<Referred>), Box<Problem>> {
        let draft = &self.drafts[at];
        match (&spec.rows, &spec.file) {
            (Some(rows), None) => {
                if rows.len() > ROWS_MAX {
                    let message = format!("the table has {} rows, more than {ROWS_MAX}", rows.len());
                    return Err(Box::new(Problem::error(Code::InvalidTable, draft.at("spec.rows"), message)));
                }
                let digest = digest::value(draft.spec.get("rows").unwrap_or(&Json::Null));
                let rows = rows.iter().map(|(key, row)| (key.clone(), Value::from(row.clone())));
                Ok((Rows::new(name, rows, digest), None))
            }
            (None, Some(file)) => {
                // Said before the file is looked for: the name alone is wrong.
                let format = Format::of(&file.path).ok_or_else(|| {
                    let message =
                        format!("`{}` ends in none of `.csv`, `.ndjson`, `.json`, which say how to read it", file.path);
                    Box::new(Problem::error(Code::InvalidTable, draft.at("spec.file.path"), message))
                })?;
                let bytes = (self.world.read_beside)(&draft.source.path, &file.path, FILE_BYTES_MAX)
                    .map_err(|fault| Box::new(missing_file(draft.at("spec.file.path"), &file.path, &fault)))?;
                let rows = read(format, &file.key, &bytes).and_then(|rows| unique(file, rows));
                let rows = rows.map_err(|fault| Box::new(problem(draft.at("spec.file.path"), file, &bytes, fault)))?;
                let digest = digest::bytes(&bytes);
                let referred = Referred { kind: "file", name: file.path.clone(), digest };
                // The key column decides which rows there are, so it is part of what the table is.
                let digest = digest::manifest("rows", &file.key, &Json::Null, std::slice::from_ref(&referred));
                Ok((Rows::new(name, rows, digest), Some(referred)))
            }
            (stated, _) => {
                let message = match stated {
                    Some(_) => "the table has both `rows` and `file`, exactly one is allowed",
                    None => "the table has neither `rows` nor `file`, exactly one is needed",
                };
                let place = draft.at_key(if stated.is_some() { "spec.file" } else { "spec" });
                Err(Box::new(Problem::error(Code::ExactlyOne, place, message)))
            }
        }
    }
}

/// The problem stands at the manifest; the lines of the file come along.
fn problem(place: Place, file: &TableFile, bytes: &[u8], fault: Fault) -> Problem {
    let message = match fault.line {
        0 => format!("{}: {}", file.path, fault.message),
        line => format!("{}, line {line}: {}", file.path, fault.message),
    };
    let problem = Problem::error(fault.code, place, message);
    let text = std::str::from_utf8(bytes).unwrap_or("");
    if text.len() > reader::FILE_BYTES_MAX || fault.line == 0 {
        return problem;
    }
    let source = Arc::new(Source::new(file.path.as_str(), text));
    let line = |number: usize| {
        let range = source.line_range(number - 1);
        let written = source.text[range.clone()].trim_start();
        Place::new(&source, Region::new(range.end - written.len(), range.end))
    };
    match fault.first {
        Some(first) => problem.and(line(first), "first here").and(line(fault.line), "again here"),
        None => problem.and(line(fault.line), "this line"),
    }
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Csv,
    Ndjson,
    Json,
}

impl Format {
    fn of(path: &str) -> Option<Format> {
        match path.rsplit_once('.')?.1 {
            "csv" => Some(Format::Csv),
            "ndjson" => Some(Format::Ndjson),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

fn read(format: Format, key: &str, bytes: &[u8]) -> Result<Read, Fault> {
    match format {
        Format::Csv => csv_rows(key, bytes),
        Format::Ndjson => ndjson_rows(key, bytes),
        Format::Json => json_rows(key, bytes),
    }
}

fn csv_rows(key: &str, bytes: &[u8]) -> Result<Read, Fault> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut reader = csv::Reader::from_reader(bytes);
    let line_of = |error: &csv::Error| error.position().map_or(1, |position| position.line() as usize);
    let header = reader.headers().map_err(|error| Fault::new(line_of(&error), error.to_string()))?.clone();
    let Some(key_column) = header.iter().position(|column| column == key) else {
        let columns: Vec<&str> = header.iter().collect();
        return Err(Fault::new(1, format!("there is no column `{key}`; columns are: {}", columns.join(", "))));
    };
    let mut rows = Read::new();
    for record in reader.records() {
        let record = record.map_err(|error| Fault::new(line_of(&error), plain_csv_error(&error)))?;
        let line = record.position().map_or(1, |position| position.line() as usize);
        let fields = header.iter().zip(&record).map(|(column, field)| (column.into(), Value::from(field)));
        rows.push((record[key_column].to_owned(), Value::Object(fields.collect()), line));
        bounded(&rows)?;
    }
    Ok(rows)
}

fn plain_csv_error(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("the line has {len} fields, the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "the line is not UTF-8".to_owned(),
        _ => error.to_string(),
    }
}

fn ndjson_rows(key: &str, bytes: &[u8]) -> Result<Read, Fault> {
    let mut rows = Read::new();
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = at + 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let row: Json = serde_json::from_slice(line).map_err(|error| Fault::new(number, error.to_string()))?;
        rows.push(keyed(key, row).map_err(|message| Fault::new(number, message)).map(|(k, v)| (k, v, number))?);
        bounded(&rows)?;
    }
    Ok(rows)
}

fn json_rows(key: &str, bytes: &[u8]) -> Result<Read, Fault> {
    let raw: Vec<&serde_json::value::RawValue> =
        serde_json::from_slice(bytes).map_err(|error| Fault::new(error.line(), error.to_string()))?;
    let mut rows = Read::new();
    let (mut line, mut counted) = (1, 0);
    for row in raw {
        // Where the element begins: it borrows from `bytes`.
        let start = (row.get().as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize).min(bytes.len());
        line += bytes[counted..start].iter().filter(|byte| **byte == b'\n').count();
        counted = start;
        let value: Json = serde_json::from_str(row.get()).map_err(|error| Fault::new(line, error.to_string()))?;
        rows.push(keyed(key, value).map_err(|message| Fault::new(line, message)).map(|(k, v)| (k, v, line))?);
        bounded(&rows)?;
    }
    Ok(rows)
}

fn keyed(key: &str, row: Json) -> Result<(String, Value), String> {
    let Json::Object(fields) = &row else { return Err("a row is an object".to_owned()) };
    let text = match fields.get(key) {
        Some(Json::String(text)) => text.clone(),
        Some(scalar @ (Json::Number(_) | Json::Bool(_))) => scalar.to_string(),
        Some(_) => return Err(format!("the key `{key}` is neither text nor a number nor a boolean")),
        None => return Err(format!("the row has no field `{key}`")),
    };
    Ok((text, Value::from(row)))
}

fn bounded(rows: &Read) -> Result<(), Fault> {
    match rows.len() > ROWS_MAX {
        true => Err(Fault::new(0, format!("the file has more than {ROWS_MAX} rows"))),
        false => Ok(()),
    }
}

fn unique(file: &TableFile, rows: Read) -> Result<Vec<(String, Value)>, Fault> {
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(rows.len());
    for (key, _, line) in &rows {
        if let Some(first) = seen.insert(key, *line) {
            let message = format!("`{}` is {key:?} again, as on line {first}", file.key);
            return Err(Fault { code: Code::DuplicateRow, message, line: *line, first: Some(first) });
        }
    }
    drop(seen);
    Ok(rows.into_iter().map(|(key, row, _)| (key, row)).collect())
}
