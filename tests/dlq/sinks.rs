//! A receiver that refuses: the letter goes back to that sink alone, under the same key.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Vejas};
use crate::world::{letters, said, send, sequence, wait_for_letters};

/// Idempotency key and body.
type Request = (String, Vec<u8>);

/// Notes key and body of every request, and answers with the status it is told.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    status: Arc<Mutex<u16>>,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Receiver {
            address: listener.local_addr().unwrap(),
            status: Arc::new(Mutex::new(status)),
            seen: Arc::default(),
        };
        let serving = receiver.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().map(Result::unwrap) {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut key, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let Some((name, value)) = line.trim().split_once(": ") else {
                        if line.trim().is_empty() {
                            break;
                        }
                        continue;
                    };
                    match name.to_ascii_lowercase().as_str() {
                        "idempotency-key" => key = value.to_owned(),
                        "content-length" => length = value.parse().unwrap(),
                        _ => {}
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                serving.seen.lock().unwrap().push((key, body));
                let status = *serving.status.lock().unwrap();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
            }
        });
        receiver
    }

    fn wait(&self, count: usize) -> Vec<Request> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.seen.lock().unwrap().clone();
            if seen.len() >= count {
                return seen;
            }
            assert!(Instant::now() < deadline, "{} requests instead of {count}", seen.len());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_replay_reaches_the_sink_that_failed_and_no_other_with_the_key_and_the_bytes_it_had() {
    let (erp, crm) = (Receiver::start(400), Receiver::start(200));
    let manifests = format!(
        "
apiVersion: vejas/v1
kind: HttpIn
metadata: {{ name: in }}
spec: {{ path: /in, to: orders.raw }}
---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: erp }}
spec:
  from: orders.raw
  http: {{ url: 'http://{}/' }}
---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: crm }}
spec:
  from: orders.raw
  http: {{ url: 'http://{}/' }}
",
        erp.address, crm.address
    );
    let mut vejas = Vejas::new(&[("all.yaml", &manifests)]);
    vejas.start();
    let body = br#"{ "id" : 1.0 }"#;
    send(&vejas, "A-1", body);
    let letter = wait_for_letters(&vejas, &["--unit", "sink/erp"], 1).remove(0);
    assert_eq!(letter["code"].as_str().map(|code| code.contains("400")), Some(true), "{letter}");
    *erp.status.lock().unwrap() = 200;
    said(&vejas, &["replay", &sequence(&letter)]);
    let seen = erp.wait(2);
    assert_eq!(seen, [("sink/erp/A-1".to_owned(), body.to_vec()), ("sink/erp/A-1".to_owned(), body.to_vec())]);
    // A second message passes both: had the replay reached the other sink, it would have come before.
    send(&vejas, "A-2", body);
    erp.wait(3);
    let seen: Vec<String> = crm.wait(2).into_iter().map(|(key, _)| key).collect();
    assert_eq!(seen, ["sink/crm/A-1", "sink/crm/A-2"]);
    assert!(letters(&vejas, &[]).is_empty());
}
