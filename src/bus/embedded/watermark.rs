//! The highest commit that was synced, in a file of its own.
//!
//! The database alone cannot tell that its newest part is missing: a journal that was deleted, cut or damaged reads like
//! one that ends early. So the number of each synced commit is written here after the sync. A database that ends before
//! that number has lost something, and is refused instead of served as if nothing had been there.
//!
//! This file itself is not synced: after a crash of the machine it may be older than the database, never newer.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file's name in the data directory.
pub(super) const NAME: &str = "synced";

pub(super) struct Watermark(File);

impl Watermark {
    /// Opens or makes the file; the number in it, if there is one.
    pub fn open(data_dir: &Path) -> io::Result<(Self, Option<u64>)> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(data_dir.join(NAME))?;
        let mut bytes = [0; 12];
        let found = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => decode(&bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(error),
        };
        Ok((Watermark(file), found))
    }

    /// Notes a commit that was synced.
    pub fn note(&self, commit: u64) -> io::Result<()> {
        let number = commit.to_le_bytes();
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&number);
        bytes[8..].copy_from_slice(&crc32fast::hash(&number).to_le_bytes());
        self.0.write_all_at(&bytes, 0)
    }
}

/// A torn or damaged number counts as none: it is there to find losses, not to make them.
fn decode(bytes: &[u8; 12]) -> Option<u64> {
    let (number, sum) = bytes.split_first_chunk::<8>()?;
    (crc32fast::hash(number).to_le_bytes() == sum).then(|| u64::from_le_bytes(*number))
}
