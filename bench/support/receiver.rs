//! What an http sink delivers to: answers 204 to everything and tells what came.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use super::Failure;

/// A request whose body was read, before it is answered.
#[derive(Debug)]
pub struct Delivery {
    /// Its `Idempotency-Key`.
    pub key: Option<String>,
}

pub struct Receiver {
    pub address: SocketAddr,
    open: Arc<AtomicUsize>,
}

impl Receiver {
    /// Listens on an address, or on any when it is `None`.
    pub fn start(
        address: Option<SocketAddr>,
        took: impl Fn(Delivery) + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0))))?;
        let address = listener.local_addr()?;
        let open = Arc::new(AtomicUsize::new(0));
        let (took, counted) = (Arc::new(took), Arc::clone(&open));
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (took, open) = (Arc::clone(&took), Arc::clone(&counted));
                open.fetch_add(1, SeqCst);
                thread::spawn(move || {
                    serve(connection, &*took);
                    open.fetch_sub(1, SeqCst);
                });
            }
        });
        Ok(Receiver { address, open })
    }

    /// Connections not yet read to their end.
    pub fn connections(&self) -> usize {
        self.open.load(SeqCst)
    }
}

/// Ends with the connection.
fn serve(connection: TcpStream, took: &dyn Fn(Delivery)) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    let mut writer = connection;
    let mut line = String::new();
    loop {
        let (mut length, mut key) = (0, None);
        loop {
            line.clear();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let header = line.trim_end();
            if header.is_empty() {
                break;
            }
            let Some((name, value)) = header.split_once(": ") else { continue };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok()?;
            } else if name.eq_ignore_ascii_case("idempotency-key") {
                key = Some(value.to_owned());
            }
        }
        let read = std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).ok()?;
        if read < length {
            return None;
        }
        took(Delivery { key });
        writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
    }
}
