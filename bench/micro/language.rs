//! Events per second on one core: parse, run, serialise. `cargo bench --bench language`.

#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use vejas::language::{Compiler, Environment, EventType, Input, Meta, Program, Purpose, Table, Tables, json};

const ORDER: &str = r#"{"id":"A-10045","country":"DE","customer":{"id":"c-778","name":"Muster GmbH","vip":false},"currency":"EUR","created":"2026-11-30T20:52:00Z","items":[{"sku":"x-100","qty":2,"price":9.5},{"sku":"y-200","qty":1,"price":120.0},{"sku":"z-300","qty":12,"price":0.35}],"note":"ring twice"}"#;

const MAPPING: &str = r#"
vat = table("vat", .country)
rate = float(vat.rate) ?? 0.0
net = 0.0
.items = map_values(array!(.items)) -> |item| {
    item = object!(item)
    item.total = round(to_float!(item.qty) * to_float!(item.price), precision: 2)
    net = net + to_float!(item.total)
    item
}
.net = net
.vat = round(net * rate, precision: 2)
.gross = round(net * (1.0 + rate), precision: 2)
"#;

const ONE_LINE: &str = r#".vat = table("vat", .country).rate"#;

const MEASURED: Duration = Duration::from_secs(3);

fn main() {
    let rows = [("DE", "0.19"), ("FR", "0.2"), ("AT", "0.2")].map(|(key, rate)| {
        (key.to_owned(), json::from_slice(format!("{{\"rate\":{rate}}}").as_bytes()).expect("json"))
    });
    let tables = Tables::from([("vat".to_owned(), Arc::new(Table::new("vat", rows, [0; 32])))]);
    let compiler = Compiler::new();
    println!("{} bytes per event", ORDER.len());
    for (name, source) in
        [("order mapping", MAPPING), ("one-line map and lookup", ONE_LINE), ("parse and serialise", ".")]
    {
        let environment = Environment { event: &EventType::any(), tables: &tables };
        let began = Instant::now();
        let program = compiler.compile(source, Purpose::Program, &environment).expect("the program compiles");
        let compiled = began.elapsed();
        println!("{name:<26} {:>9.0} events/s   compiled in {compiled:.1?}", measure(&program));
    }
}

fn measure(program: &Program) -> f64 {
    let began = Instant::now();
    let (mut events, mut bytes) = (0_u32, 0);
    while began.elapsed() < MEASURED {
        for _ in 0..1000 {
            let event = json::from_slice(ORDER.as_bytes()).expect("the order is JSON");
            let mut input = Input { event, meta: Meta::default() };
            program.run(&mut input).expect("the program runs");
            bytes += json::to_bytes(&input.event).len();
        }
        events += 1000;
    }
    assert!(bytes > 0);
    f64::from(events) / began.elapsed().as_secs_f64()
}
