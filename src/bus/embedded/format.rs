//! The version of the data directory's form, in the file `format`, so that any program can tell before it reads the rest.
//!
//! One line: `vejas-data <number> <CRC-32 of what is before it>`. The number is also in the database, for when the file is gone.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::OpenError;
use super::codec::meta;
use super::salvage::{self, Survey, read_bounded};

/// What the data directory holds and how. Raised by a change that an older program could not read.
pub const FORMAT: u32 = 2;
const NAME: &str = "format";
const LINE_BYTES_MAX: u64 = 256;

fn line(number: u32) -> String {
    let content = format!("vejas-data {number}");
    format!("{content} {:08x}\n", crc32fast::hash(content.as_bytes()))
}

/// The number in the file; nothing when it is missing or damaged.
fn read(data_dir: &Path) -> Option<u32> {
    let bytes = read_bounded(&data_dir.join(NAME), LINE_BYTES_MAX).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let number = text.split(' ').nth(1)?.parse().ok()?;
    (line(number) == text).then_some(number)
}

/// Writes the file and makes it durable. Answers whether it had to.
pub(super) fn ensure(data_dir: &Path) -> io::Result<bool> {
    if read(data_dir) == Some(FORMAT) {
        return Ok(false);
    }
    let fresh = data_dir.join("format.new");
    let mut file = File::create(&fresh)?;
    file.write_all(line(FORMAT).as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, data_dir.join(NAME))?;
    File::open(data_dir)?.sync_all()?;
    Ok(true)
}

/// Refuses another format. A file that is damaged or gone is no reason to, when the database names this one.
pub(super) fn check(data_dir: &Path, survey: &mut Survey) -> Result<(), OpenError> {
    let path = || data_dir.to_owned();
    let mut found = read(data_dir);
    if found.is_none() && !survey.unborn {
        found = salvage::recorded_format(survey).map_err(|source| OpenError::Io { path: path(), source })?;
        survey.report.notes.push("the file `format` is missing or damaged; the next start writes it anew".to_owned());
    }
    match found {
        Some(found) if found != FORMAT => Err(OpenError::Format { path: path(), found, wanted: FORMAT }),
        _ => Ok(()),
    }
}

/// The record in the database that says the same.
pub(super) fn item() -> super::db::Item {
    super::db::Item::put(super::db::Space::Records, meta::FORMAT.to_vec(), FORMAT.to_le_bytes().to_vec())
}
