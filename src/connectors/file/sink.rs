//! Appends messages as lines to files. A message is delivered when its line is written, with `fsync: always` when it is
//! on disk; one call shares one fsync per file.
//!
//! Every failure is transient: a full disk, a missing right or a folder in the way is mended by a person, and no
//! message is to blame for it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::path::{self, Template};
use super::writer::Writer;
use crate::connectors::line;
use crate::connectors::secret::{Resolve, Unresolved};
use crate::flow::failure::Failure;
use crate::flow::message::Stored;
use crate::id::{Names, UnitId};
use crate::manifest::connector::file::{File, Format};
use crate::ports::clock::SharedClock;
use crate::ports::sink::{Delivered, Delivering, Sink};

/// Lines written by one call at most.
pub const MESSAGES_MAX: usize = 1_000;
/// Payload bytes written by one call at most.
pub const BYTES_MAX: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    #[error(transparent)]
    Path(#[from] path::Error),
}

pub struct FileSink {
    unit: UnitId,
    names: Names,
    template: Template,
    format: Format,
    writer: Arc<Mutex<Writer>>,
    clock: SharedClock,
}

impl std::fmt::Debug for FileSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSink").field("unit", &self.unit).finish_non_exhaustive()
    }
}

impl FileSink {
    /// Opens no file: that happens with the first message for it.
    pub fn open(
        unit: &UnitId,
        spec: &File,
        resolve: Resolve<'_>,
        names: &Names,
        clock: SharedClock,
    ) -> Result<Self, Error> {
        let template = Template::parse(resolve(&spec.path)?.expose())?;
        let writer = Arc::new(Mutex::new(Writer::new(spec.fsync, spec.rotate.clone())));
        Ok(FileSink { unit: unit.clone(), names: names.clone(), template, format: spec.format, writer, clock })
    }
}

impl Sink for FileSink {
    /// One call at a time: the order of lines is the order of messages.
    fn delivering(&self) -> Delivering {
        Delivering { concurrency: 1, messages_max: MESSAGES_MAX, bytes_max: BYTES_MAX, wait_max: Duration::ZERO }
    }

    fn deliver<'a>(&'a self, messages: &'a [Stored]) -> BoxFuture<'a, Vec<Delivered>> {
        let mut files: BTreeMap<PathBuf, (Vec<usize>, Vec<Vec<u8>>)> = BTreeMap::new();
        for (at, message) in messages.iter().enumerate() {
            let mut bytes = Vec::with_capacity(message.payload.len() + 1);
            line::append(&mut bytes, message, self.format, &self.names);
            let (places, lines) = files.entry(self.template.path(message, &self.unit, &self.names)).or_default();
            places.push(at);
            lines.push(bytes);
        }
        let writer = Arc::clone(&self.writer);
        let now = self.clock.now();
        let count = messages.len();
        Box::pin(async move {
            let written = tokio::task::spawn_blocking(move || {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let mut delivered = vec![Delivered::Done; count];
                for (path, (places, lines)) in files {
                    if let Err(error) = writer.append(&path, &lines, now) {
                        let failure = failure(&path, &error);
                        for at in places {
                            delivered[at] = Delivered::Transient { failure: failure.clone(), retry_after: None };
                        }
                    }
                }
                delivered
            });
            written.await.unwrap_or_else(|error| {
                let failure = Failure::new("file-io", format!("the writer broke off: {error}"));
                vec![Delivered::Transient { failure, retry_after: None }; count]
            })
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let writer = Arc::clone(&self.writer);
        Box::pin(async move {
            let closed =
                tokio::task::spawn_blocking(move || writer.lock().unwrap_or_else(PoisonError::into_inner).close());
            if let Ok(Err(error)) = closed.await {
                tracing::warn!(unit = %self.unit, %error, "files could not be forced to disk at the end");
            }
        })
    }
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    use io::ErrorKind::{
        IsADirectory, NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let code = match error.kind() {
        StorageFull | QuotaExceeded => "file-no-space",
        PermissionDenied | ReadOnlyFilesystem => "file-not-allowed",
        IsADirectory => "file-not-a-file",
        NotADirectory => "file-not-a-folder",
        _ => "file-io",
    };
    Failure::new(code, format!("cannot append to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bytes::Bytes;

    use super::*;
    use crate::connectors::secret::Secret;
    use crate::flow::message::Headers;
    use crate::id::UnitKind;
    use crate::manifest::connector::file::{Fsync, OPEN_FILES_MAX, Rotate};
    use crate::manifest::value::{ByteSize, Setting, Span};
    use crate::ports::clock::Clock;
    use crate::time::Timestamp;

    struct System;

    impl Clock for System {
        fn now(&self) -> Timestamp {
            Timestamp(0).plus(std::time::UNIX_EPOCH.elapsed().unwrap())
        }
        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn sink(path: &Path, rotate: Option<Rotate>) -> FileSink {
        let spec = File {
            path: Setting(path.to_str().unwrap().to_owned()),
            format: Format::Payload,
            fsync: Fsync::Always,
            rotate,
        };
        let resolve = |setting: &Setting| Ok(Secret::open(setting.0.clone()));
        FileSink::open(&UnitId::new(UnitKind::Sink, "log"), &spec, &resolve, &Names::default(), Arc::new(System))
            .unwrap()
    }

    fn message(subject: &str, payload: &'static str) -> Stored {
        Stored {
            sequence: 1,
            subject: format!("vx.{subject}"),
            headers: Headers::default(),
            payload: Bytes::from_static(payload.as_bytes()),
            time: Timestamp(0),
        }
    }

    #[tokio::test]
    async fn lines_are_appended_in_folders_made_as_needed() {
        let folder = tempfile::tempdir().unwrap();
        let sink = sink(&folder.path().join("a/b/{subject}.ndjson"), None);
        let messages = [message("x", "1"), message("y", "2"), message("x", "{\n}")];
        assert_eq!(sink.deliver(&messages).await, vec![Delivered::Done; 3]);
        assert_eq!(fs::read_to_string(folder.path().join("a/b/x.ndjson")).unwrap(), "1\n{}\n");
        assert_eq!(fs::read_to_string(folder.path().join("a/b/y.ndjson")).unwrap(), "2\n");
    }

    #[tokio::test]
    async fn a_torn_last_line_is_completed_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "whole\ntor").unwrap();
        sink(&path, None).deliver(&[message("x", "next")]).await;
        assert_eq!(fs::read_to_string(path).unwrap(), "whole\ntor\nnext\n");
    }

    #[tokio::test]
    async fn a_file_rotates_by_size_and_keeps_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let rotate = Rotate { max_bytes: Some(ByteSize(6)), max_age: None, keep: Some(2) };
        let sink = sink(&path, Some(rotate));
        let messages = ["aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh", "much longer than allowed", "i"];
        let messages: Vec<_> = messages.into_iter().map(|payload| message("x", payload)).collect();
        assert_eq!(sink.deliver(&messages).await, vec![Delivered::Done; 10]);
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("log"), "i\n");
        assert_eq!(read("log.5"), "much longer than allowed\n");
        assert_eq!(read("log.4"), "gg\nhh\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[tokio::test]
    async fn a_file_rotates_by_age() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let rotate = Rotate { max_bytes: None, max_age: Some(Span(Duration::ZERO)), keep: None };
        let sink = sink(&path, Some(rotate));
        sink.deliver(&[message("x", "1")]).await;
        sink.deliver(&[message("x", "2")]).await;
        assert_eq!(fs::read_to_string(folder.path().join("log.1")).unwrap(), "1\n");
        assert_eq!(fs::read_to_string(path).unwrap(), "2\n");
    }

    #[tokio::test]
    async fn a_file_moved_away_by_another_program_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let sink = sink(&path, None);
        sink.deliver(&[message("x", "1")]).await;
        fs::rename(&path, folder.path().join("moved")).unwrap();
        sink.deliver(&[message("x", "2")]).await;
        assert_eq!(fs::read_to_string(path).unwrap(), "2\n");
    }

    #[tokio::test]
    async fn more_subjects_than_open_files_all_get_their_lines() {
        let folder = tempfile::tempdir().unwrap();
        let sink = sink(&folder.path().join("{subject}"), None);
        let messages: Vec<_> = (0..OPEN_FILES_MAX + 9).map(|n| message(&format!("s{n}"), "1")).collect();
        for _ in 0..2 {
            assert!(sink.deliver(&messages).await.iter().all(|delivered| *delivered == Delivered::Done));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), messages.len());
        assert_eq!(fs::read_to_string(folder.path().join("s0")).unwrap(), "1\n1\n");
    }

    #[tokio::test]
    async fn faults_are_transient_and_name_themselves_without_stopping_other_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("taken")).unwrap();
        let sink = sink(&folder.path().join("{subject}"), None);
        let delivered = sink.deliver(&[message("taken", "1"), message("free", "2")]).await;
        assert!(
            matches!(&delivered[0], Delivered::Transient { failure, .. } if failure.code == "file-not-a-file"),
            "{delivered:?}"
        );
        assert_eq!(delivered[1], Delivered::Done);
    }

    #[tokio::test]
    async fn a_full_disk_is_transient_and_named() {
        let mut writer = Writer::new(Fsync::Always, None);
        let error = writer.append(Path::new("/dev/full"), &[b"x\n".to_vec()], Timestamp(0)).unwrap_err();
        assert_eq!(failure(Path::new("/dev/full"), &error).code, "file-not-a-file");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(failure(Path::new("x"), &full).code, "file-no-space");
    }
}
