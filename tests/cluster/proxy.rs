//! A network between one instance and its server that can be cut.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::free_address;

/// How often a thread looks whether something has changed.
const LOOK: Duration = Duration::from_millis(5);
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    No,
    /// Connections are closed and new ones refused.
    Refused,
    /// Nothing gets through and nobody is told; what was sent arrives after the end of the cut.
    BlackHole,
}

struct State {
    cut: Mutex<Cut>,
    over: AtomicBool,
}

impl State {
    fn is(&self, cut: Cut) -> bool {
        *self.cut.lock().unwrap() == cut
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(free_address()).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { cut: Mutex::new(Cut::No), over: AtomicBool::new(false) });
        let of_thread = Arc::clone(&state);
        thread::spawn(move || accept(listener, address, server, &of_thread));
        Proxy { address, state }
    }

    pub fn set(&self, cut: Cut) {
        *self.state.cut.lock().unwrap() = cut;
    }

    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
    }
}

fn accept(listener: TcpListener, address: SocketAddr, server: SocketAddr, state: &Arc<State>) {
    listener.set_nonblocking(true).unwrap();
    let mut listening = Some(listener);
    while !state.is_over() {
        match (&listening, state.is(Cut::Refused)) {
            (Some(_), true) => listening = None,
            (None, false) => {
                let listener = TcpListener::bind(address).unwrap();
                listener.set_nonblocking(true).unwrap();
                listening = Some(listener);
            }
            (Some(listener), false) => match listener.accept() {
                Ok((client, _)) => connect(client, server, state),
                Err(_) => thread::sleep(LOOK),
            },
            (None, true) => thread::sleep(LOOK),
        }
    }
}

fn connect(client: TcpStream, server: SocketAddr, state: &Arc<State>) {
    let Ok(server) = TcpStream::connect(server) else { return };
    for stream in [&client, &server] {
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LOOK)).unwrap();
    }
    let directions = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
    for (from, to) in directions {
        let state = Arc::clone(state);
        thread::spawn(move || pump(from, to, &state));
    }
}

/// Passes on what comes, until either side has closed or the cut closes both.
fn pump(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while !state.is_over() && !state.is(Cut::Refused) {
        if state.is(Cut::BlackHole) {
            thread::sleep(LOOK);
            continue;
        }
        match from.read(&mut chunk) {
            Ok(0) => break,
            // What was read as the cut began is held back, too.
            Ok(count) => {
                while state.is(Cut::BlackHole) && !state.is_over() {
                    thread::sleep(LOOK);
                }
                if state.is(Cut::Refused) || to.write_all(&chunk[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
