//! SIGKILL at random moments under load: nothing acknowledged is lost, nothing is on the bus twice.
//!
//! Every request has an idempotency key and is repeated until it is acknowledged. In the end the acknowledged ids are
//! compared with what the bus holds behind the entrance, what it holds behind the flow, and what the sink's receiver got.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use vejas::flow::message::ID;
use vejas::id::Names;

use crate::support::{Vejas, free_address, request};

const SENDERS: usize = 8;

fn manifests(receiver: SocketAddr) -> String {
    format!(
        "
apiVersion: vejas/v1
kind: HttpIn
metadata: {{ name: in }}
spec: {{ path: /in, to: crash.in }}
---
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: double }}
spec:
  from: crash.in
  steps:
    - map: .seen = true
  to: crash.out
---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: receiver }}
spec:
  from: crash.out
  http: {{ url: 'http://{receiver}/', concurrency: 8 }}
"
    )
}

/// Counts deliveries by idempotency key and by the life of the process that made them.
#[derive(Default)]
struct Receiver {
    deliveries: Mutex<BTreeMap<String, Vec<u32>>>,
    life: AtomicU32,
}

fn serve(listener: TcpListener, receiver: Arc<Receiver>) {
    for connection in listener.incoming() {
        let receiver = Arc::clone(&receiver);
        thread::spawn(move || answer(connection.unwrap(), &receiver));
    }
}

fn answer(connection: TcpStream, receiver: &Receiver) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    let mut writer = connection;
    loop {
        let (mut key, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(": ") else { continue };
            match name.to_ascii_lowercase().as_str() {
                "idempotency-key" => key = Some(value.to_owned()),
                "content-length" => length = value.parse().ok()?,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let life = receiver.life.load(SeqCst);
        receiver.deliveries.lock().unwrap().entry(key.expect("every request has a key")).or_default().push(life);
        writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
    }
}

/// Sends unique ids until told to stop; each is repeated until it is acknowledged. Answers the acknowledged ones.
fn send(sender: usize, address: SocketAddr, stop: &AtomicBool, total: &AtomicU64) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if stop.load(SeqCst) {
            break;
        }
        let id = format!("{sender}-{number}");
        let body = format!("{{\"id\":\"{id}\"}}");
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let headers = [("Idempotency-Key", id.as_str())];
            if request(address, "POST", "/in", &headers, body.as_bytes()).is_ok_and(|(status, _)| status == 200) {
                break;
            }
            assert!(Instant::now() < deadline, "{id} was not accepted for a minute");
            thread::sleep(Duration::from_millis(5));
        }
        acknowledged.push(id);
        total.fetch_add(1, SeqCst);
    }
    acknowledged
}

/// xorshift64*; the seed is printed so that a run can be looked at again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}

#[test]
fn a_killed_process_loses_nothing_acknowledged_and_doubles_nothing_on_the_bus() {
    let rounds = if std::env::var_os("VEJAS_TEST_FULL").is_some() { 10 } else { 2 };
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}, {rounds} rounds");
    let mut random = Random(seed);

    let receiver = Arc::new(Receiver::default());
    let listener = TcpListener::bind(free_address()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn({
        let receiver = Arc::clone(&receiver);
        move || serve(listener, receiver)
    });

    let mut vejas = Vejas::new(&[("crash.yaml", &manifests(address))]);
    vejas.start();
    let stop = AtomicBool::new(false);
    let total = AtomicU64::new(0);
    let acknowledged: Vec<String> = thread::scope(|scope| {
        let ingress = vejas.ingress;
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (stop, total) = (&stop, &total);
                scope.spawn(move || send(sender, ingress, stop, total))
            })
            .collect();
        for round in 0..rounds {
            let before = total.load(SeqCst);
            // At least some traffic in each life, then any moment.
            while total.load(SeqCst) < before + 50 {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(random.below(1_000)));
            vejas.kill();
            receiver.life.store(round + 1, SeqCst);
            vejas.start();
        }
        stop.store(true, SeqCst);
        senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
    });

    drain(&vejas);
    assert!(vejas.stop().success(), "{}", vejas.log());
    check(&vejas, &acknowledged, &receiver, rounds);
}

/// Waits until no unit has anything left to do.
fn drain(vejas: &Vejas) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = vejas.status();
        let busy = status["units"].as_array().unwrap().iter().any(|unit| {
            ["pending", "inFlight", "redelivering"].iter().any(|field| unit["lag"][*field].as_u64().unwrap_or(0) > 0)
        });
        if !busy {
            return;
        }
        assert!(Instant::now() < deadline, "did not drain: {status:#}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn check(vejas: &Vejas, acknowledged: &[String], receiver: &Receiver, rounds: u32) {
    let sent: BTreeSet<&str> = acknowledged.iter().map(String::as_str).collect();
    assert_eq!(sent.len(), acknowledged.len());
    let stored = stored_ids(vejas);
    for subject in ["vx.crash.in", "vx.crash.out"] {
        let ids = &stored[subject];
        let unique: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        let lost: Vec<_> = sent.difference(&unique).collect();
        assert!(lost.is_empty(), "{subject}: {} lost, such as {:?}", lost.len(), lost.first());
        assert_eq!(ids.len(), unique.len(), "{subject}: some ids are stored twice");
    }

    let deliveries = receiver.deliveries.lock().unwrap();
    let lost = sent.iter().filter(|id| !deliveries.contains_key(&format!("sink/receiver/{id}"))).count();
    assert_eq!(lost, 0, "lost at the sink");
    let mut duplicated = 0;
    for (key, lives) in deliveries.iter() {
        let distinct: BTreeSet<_> = lives.iter().collect();
        // Explained: delivered, killed before the acknowledgement was stored, delivered again by the next life.
        assert_eq!(distinct.len(), lives.len(), "{key} was delivered twice by one process: {lives:?}");
        duplicated += lives.len() - 1;
    }
    println!(
        "{} acknowledged, {rounds} kills: 0 lost, 0 duplicated on the bus, {duplicated} delivered again after a kill",
        sent.len()
    );
}

fn stored_ids(vejas: &Vejas) -> BTreeMap<String, Vec<String>> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bus = crate::support::open_bus(&vejas.data());
        let stream = Names::default().messages();
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut from = 1;
        loop {
            let messages = bus.read(&stream, from, &[], 1_000).await.unwrap();
            let Some(last) = messages.last() else { return found };
            from = last.sequence + 1;
            for message in messages {
                let id = message.headers.get(ID).unwrap_or_default().to_owned();
                found.entry(message.subject).or_default().push(id);
            }
        }
    })
}
