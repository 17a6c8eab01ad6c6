//! On what is stored.

use serde_json::{Value, json};
use vejas::id::Names;
use vejas::ports::store::Store;

use crate::nats::Server;
use crate::support::{Vejas, request};
use crate::world::{MANIFESTS, candidate, compare, order, other, same, send, send_orders, unit, until};

/// What a comparison must not move.
fn figures(status: &Value) -> Value {
    let units: Vec<Value> = status["units"]
        .as_array()
        .unwrap()
        .iter()
        .map(|unit| json!([unit["unit"], unit["received"], unit["emitted"], unit["dead"], unit["lag"]]))
        .collect();
    let streams: Vec<Value> =
        status["streams"].as_array().unwrap().iter().map(|stream| json!([stream["name"], stream["last"]])).collect();
    json!([units, streams])
}

const RATES: &str = "
apiVersion: vejas/v1
kind: Table
metadata: { name: vat }
spec: { file: { path: rates.csv, key: country } }
---
apiVersion: vejas/v1
kind: Sink
metadata: { name: out }
spec: { from: nothing.of.this.counts, stdout: {} }
";

#[test]
fn each_message_is_told_by_what_the_candidate_would_make_of_it_and_nothing_has_an_effect() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    send_orders(&vejas);
    let before = until(&vejas, "nothing is under way", |status| unit(status, "flow/price")["lag"]["inFlight"] == 0);

    // The table stands beside the candidate; there DE has another rate.
    let file = candidate(
        &vejas,
        &[("price.yaml", &other()), ("tables.yaml", RATES), ("rates.csv", "country,rate\nDE,21\nFR,20\n")],
    );
    let said = compare(&vejas, &["replay", "price", "--candidate", &file, "--unchanged"]);
    let expected = ["changed", "unchanged", "dropped", "added", "mended", "failed", "unchanged"];
    assert_eq!(said.outcomes(), expected, "{:#?}\n{}", said.messages, said.errors);
    assert_eq!(said.code, 2);
    assert_eq!(
        said.end["summary"],
        json!({ "messages": 7, "unchanged": 2, "changed": 1, "dropped": 1, "added": 1, "failed": 1, "mended": 1, "failing": 1 })
    );
    assert_eq!(said.end["reason"], "complete");
    let [changed, .., failed, _] = &said.messages[..] else { unreachable!() };
    let diff = changed["diff"].as_str().unwrap();
    assert!(diff.contains("-   \"gross\": 29,\n+   \"gross\": 31,"), "{diff}");
    assert_eq!((&changed["subject"], &changed["active"]["outputs"]), (&json!("orders.raw"), &json!(1)));
    let failure = &failed["candidate"]["failure"];
    assert_eq!(failure["code"], "expression");
    assert!(failure["message"].as_str().unwrap().contains("new/price.yaml:"), "{failure}");

    // For people, what differs only.
    let output = vejas.command(&["replay", "flow/price", "--candidate", &file]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("#") && text.contains(" changed  orders.raw  "), "{text}");
    assert!(
        text.contains("    -   \"gross\": 29,\n    +   \"gross\": 31,\n") && !text.contains("unchanged  "),
        "{text}"
    );
    assert!(
        text.ends_with(
            "7 messages: 2 unchanged, 1 changed, 1 dropped, 1 added, 1 failed, 1 mended; the candidate fails on 1\n"
        ),
        "{text}"
    );

    assert_eq!(figures(&vejas.status()), figures(&before));
    assert!(vejas.stop().success());
    let bus = vejas::runtime::open_bus(&vejas.data()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let marks = runtime.block_on(bus.list(&Names::default().dedupe_bucket(), "", None, 100)).unwrap();
    assert_eq!(marks.len(), 5, "order D, which only the candidate lets pass, has no mark: {marks:?}");
    let durables = runtime.block_on(vejas::ports::bus::Bus::durables(&*bus, "VEJAS")).unwrap();
    assert_eq!(durables.len(), 4, "{durables:?}");
}

#[test]
fn the_same_flow_differs_in_nothing_and_what_it_refers_to_is_taken_from_what_runs() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    send_orders(&vejas);
    // No table lies beside it.
    let file = candidate(&vejas, &[("price.yaml", &same())]);
    let said = compare(&vejas, &["replay", "price", "--candidate", &file]);
    assert_eq!((said.code, said.messages.len()), (0, 0), "{:?}\n{}", said.messages, said.errors);
    assert_eq!(said.end["summary"]["unchanged"], 7);
    assert!(said.errors.contains("which is the same"), "{}", said.errors);

    // A table that so far only another flow refers to.
    let named =
        same().replace("    - map:", "    - lookup: { table: countries, key: .country, into: place }\n    - map:");
    let file = candidate(&vejas, &[("named.yaml", &named)]);
    let said = compare(&vejas, &["replay", "price", "--candidate", &file, "--limit", "1"]);
    let diff = said.messages[0]["diff"].as_str().unwrap();
    assert!(diff.contains("+     \"name\": \"Germany\""), "{diff}");

    // Another `from` reads what the flow does not.
    send(&vejas, "/extra", &order("X", "1", "FR"));
    let wider = same().replace("from: orders.raw", "from: [orders.raw, orders.extra]");
    let file = candidate(&vejas, &[("wider.yaml", &wider)]);
    let said = compare(&vejas, &["replay", "price", "--candidate", &file]);
    assert_eq!(said.outcomes(), ["added"], "{:#?}", said.messages);
    let message = &said.messages[0];
    assert_eq!((&message["subject"], &message["active"]["reads"]), (&json!("orders.extra"), &json!(false)));
}

#[test]
fn a_candidate_that_cannot_run_is_refused_with_its_problems_and_so_is_what_makes_no_sense() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    let broken = same().replace("to_int!(.net)", "to_number(.net)").replace("table: vat", "table: wat");
    let file = candidate(&vejas, &[("price.yaml", &broken)]);
    let said = compare(&vejas, &["replay", "price", "--candidate", &file]);
    assert_eq!(said.code, 3);
    for text in ["new/price.yaml:9:24 VJ0021", "wat", "has errors"] {
        assert!(said.errors.contains(text), "{text}: {}", said.errors);
    }
    let good = candidate(&vejas, &[("same.yaml", &same())]);
    for (arguments, reason) in [
        (&["replay", "absent", "--candidate", &good] as &[&str], "no flow/absent runs"),
        (&["replay", "names", "--candidate", &good], "new/same.yaml declares no flow/names"),
        (&["replay", "price", "--candidate", &good, "--since", "yesterday"], "write a time as in"),
        (&["replay", "price", "--candidate", &good, "--limit", "100001"], "1 to 100000"),
        (&["shadow", "price", "--candidate", &good, "--for", "25h"], "lasts 1day at most"),
        (&["replay", "price", "--candidate", "new/absent.yaml"], "cannot read new/absent.yaml"),
    ] {
        let said = compare(&vejas, arguments);
        assert!(said.code == 3 && said.errors.contains(reason), "{arguments:?}: {} {}", said.code, said.errors);
    }
    let (status, body) =
        request(vejas.api, "POST", "/api/v1/replay/price", &[("Content-Type", "application/json")], b"{\"x\":1}")
            .unwrap();
    assert_eq!(status, 422, "{body}");
}

#[test]
fn dead_letters_show_which_of_them_the_candidate_would_take() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    for (id, net) in [("A", "seven"), ("B", "10"), ("F", "eight")] {
        send(&vejas, "/in", &order(id, net, "FR"));
    }
    until(&vejas, "two have failed", |status| unit(status, "flow/price")["dead"] == 2);
    let file = candidate(&vejas, &[("price.yaml", &other())]);
    let said = compare(&vejas, &["replay", "price", "--candidate", &file, "--dead-letters", "--unchanged"]);
    assert_eq!(said.outcomes(), ["mended", "unchanged"], "{:#?}\n{}", said.messages, said.errors);
    let letter = &said.messages[0];
    assert_eq!((&letter["sequence"], &letter["subject"]), (&json!(1), &json!("orders.raw")));
    assert!(letter["diff"].as_str().unwrap().contains("+   \"gross\": 21,"), "{letter:#}");
    assert_eq!(
        (&said.end["summary"]["failing"], &said.messages[1]["candidate"]["failure"]["code"]),
        (&json!(1), &json!("expression"))
    );
    // They are still there.
    let output = vejas.command(&["dlq", "list", "--output", "json"]).output().unwrap();
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(page["letters"].as_array().unwrap().len(), 2, "{page:#}");
}

#[test]
fn a_limit_says_where_to_go_on_and_a_beginning_is_kept_to() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    send_orders(&vejas);
    let file = candidate(&vejas, &[("price.yaml", &same())]);
    let replay = |more: &[&str]| {
        let said = compare(&vejas, &[&["replay", "price", "--candidate", &file, "--unchanged"], more].concat());
        let ids: Vec<u64> = said.messages.iter().map(|message| message["sequence"].as_u64().unwrap()).collect();
        (ids, said.end["reason"].as_str().unwrap().to_owned(), said.end["next"].as_u64().unwrap())
    };
    let (all, reason, _) = replay(&[]);
    assert_eq!((all.len(), reason.as_str()), (7, "complete"));
    let (first, reason, next) = replay(&["--limit", "4"]);
    assert_eq!((&first[..], reason.as_str()), (&all[..4], "limit"));
    let (rest, reason, _) = replay(&["--from-seq", &next.to_string()]);
    assert_eq!((&rest[..], reason.as_str()), (&all[4..], "complete"));
    let (none, _, _) = replay(&["--since", "2200-01-01T00:00:00Z"]);
    assert!(none.is_empty());
    let (since, _, _) = replay(&["--since", "2h"]);
    assert_eq!(since, all);
}

#[test]
fn more_than_a_page_is_compared_whole_and_in_order() {
    const ORDERS: usize = 300;
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.start();
    for number in 0..ORDERS {
        send(&vejas, "/in", &order(&number.to_string(), &number.to_string(), "FR"));
    }
    let file = candidate(&vejas, &[("price.yaml", &other())]);
    let said = compare(&vejas, &["replay", "price", "--candidate", &file, "--unchanged"]);
    let sequences: Vec<u64> = said.messages.iter().map(|message| message["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.len() == ORDERS && sequences.is_sorted(), "{sequences:?}");
    assert_eq!(said.end["summary"]["dropped"], 1, "only order 0 has a net of 0: {}", said.end);
}

#[test]
fn the_read_token_will_do_and_none_will_not() {
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.environment("VEJAS_READ_TOKEN", "reads");
    let file = candidate(&vejas, &[("price.yaml", &same())]);
    vejas.start();
    for verb in ["replay", "shadow"] {
        let more: &[&str] = if verb == "shadow" { &["--for", "1ms"] } else { &[] };
        let ask = |token: &[&str]| compare(&vejas, &[&[verb, "price", "--candidate", &file], more, token].concat());
        let none = ask(&[]);
        assert!(none.code == 3 && none.errors.contains("wants a token"), "{}", none.errors);
        let reads = ask(&["--token", "reads"]);
        assert_eq!(reads.code, 0, "{}", reads.errors);
    }
}

#[test]
fn on_a_nats_server_it_is_the_same() {
    let server = Server::start();
    let mut vejas = Vejas::new(&[("all.yaml", MANIFESTS)]);
    vejas.environment("VEJAS_CLUSTER", "1").environment("VEJAS_NATS_URL", &server.url());
    vejas.start();
    send_orders(&vejas);
    let before = until(&vejas, "nothing is under way", |status| unit(status, "flow/price")["lag"]["inFlight"] == 0);
    let file = candidate(&vejas, &[("price.yaml", &other())]);
    let said = compare(&vejas, &["replay", "price", "--candidate", &file]);
    assert_eq!(said.outcomes(), ["dropped", "added", "mended", "failed"], "{:#?}\n{}", said.messages, said.errors);
    assert_eq!(figures(&vejas.status()), figures(&before));
    let shadow = crate::live::Shadow::start(&vejas, &file, &["--limit", "2"]);
    send(&vejas, "/in", &order("G", "0", "FR"));
    send(&vejas, "/in", &order("H", "1", "FR"));
    let said = shadow.said();
    assert_eq!(said.outcomes(), ["dropped"], "{:#?}\n{}", said.messages, said.errors);
    assert_eq!((&said.end["reason"], &said.end["summary"]["messages"]), (&json!("limit"), &json!(2)));
}
