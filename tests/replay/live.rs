//! On what comes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use serde_json::json;

use crate::support::Vejas;
use crate::world::{MANIFESTS, Said, candidate, compare, order, other, same, send, unit, until};

/// `vejas shadow`, watching.
pub struct Shadow {
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Shadow {
    /// Starts it and waits until what comes from then on is compared.
    pub fn start(vejas: &Vejas, file: &str, more: &[&str]) -> Self {
        let arguments = [&["shadow", "price", "--candidate", file, "--output", "json"], more].concat();
        let mut child = vejas.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        errors.read_line(&mut first).unwrap();
        assert!(first.contains("what comes from sequence"), "{first}");
        Shadow { child, errors }
    }

    /// All it said, once it has ended by itself.
    pub fn said(mut self) -> Said {
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let mut stderr = Vec::new();
        self.errors.read_to_end(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        Said::of(&std::process::Output { status, stdout, stderr })
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_comes_is_compared_and_it_ends_when_another_version_runs() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    send(&vejas, "/in", &order("before", "0", "FR"));
    let file = candidate(&vejas, &[("price.yaml", &other())]);
    let shadow = Shadow::start(&vejas, &file, &["--unchanged"]);
    for (id, net) in [("A", "1"), ("B", "0"), ("C", "seven")] {
        send(&vejas, "/in", &order(id, net, "FR"));
    }
    // The flow is where it was, whoever looks on.
    until(&vejas, "the flow has worked on all", |status| unit(status, "flow/price")["received"] == 4);
    let before = vejas.status();
    let was = unit(&before, "flow/price")["digest"].clone();
    fs::write(vejas.manifests().join("all.yaml"), MANIFESTS.replace("del(.vat)", "del(.vat)\n        .new = true"))
        .unwrap();
    until(&vejas, "another version runs", |status| {
        let unit = unit(status, "flow/price");
        unit["digest"] != was && unit["state"] == "running"
    });
    send(&vejas, "/in", &order("after", "0", "FR"));
    let said = shadow.said();
    assert_eq!(said.end["reason"], "version-changed", "{}", said.end);
    assert!(said.end["detail"].as_str().unwrap().contains("another version of flow/price runs"), "{}", said.end);
    assert_eq!(said.outcomes(), ["unchanged", "dropped", "mended"], "{:#?}", said.messages);
    assert_eq!(said.code, 2);
}

#[test]
fn it_ends_when_the_time_is_over_and_leaves_no_trace() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    let file = candidate(&vejas, &[("price.yaml", &same())]);
    let said = compare(&vejas, &["shadow", "price", "--candidate", &file, "--for", "300ms"]);
    assert_eq!((said.code, &said.end["reason"], said.messages.len()), (0, &json!("time"), 0), "{}", said.errors);
    assert!(vejas.stop().success());
    let bus = vejas::runtime::open_bus(&vejas.data()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let durables = runtime.block_on(vejas::ports::bus::Bus::durables(&*bus, "VEJAS")).unwrap();
    assert_eq!(durables.len(), 4, "{durables:?}");
}

#[test]
fn it_ends_with_an_error_when_the_process_stops() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    let file = candidate(&vejas, &[("price.yaml", &same())]);
    let shadow = Shadow::start(&vejas, &file, &[]);
    assert!(vejas.stop().success(), "a shadow does not hold up the end");
    let said = shadow.said();
    assert!(said.code == 3 && said.errors.contains("the process stops"), "{} {}", said.code, said.errors);
}

#[test]
fn four_run_at_once_in_a_process_and_a_place_is_free_again_when_one_ends() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    let file = candidate(&vejas, &[("price.yaml", &same())]);
    let mut shadows: Vec<Shadow> = (0..4).map(|_| Shadow::start(&vejas, &file, &[])).collect();
    let one_more = || compare(&vejas, &["shadow", "price", "--candidate", &file, "--for", "1ms"]);
    let refused = one_more();
    assert!(refused.code == 3 && refused.errors.contains("4 shadows at once"), "{} {}", refused.code, refused.errors);
    // A replay has a place of its own.
    assert_eq!(compare(&vejas, &["replay", "price", "--candidate", &file]).code, 0);
    shadows.pop();
    until(&vejas, "a place is free", |_| one_more().code == 0);
}
