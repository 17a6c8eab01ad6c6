//! The open files of one sink: appending whole lines, forcing them to disk, rotation. Blocking.
//!
//! Upholds: a failed append leaves no part of its lines behind where that can be helped; a line cut short by a crash
//! is completed by a newline before the next; at most [`OPEN_FILES_MAX`] files are open.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::manifest::connector::file::{Fsync, OPEN_FILES_MAX, Rotate};
use crate::time::Timestamp;

#[derive(Debug)]
struct Open {
    file: File,
    /// Device and inode: tells whether the path still leads here.
    identity: (u64, u64),
    bytes: u64,
    created: Timestamp,
    used: u64,
}

#[derive(Debug)]
pub struct Writer {
    open: HashMap<PathBuf, Open>,
    fsync: Fsync,
    rotate: Option<Rotate>,
    /// Counts uses, to find the file unused for longest.
    uses: u64,
}

impl Writer {
    pub fn new(fsync: Fsync, rotate: Option<Rotate>) -> Self {
        Writer { open: HashMap::new(), fsync, rotate, uses: 0 }
    }

    /// Appends lines, each with its newline, to the file at `path`. `Ok` says that all are written, and with
    /// [`Fsync::Always`] on disk; after an error none counts as written.
    pub fn append(&mut self, path: &Path, lines: &[Vec<u8>], now: Timestamp) -> io::Result<()> {
        let outcome = self.append_lines(path, lines, now);
        if outcome.is_err() {
            // What the kernel holds of a file that failed is not to be trusted: start again from the disk.
            self.open.remove(path);
        }
        outcome
    }

    fn append_lines(&mut self, path: &Path, lines: &[Vec<u8>], now: Timestamp) -> io::Result<()> {
        self.uses += 1;
        let mut buffer = Vec::with_capacity(lines.iter().map(Vec::len).sum());
        self.ensure_open(path, now)?;
        for line in lines {
            if self.is_to_rotate(path, buffer.len() + line.len(), buffer.len(), now) {
                self.write(path, &buffer)?;
                buffer.clear();
                self.rotate(path)?;
                self.ensure_open(path, now)?;
            }
            buffer.extend_from_slice(line);
        }
        self.write(path, &buffer)?;
        if self.fsync == Fsync::Always {
            self.open[path].file.sync_data()?;
        }
        Ok(())
    }

    pub fn close(&mut self) -> io::Result<()> {
        for (_, open) in self.open.drain() {
            open.file.sync_data()?;
        }
        Ok(())
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let open = self.open.get_mut(path).expect("the file was opened before");
        if let Err(error) = open.file.write_all(bytes) {
            // Best effort: if this fails too, the next opening completes the torn line.
            _ = open.file.set_len(open.bytes);
            return Err(error);
        }
        open.bytes += bytes.len() as u64;
        Ok(())
    }

    fn is_to_rotate(&self, path: &Path, more: usize, buffered: usize, now: Timestamp) -> bool {
        let Some(rotate) = &self.rotate else { return false };
        let open = &self.open[path];
        let holds = open.bytes + buffered as u64 > 0;
        let too_big = rotate.max_bytes.is_some_and(|max| open.bytes + more as u64 > max.0);
        let too_old = rotate.max_age.is_some_and(|max| now.since(open.created) >= max.0);
        holds && (too_big || too_old)
    }

    /// Renames the file to the next number and deletes what is beyond `keep`.
    fn rotate(&mut self, path: &Path) -> io::Result<()> {
        if let Some(open) = self.open.remove(path)
            && self.fsync == Fsync::Always
        {
            open.file.sync_data()?;
        }
        let mut numbers = rotated(path)?;
        let next = numbers.last().map_or(1, |last| last + 1);
        fs::rename(path, numbered(path, next))?;
        numbers.push(next);
        if let Some(keep) = self.rotate.as_ref().and_then(|rotate| rotate.keep) {
            let beyond = numbers.len().saturating_sub(keep as usize);
            for number in numbers.drain(..beyond) {
                fs::remove_file(numbered(path, number))?;
            }
        }
        sync_folder(path)
    }

    /// The file is open and is what the path leads to: another program may have moved or deleted it.
    fn ensure_open(&mut self, path: &Path, now: Timestamp) -> io::Result<()> {
        let found = match fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() => {
                return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is not a regular file"));
            }
            Ok(metadata) => Some((metadata.dev(), metadata.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(open) = self.open.get_mut(path)
            && found == Some(open.identity)
        {
            open.used = self.uses;
            return Ok(());
        }
        self.open.remove(path);
        if self.open.len() >= OPEN_FILES_MAX
            && let Some(oldest) = self.open.iter().min_by_key(|(_, open)| open.used).map(|(path, _)| path.clone())
        {
            self.open.remove(&oldest);
        }
        if found.is_none() {
            make_folders(path)?;
        }
        let open = open(path, self.uses, now)?;
        if found.is_none() {
            sync_folder(path)?;
        }
        self.open.insert(path.to_owned(), open);
        Ok(())
    }
}

fn open(path: &Path, used: u64, now: Timestamp) -> io::Result<Open> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = metadata.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
    }
    let since_epoch = metadata.created().ok().and_then(|created| created.duration_since(UNIX_EPOCH).ok());
    let created = since_epoch.map_or(now, |since: Duration| Timestamp(0).plus(since));
    Ok(Open { file, identity: (metadata.dev(), metadata.ino()), bytes, created, used })
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn make_folders(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder(path).ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(folder(path))?;
    missing.into_iter().filter(|folder| *folder != Path::new("")).try_for_each(sync_folder)
}

/// A new or renamed file is there for good only when its folder is on disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder(path))?.sync_all()
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// The numbers of the rotated files of `path`, ascending.
fn rotated(path: &Path) -> io::Result<Vec<u64>> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder(path))? {
        let entry = entry?.file_name();
        let number = entry.as_encoded_bytes().strip_prefix(name).and_then(|rest| rest.strip_prefix(b"."));
        numbers.extend(number.and_then(|n| std::str::from_utf8(n).ok()).and_then(|n| n.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
