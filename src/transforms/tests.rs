//! Pipelines built from YAML steps, fed with messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::{Became, Parts, Passage, Pipeline, Progress, Seen, Stamp, Watch, build};
use crate::flow::failure::Failure;
use crate::flow::message::{Headers, ID, Stored};
use crate::id::{Names, UnitId, UnitKind};
use crate::language::{Compiler, Environment, EventType, Program, Purpose, Table, Tables, json};
use crate::manifest::flow::{Flow, Step};
use crate::manifest::reader;
use crate::time::Timestamp;

fn pipeline(yaml: &str) -> Pipeline {
    let read = reader::read("f.yaml", yaml.as_bytes());
    assert!(read.problems.is_empty(), "{:?}", read.problems);
    let flow: Flow = serde_json::from_value(read.documents[0].root.to_json()).unwrap();
    let row = |text: &str| json::from_slice(text.as_bytes()).unwrap();
    let rows = [("DE".to_owned(), row(r#"{"rate":0.19}"#)), ("7".to_owned(), row(r#""seven""#))];
    let tables = Tables::from([("vat".to_owned(), Arc::new(Table::new("vat", rows, [0; 32])))]);
    let schema =
        serde_json::json!({ "type": "object", "required": ["id"], "properties": { "id": { "type": "string" } } });
    let validator = Arc::new(jsonschema::validator_for(&schema).unwrap());
    let parts = Parts {
        unit: UnitId::new(UnitKind::Flow, "f"),
        names: &Names::default(),
        programs: &programs(&flow, &tables),
        tables: &tables,
        validators: &BTreeMap::from([("order".to_owned(), validator)]),
        locate: Arc::new(|pointer, offset| format!("f.yaml {pointer}+{offset}")),
    };
    build(&flow, &parts).unwrap()
}

fn programs(flow: &Flow, tables: &Tables) -> BTreeMap<String, Arc<Program>> {
    let mut sources = Vec::new();
    for (at, step) in flow.steps.iter().enumerate() {
        let at = format!("steps.{at}");
        match step {
            Step::Filter(source) => sources.push((format!("{at}.filter"), Purpose::Condition, source.0.clone())),
            Step::Map(source) => sources.push((format!("{at}.map"), Purpose::Program, source.0.clone())),
            Step::Split(source) => sources.push((format!("{at}.split"), Purpose::Value, source.0.clone())),
            Step::Lookup(step) => sources.push((format!("{at}.lookup.key"), Purpose::Value, step.key.0.clone())),
            Step::Dedupe(step) => sources.push((format!("{at}.dedupe.key"), Purpose::Value, step.key.0.clone())),
            Step::Route(arms) => sources.extend(arms.iter().enumerate().filter_map(|(nth, arm)| {
                let when = arm.when.as_ref()?;
                Some((format!("{at}.route.{nth}.when"), Purpose::Condition, when.0.clone()))
            })),
            Step::Validate(_) => {}
        }
    }
    let (compiler, event) = (Compiler::new(), EventType::any());
    let environment = Environment { event: &event, tables };
    let compile = |(pointer, purpose, source): (String, Purpose, String)| {
        (pointer, compiler.compile(&source, purpose, &environment).unwrap())
    };
    sources.into_iter().map(compile).collect()
}

fn message(payload: &str) -> Stored {
    Stored {
        sequence: 1,
        subject: "vx.in".to_owned(),
        headers: Headers::from_iter([(ID, "A-1"), ("X-Shop", "kaunas")]),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        time: Timestamp(0),
    }
}

fn run(yaml: &str, payload: &str) -> Result<Progress, Failure> {
    pipeline(yaml).start(&message(payload))
}

/// Subject and payload of everything that came out.
fn out(progress: &Progress) -> Vec<(&str, &str)> {
    let text = |payload| std::str::from_utf8(payload).unwrap();
    progress.emissions.iter().map(|emission| (&*emission.subject, text(&emission.payload))).collect()
}

#[test]
fn without_steps_bytes_pass_unchanged_whatever_they_are() {
    let progress = run("from: in\nto: out", " not json ").unwrap();
    assert_eq!(out(&progress), [("vx.out", " not json ")]);
}

#[test]
fn what_no_step_changed_keeps_its_very_bytes() {
    let progress = run("from: in\nsteps: [{ filter: .a == 1 }]\nto: out", r#"{ "b": 2, "a": 1 }"#).unwrap();
    assert_eq!(out(&progress), [("vx.out", r#"{ "b": 2, "a": 1 }"#)]);
}

#[test]
fn a_payload_that_is_not_json_fails_where_a_step_looks_into_it() {
    let failure = run("from: in\nsteps: [{ filter: .a == 1 }]\nto: out", "<xml/>").unwrap_err();
    assert_eq!(failure.code, "payload");
    assert!(failure.message.contains("flow/f") && failure.message.contains("line 1"), "{}", failure.message);
}

#[test]
fn a_filter_ends_what_it_does_not_want() {
    let progress = run("from: in\nsteps: [{ filter: .a == 1 }]\nto: out", r#"{"a":2}"#).unwrap();
    assert!(progress.emissions.is_empty());
    assert_eq!(progress.ended, 1);
}

#[test]
fn a_mismatch_with_the_schema_names_the_reason() {
    let yaml = "from: in\nsteps: [{ validate: { schema: order } }]\nto: out";
    assert_eq!(out(&run(yaml, r#"{"id":"x"}"#).unwrap()), [("vx.out", r#"{"id":"x"}"#)]);
    let failure = run(yaml, r#"{"id":7}"#).unwrap_err();
    assert_eq!(failure.code, "schema");
    assert!(failure.message.contains("/id"), "{}", failure.message);
}

#[test]
fn a_schema_looks_at_what_earlier_steps_made() {
    let yaml = "from: in\nsteps: [{ map: '.id = \"made\"' }, { validate: { schema: order } }]\nto: out";
    assert_eq!(out(&run(yaml, "{}").unwrap()), [("vx.out", r#"{"id":"made"}"#)]);
}

#[test]
fn a_program_reads_metadata() {
    let yaml =
        "from: in\nsteps: [{ map: '. = { \"s\": %subject, \"i\": %id, \"shop\": %headers.\"X-Shop\" }' }]\nto: out";
    let progress = run(yaml, "{}").unwrap();
    assert_eq!(out(&progress), [("vx.out", r#"{"i":"A-1","s":"in","shop":"kaunas"}"#)]);
}

#[test]
fn a_program_that_fails_names_step_place_and_line() {
    let yaml = "from: in\nsteps:\n  - map: |\n      .b = 1\n      .c = to_int!(.a)\nto: out";
    let failure = run(yaml, r#"{"a":"x"}"#).unwrap_err();
    assert_eq!(failure.code, "expression");
    for part in ["flow/f", "step 1 (map)", "f.yaml steps.0.map+", "to_int!(.a)"] {
        assert!(failure.message.contains(part), "{part} is not in: {}", failure.message);
    }
}

#[test]
fn an_abort_is_told_apart() {
    let yaml = "from: in\nsteps: [{ map: 'abort \"no such customer\"' }]\nto: out";
    let failure = run(yaml, "{}").unwrap_err();
    assert_eq!(failure.code, "aborted");
    assert!(failure.message.contains("no such customer"), "{}", failure.message);
}

#[test]
fn split_keeps_the_order_and_nests() {
    let yaml = "from: in\nsteps: [{ split: .a }, { split: .b }]\nto: out";
    let progress = run(yaml, r#"{"a":[{"b":[1,2]},{"b":[]},{"b":[3]}]}"#).unwrap();
    assert_eq!(out(&progress), [("vx.out", "1"), ("vx.out", "2"), ("vx.out", "3")]);
    assert_eq!(progress.ended, 1, "an empty array ends its part");
}

#[test]
fn one_bad_part_fails_the_whole_message() {
    let yaml = "from: in\nsteps: [{ split: .a }, { map: '. = to_int!(.)' }]\nto: out";
    assert_eq!(run(yaml, r#"{"a":["1","x"]}"#).unwrap_err().code, "expression");
}

#[test]
fn splitting_something_else_says_what_it_is() {
    let failure = run("from: in\nsteps: [{ split: .a }]\nto: out", r#"{"a":{}}"#).unwrap_err();
    assert_eq!(failure.code, "split");
    assert!(failure.message.contains("an object, not an array"), "{}", failure.message);
}

#[test]
fn nested_splits_are_bounded() {
    let yaml = "from: in\nsteps: [{ split: .a }, { map: '. = { \"b\": [1,2,3,4,5,6,7,8,9,10,11,12] }' }, { split: .b }]\nto: out";
    let elements = vec!["0"; 900].join(",");
    let failure = run(yaml, &format!("{{\"a\":[{elements}]}}")).unwrap_err();
    assert_eq!(failure.code, "split");
}

#[test]
fn a_lookup_puts_the_row_where_it_is_told() {
    let yaml = "from: in\nsteps: [{ lookup: { table: vat, key: .country, into: order.vat } }]\nto: out";
    let progress = run(yaml, r#"{"country":"DE"}"#).unwrap();
    assert_eq!(out(&progress), [("vx.out", r#"{"country":"DE","order":{"vat":{"rate":0.19}}}"#)]);
    let number = run(yaml, r#"{"country":7}"#).unwrap();
    assert_eq!(out(&number), [("vx.out", r#"{"country":7,"order":{"vat":"seven"}}"#)]);
}

#[test]
fn a_missing_row_is_null_or_fails_or_ends_the_message() {
    let yaml = |on_missing: &str| {
        format!("from: in\nsteps: [{{ lookup: {{ table: vat, key: .c, into: v{on_missing} }} }}]\nto: out")
    };
    assert_eq!(out(&run(&yaml(""), r#"{"c":"XX"}"#).unwrap()), [("vx.out", r#"{"c":"XX","v":null}"#)]);
    let failure = run(&yaml(", onMissing: fail"), r#"{"c":"XX"}"#).unwrap_err();
    assert_eq!(failure.code, "lookup");
    assert!(failure.message.contains("vat") && failure.message.contains("XX"), "{}", failure.message);
    assert_eq!(run(&yaml(", onMissing: drop"), r#"{"c":"XX"}"#).unwrap().ended, 1);
}

#[test]
fn the_first_arm_that_matches_takes_the_message_and_the_rest_goes_on() {
    let yaml = "
from: in
steps:
  - route:
      - { when: int!(.n) > 10, to: big }
      - { when: int!(.n) > 5, to: middle }
  - map: .small = true
to: out";
    assert_eq!(out(&run(yaml, r#"{"n":11}"#).unwrap()), [("vx.big", r#"{"n":11}"#)]);
    assert_eq!(out(&run(yaml, r#"{"n":6}"#).unwrap()), [("vx.middle", r#"{"n":6}"#)]);
    assert_eq!(out(&run(yaml, r#"{"n":1}"#).unwrap()), [("vx.out", r#"{"n":1,"small":true}"#)]);
}

#[test]
fn without_to_what_no_arm_takes_ends_here() {
    let progress = run("from: in\nsteps: [{ route: [{ when: int!(.n) > 1, to: big }] }]", r#"{"n":1}"#).unwrap();
    assert_eq!((progress.emissions.len(), progress.ended), (0, 1));
}

#[test]
fn dedupe_waits_with_a_key_of_its_own_and_goes_on_when_told() {
    let yaml = "from: in\nsteps: [{ map: .a = 1 }, { dedupe: { key: .id, within: 10m } }, { map: .b = 2 }]\nto: out";
    let pipeline = pipeline(yaml);
    assert!(pipeline.has_dedupe());
    let mut progress = pipeline.start(&message(r#"{"id":"x"}"#)).unwrap();
    assert!(progress.emissions.is_empty());
    let waiting = progress.waiting.pop().unwrap();
    assert_eq!(pipeline.within(&waiting), Duration::from_secs(600));
    let key = waiting.key.clone();
    pipeline.resume(waiting, &mut progress).unwrap();
    assert_eq!(out(&progress), [("vx.out", r#"{"a":1,"b":2,"id":"x"}"#)]);

    // Text "1" and the number 1 are two keys; the same value twice is one.
    let key_of = |payload: &str| pipeline.start(&message(payload)).unwrap().waiting[0].key.clone();
    assert_eq!(key_of(r#"{"id":"x"}"#), key);
    assert_ne!(key_of(r#"{"id":"1"}"#), key_of(r#"{"id":1}"#));
    assert_eq!(pipeline.start(&message(r#"{"id":null}"#)).unwrap_err().code, "dedupe");
}

/// Writes down who told what.
#[derive(Default)]
struct Notes(Mutex<Vec<(&'static str, &'static str)>>);

impl Watch for Notes {
    fn see(&self, message: &Stored, attempt: u32, seen: Seen) {
        assert_eq!((message.sequence, attempt), (1, 3));
        let outcome = match seen.became {
            Became::Passed(_) => "passed",
            Became::Ended => "ended",
            Became::Emitted(_) => "emitted",
            Became::Split { .. } => "split",
            Became::Failed(_) => "failed",
            Became::Delivered => "delivered",
        };
        self.0.lock().unwrap().push((seen.verb, outcome));
    }
}

#[test]
fn who_looks_on_hears_of_every_step_and_of_a_failure_once_and_changes_nothing() {
    let yaml =
        "from: in\nsteps: [{ split: .items }, { dedupe: { key: .id, within: 10m } }, { map: .n = int!(.n) }]\nto: out";
    let pipeline = pipeline(yaml);
    let stamp = Stamp {
        unit: UnitId::new(UnitKind::Flow, "f"),
        digest: "d".to_owned(),
        names: Names::default(),
        message_bytes_max: 1_000,
        transport_ids: false,
    };
    let pass = |payload: &str, watch: Option<&dyn Watch>| {
        let mut passage = Passage::start(&pipeline, message(payload), 3, watch);
        while passage.waits() {
            let own = vec![true; passage.marks(&pipeline, "S").len()];
            passage.resume(&pipeline, &own, watch);
        }
        format!("{:?}", passage.finish(&stamp, Timestamp(0), watch))
    };
    let taken = [
        ("split", "split"),
        ("dedupe", "passed"),
        ("map", "passed"),
        ("to", "emitted"),
        ("dedupe", "ended"),
        ("dedupe", "passed"),
        ("map", "failed"),
    ];
    let items = r#"{"items":[{"id":"a","n":1},{"id":"a","n":2},{"id":"b","n":"x"}]}"#;
    let large = format!(r#"{{"items":[{{"id":"a","n":1,"text":"{}"}}]}}"#, "x".repeat(2_000));
    let too_large = [&taken[..4], &[("unit", "failed")]].concat();
    for (payload, told) in [(items, &taken[..]), ("no JSON", &[("unit", "failed")]), (&large, &too_large)] {
        let notes = Notes::default();
        assert_eq!(pass(payload, Some(&notes)), pass(payload, None));
        assert_eq!(*notes.0.lock().unwrap(), told);
    }
}
