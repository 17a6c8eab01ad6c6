//! Writes whole lines to the standard output. A message is delivered when its line is flushed.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::connectors::line;
use crate::flow::failure::Failure;
use crate::flow::message::Stored;
use crate::id::Names;
use crate::manifest::connector::file::Format;
use crate::manifest::connector::stdout::Stdout;
use crate::ports::sink::{Delivered, Delivering, Sink};

/// Lines written and flushed together.
pub const MESSAGES_MAX: usize = 256;
/// Payload bytes written and flushed together.
pub const BYTES_MAX: usize = 1 << 20;

pub struct StdoutSink {
    format: Format,
    names: Names,
    out: Arc<Mutex<dyn Write + Send>>,
}

impl fmt::Debug for StdoutSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdoutSink").field("format", &self.format).finish_non_exhaustive()
    }
}

impl StdoutSink {
    pub fn open(spec: &Stdout, names: &Names) -> Self {
        StdoutSink::onto(spec, names, Arc::new(Mutex::new(io::stdout())))
    }

    fn onto(spec: &Stdout, names: &Names, out: Arc<Mutex<dyn Write + Send>>) -> Self {
        StdoutSink { format: spec.format, names: names.clone(), out }
    }
}

impl Sink for StdoutSink {
    fn delivering(&self) -> Delivering {
        Delivering { concurrency: 1, messages_max: MESSAGES_MAX, bytes_max: BYTES_MAX, wait_max: Duration::ZERO }
    }

    fn deliver<'a>(&'a self, messages: &'a [Stored]) -> BoxFuture<'a, Vec<Delivered>> {
        let mut lines = Vec::new();
        for message in messages {
            line::append(&mut lines, message, self.format, &self.names);
        }
        let out = Arc::clone(&self.out);
        let count = messages.len();
        Box::pin(async move {
            // A pipe whose reader is slow blocks: not on a thread of the runtime.
            let written = tokio::task::spawn_blocking(move || {
                let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                out.write_all(&lines)?;
                out.flush()
            });
            let delivered = match written.await {
                Ok(Ok(())) => Delivered::Done,
                Ok(Err(error)) => Delivered::Transient { failure: failure(&error), retry_after: None },
                Err(error) => {
                    Delivered::Transient { failure: Failure::new("stdout-io", error.to_string()), retry_after: None }
                }
            };
            vec![delivered; count]
        })
    }
}

fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new("stdout-closed", "nobody reads the standard output any more"),
        io::ErrorKind::StorageFull => Failure::new("stdout-no-space", "the standard output has no space left"),
        _ => Failure::new("stdout-io", format!("cannot write to the standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::flow::message::Headers;
    use crate::time::Timestamp;

    fn messages() -> Vec<Stored> {
        let message = |sequence, payload| Stored {
            sequence,
            subject: "vx.a".to_owned(),
            headers: Headers::default(),
            payload: Bytes::from_static(payload),
            time: Timestamp(0),
        };
        vec![message(1, b"{\n}"), message(2, b"b")]
    }

    #[tokio::test]
    async fn each_message_is_one_whole_line() {
        let out = Arc::new(Mutex::new(Vec::new()));
        let sink = StdoutSink::onto(&Stdout::default(), &Names::default(), Arc::clone(&out) as _);
        assert_eq!(sink.deliver(&messages()).await, [Delivered::Done, Delivered::Done]);
        assert_eq!(*out.lock().unwrap(), b"{}\nb\n");
    }

    #[tokio::test]
    async fn a_closed_pipe_is_a_clear_transient_failure() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let sink = StdoutSink::onto(&Stdout::default(), &Names::default(), Arc::new(Mutex::new(writer)));
        let delivered = sink.deliver(&messages()).await;
        assert_eq!(delivered.len(), 2);
        for delivered in delivered {
            assert!(matches!(delivered, Delivered::Transient { failure, .. } if failure.code == "stdout-closed"));
        }
    }
}
