//! A keyspace's folder: which tables belong to it, and whether they are there and are the ones that were written.
//!
//! `current` names the version file `v<n>` and its checksum; that lists the tables, each with the checksum of its whole file.
//! What no version names is the leftover of a flush or compaction that was cut off.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::table::{self, Cursor, Step, Table};
use super::{Damage, read_bounded};
use crate::bus::embedded::codec::meta;
use crate::bus::embedded::ledger::Mark;

/// Largest version file, in bytes: 41 per table.
const VERSION_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A table that belongs to the keyspace.
#[derive(Debug)]
pub(in super::super) struct Listed {
    pub path: PathBuf,
}

/// What is in a keyspace's folder.
#[derive(Debug, Default)]
pub(in super::super) struct Tree {
    pub tables: Vec<Listed>,
    pub faults: Vec<(PathBuf, Damage)>,
    /// Tables that are named and not there.
    pub missing: bool,
    /// The newest commit whose items of this keyspace are in tables.
    pub mark: Option<Mark>,
    /// Batches up to here are in tables, for fjall.
    pub seqno_max: Option<u64>,
}

/// How closely tables are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Depth {
    /// All but the data blocks.
    Index,
    /// Every byte.
    Whole,
}

fn whole(what: impl Into<String>) -> Damage {
    Damage { offset: 0, bytes: 0, what: what.into() }
}

/// Reads the folder. Nothing when there is none, or none that was ever finished.
pub(super) fn read(folder: &Path, depth: Depth) -> io::Result<Tree> {
    let mut tree = Tree::default();
    let present = tables_in(&folder.join("tables"), &mut tree)?;
    let listed = match version(folder)? {
        Ok(listed) => Some(listed),
        Err((path, damage)) => {
            tree.faults.push((path, damage));
            None
        }
    };
    // Without a version every table is taken: what compactions have replaced only repeats older versions of keys.
    let all = || present.keys().map(|id| (*id, None)).collect::<BTreeMap<u64, Option<u128>>>();
    for (id, checksum) in listed.unwrap_or_else(all) {
        let Some(path) = present.get(&id) else {
            let path = folder.join("tables").join(id.to_string());
            tree.faults.push((path, whole("it is missing")));
            tree.missing = true;
            continue;
        };
        table(&mut tree, path, id, checksum, depth)?;
    }
    Ok(tree)
}

fn table(tree: &mut Tree, path: &Path, id: u64, checksum: Option<u128>, depth: Depth) -> io::Result<()> {
    let (table, damage) = Table::open(path)?;
    let whole_end = damage.is_none();
    if let Some(damage) = damage {
        tree.faults.push((path.to_owned(), damage));
    }
    if let Some(facts) = &table.facts {
        if facts.id != id {
            tree.faults.push((path.to_owned(), whole(format!("it is another table, number {}", facts.id))));
            tree.missing = true;
            return Ok(());
        }
        tree.seqno_max = tree.seqno_max.max(Some(facts.seqno_max));
    }
    if let Some(damage) = table.check_index()? {
        tree.faults.push((path.to_owned(), damage));
    } else if depth == Depth::Whole
        && whole_end
        && let Some(checksum) = checksum
        && table.checksum()? != checksum
    {
        let before = tree.faults.len();
        find_damage(tree, path)?;
        if tree.faults.len() == before {
            // Its number fits, so it is of another keyspace or directory: what is in it does not belong here.
            tree.faults.push((path.to_owned(), whole("it is another table, every block of which is whole")));
            tree.missing = true;
            return Ok(());
        }
    }
    tree.tables.push(Listed { path: path.to_owned() });
    // The mark sorts last, so its newest version is the newest of the last key of the table that has it.
    if let Ok(Some(entry)) = table.last()
        && entry.key == meta::MARK
        && let Some(Ok(mark)) = entry.value.as_deref().map(Mark::decode)
        && tree.mark.is_none_or(|known| known.number < mark.number)
    {
        tree.mark = Some(mark);
    }
    Ok(())
}

/// Which blocks are damaged in a table whose checksum is wrong.
fn find_damage(tree: &mut Tree, path: &Path) -> io::Result<()> {
    let mut cursor = open_cursor(path)?;
    let mut open: Option<(Damage, String)> = None;
    let show = |key: Option<&[u8]>| key.map_or("the first key".to_owned(), super::names::raw_key);
    loop {
        let step = cursor.next()?;
        let until = match &step {
            Some(Step::Entry(entry)) => super::names::raw_key(&entry.key),
            _ => "the last key".to_owned(),
        };
        if !matches!(step, Some(Step::Lost { .. }))
            && let Some((mut damage, after)) = open.take()
        {
            damage.what = format!("{}: keys after {after} and before {until}", damage.what);
            tree.faults.push((path.to_owned(), damage));
        }
        match step {
            None => return Ok(()),
            Some(Step::Entry(_)) => {}
            Some(Step::Lost { damage, after }) => match &mut open {
                Some((open, _)) => open.bytes += damage.bytes,
                None => open = Some((damage, show(after.as_deref()))),
            },
        }
    }
}

pub(super) fn open_cursor(path: &Path) -> io::Result<Cursor> {
    Ok(Table::open(path)?.0.cursor())
}

fn tables_in(folder: &Path, tree: &mut Tree) -> io::Result<BTreeMap<u64, PathBuf>> {
    let mut present = BTreeMap::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(present),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        match id.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file())) {
            Some(id) => {
                present.insert(id, entry.path());
            }
            // fjall refuses to open a folder with such a file.
            None => tree.faults.push((entry.path(), whole("no file of that name belongs here"))),
        }
    }
    Ok(present)
}

type Tables = BTreeMap<u64, Option<u128>>;

/// The tables of the current version with their checksums, or what is damaged.
fn version(folder: &Path) -> io::Result<Result<Tables, (PathBuf, Damage)>> {
    const CURRENT_BYTES: usize = 25;
    let current_path = folder.join("current");
    let current = match read_bounded(&current_path, CURRENT_BYTES as u64 * 2) {
        Ok(current) => current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err((current_path, whole("it is missing"))));
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(Err((current_path, whole("it is too long to name a version"))));
        }
        Err(error) => return Err(error),
    };
    let parts = (current.len() == CURRENT_BYTES).then(|| current.split_at(8));
    let Some((number, checksum)) = parts.filter(|(_, checksum)| checksum[16] == 0) else {
        return Ok(Err((current_path, whole("it does not name a version"))));
    };
    let number = u64::from_le_bytes(number.try_into().unwrap_or_default());
    let checksum = u128::from_le_bytes(checksum[..16].try_into().unwrap_or_default());
    let path = folder.join(format!("v{number}"));
    let broken = |what: &str| Ok(Err((path.clone(), whole(what))));
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return broken("the version that `current` names is missing");
        }
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    if length > VERSION_BYTES_MAX || table::checksum(&file, length)? != checksum {
        return broken("its checksum is not the one in `current`");
    }
    let Ok(sections) = table::contents(&file, length)? else { return broken("its table of contents is damaged") };
    let Some((_, at, bytes)) = sections.into_iter().find(|(name, ..)| name == b"tables") else {
        return broken("it lists no tables");
    };
    let raw = read_bounded(&path, VERSION_BYTES_MAX)?;
    let range = usize::try_from(at).unwrap_or(0)..usize::try_from(at.saturating_add(bytes)).unwrap_or(0);
    let Some(list) = raw.get(range).and_then(tables) else { return broken("its list of tables is damaged") };
    Ok(Ok(list))
}

/// Levels u8, of each its runs u8, of each its tables u32: number u64, checksum type u8, checksum u128, seqno u64.
fn tables(mut list: &[u8]) -> Option<Tables> {
    let mut found = Tables::new();
    let mut take = |bytes: usize| {
        let (head, rest) = list.split_at_checked(bytes)?;
        list = rest;
        Some(head)
    };
    for _ in 0..take(1)?[0] {
        for _ in 0..take(1)?[0] {
            for _ in 0..u32::from_le_bytes(take(4)?.try_into().ok()?) {
                let table = take(33)?;
                let id = u64::from_le_bytes(table[..8].try_into().ok()?);
                found.insert(id, Some(u128::from_le_bytes(table[9..25].try_into().ok()?)));
            }
        }
    }
    Some(found)
}
