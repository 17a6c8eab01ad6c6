//! The kill campaign of `bench/kill9.sh`, small, on the test build.

#[path = "../../bench/kill9/campaign.rs"]
mod campaign;
use crate::programs as support;

use std::sync::Arc;

use bytes::Bytes;
use vejas::flow::message::{Headers, ID, Outgoing};
use vejas::id::Names;
use vejas::ports::bus::Bus;

use campaign::Campaign;
use support::ledger::{Deliveries, compare, stored_in};
use support::producers::Sent;
use support::receiver::Delivery;

#[test]
fn a_killed_process_loses_nothing_acknowledged_and_doubles_nothing_on_the_bus() {
    let full = std::env::var_os("VEJAS_TEST_FULL").is_some();
    let (messages, rounds) = if full { (10_000, 10) } else { (1_000, 3) };
    let seed = support::random::seed();
    println!("seed {seed}");
    let binary = env!("CARGO_BIN_EXE_vejas").as_ref();
    let report = campaign::run(&Campaign { binary, messages, rounds, seed }, &mut |line| println!("{line}")).unwrap();
    println!("{report:#?}, drained in {:?}", report.drain);
    let found = &report.comparison;
    assert_eq!((report.acknowledged, report.unknown), (messages, 0));
    assert_eq!(found.lost, 0, "lost: {:?}", found.examples);
    assert_eq!(found.duplicated_bus, 0, "some ids are stored twice");
    assert_eq!(found.foreign, 0, "some ids were never sent");
    assert_eq!(found.unexplained, 0, "delivered twice by one process");
    assert!(report.kills >= rounds);
}

/// The checker is checked: on a folder that is wrong in every way.
#[test]
fn the_comparison_finds_what_is_missing_doubled_or_foreign() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::default();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let bus: Arc<dyn Bus> = vejas::runtime::open_bus(folder.path()).unwrap();
        vejas::runtime::streams::ensure_messages(&*bus, &names, 64 << 20).await.unwrap();
        for (subject, id) in
            [("in", "a"), ("in", "b"), ("in", "c"), ("in", "u"), ("out", "a"), ("out", "a"), ("out", "c"), ("out", "f")]
        {
            let headers = Headers::from_iter([(ID, id)]);
            let subject = names.stored(subject);
            let message = Outgoing { subject, headers, payload: Bytes::new(), transport_id: None };
            bus.publish(&names.messages().into(), message, None).await.unwrap();
        }
    });
    let deliveries = Deliveries::default();
    let deliver = |id: &str| deliveries.took(Delivery { key: Some(format!("sink/receiver/{id}")) });
    deliver("a");
    deliver("f");
    deliver("f");
    deliveries.next_life();
    deliver("a");
    let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let sent = Sent { acknowledged: set(&["a", "b", "c", "d"]), unknown: set(&["u"]) };
    let stored = stored_in(folder.path()).unwrap();
    let found = compare(&sent, &stored, &["in", "out"], &deliveries);
    assert_eq!(found.examples, ["b", "c", "d"], "behind the flow, at the receiver, everywhere");
    assert_eq!((found.lost, found.duplicated_bus, found.foreign), (3, 1, 1));
    assert_eq!((found.duplicated_sink, found.unexplained), (2, 1));
}
