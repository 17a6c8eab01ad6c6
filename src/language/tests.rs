//! The language as the rest of the program uses it.

use std::sync::Arc;
use std::thread;

use serde_json::json;

use super::catalogue::WITHHELD;
use super::*;

/// A worker thread's stack.
const WORKER_STACK_BYTES: usize = 2 * 1024 * 1024;

fn tables() -> Tables {
    let row = |rate: &str| json::from_slice(format!("{{\"rate\":{rate},\"name\":\"x\"}}").as_bytes()).unwrap();
    let rows = [("DE".to_owned(), row("0.19")), ("FR".to_owned(), row("0.2"))];
    Tables::from([("vat".to_owned(), Arc::new(Table::new("vat", rows, [7; 32])))])
}

fn compile_typed(source: &str, purpose: Purpose, event: &EventType) -> Result<Arc<Program>, Vec<Fault>> {
    Compiler::new().compile(source, purpose, &Environment { event, tables: &tables() })
}

fn compile(source: &str, purpose: Purpose) -> Result<Arc<Program>, Vec<Fault>> {
    compile_typed(source, purpose, &EventType::any())
}

fn program(source: &str) -> Arc<Program> {
    compile(source, Purpose::Program).unwrap_or_else(|faults| panic!("{source}: {faults:#?}"))
}

fn fault(source: &str, purpose: Purpose) -> Fault {
    compile(source, purpose).expect_err(source).into_iter().next().unwrap()
}

fn input(event: &str) -> Input {
    Input { event: json::from_slice(event.as_bytes()).unwrap(), meta: Meta::default() }
}

fn run(source: &str, event: &str) -> Result<String, RunFault> {
    let mut input = input(event);
    program(source).run(&mut input)?;
    Ok(String::from_utf8(json::to_bytes(&input.event).to_vec()).unwrap())
}

fn order_type() -> EventType {
    EventType::from_json_schema(&json!({
        "type": "object", "required": ["id", "qty"],
        "properties": {"id": {"type": "string"}, "qty": {"type": "integer"}}
    }))
}

#[test]
fn an_order_is_priced_with_a_table() {
    let source = r#"
        vat = table("vat", .country)
        rate = float(vat.rate) ?? 0.0
        .items = map_values(array!(.items)) -> |item| {
            item = object!(item)
            item.total = round(to_float!(item.qty) * to_float!(item.price), precision: 2)
            item
        }
        sum = 0.0
        for_each(array!(.items)) -> |_, item| { sum = sum + to_float!(item.total) }
        .net = sum
        .gross = round(sum * (1.0 + rate), precision: 2)
    "#;
    let priced = run(source, r#"{"country":"DE","items":[{"qty":2,"price":9.5},{"qty":1,"price":1}]}"#).unwrap();
    let expected = r#"{"country":"DE","gross":23.8,"items":[{"price":9.5,"qty":2,"total":19.0},{"price":1,"qty":1,"total":1.0}],"net":20.0}"#;
    assert_eq!(priced, expected);
}

#[test]
fn the_schema_alone_makes_a_program_acceptable() {
    let source = ".id = upcase(.id)\n.double = .qty * 2";
    let typed = compile_typed(source, Purpose::Program, &order_type()).unwrap();
    let wanted = EventType::from_json_schema(&json!({
        "type": "object", "required": ["id", "double"],
        "properties": {"id": {"type": "string"}, "double": {"type": "boolean"}}
    }));
    let conflict = typed.output().can_never_match(&wanted).unwrap();
    assert_eq!((conflict.path.as_str(), conflict.found.as_str()), (".double", "integer"));
    let faults = compile(source, Purpose::Program).unwrap_err();
    assert_eq!(faults.len(), 2, "{faults:#?}");
}

#[test]
fn a_fault_points_at_its_place_in_a_program_of_several_lines() {
    let source = "# größer\n.a = 1\n.b = parse_int(.text)\n";
    let fault = fault(source, Purpose::Program);
    assert_eq!(&source[fault.span.clone()], "parse_int(.text)", "{fault:#?}");
    assert!(!fault.message.contains('\u{1b}'));
}

#[test]
fn all_faults_are_reported_in_one_pass_with_those_of_the_compiler() {
    let source = ".a = now()\n.b = parse_int(.c)\n.d = upcse(.e)\n";
    let places: Vec<&str> =
        compile(source, Purpose::Program).unwrap_err().iter().map(|f| &source[f.span.clone()]).collect();
    assert_eq!(places, ["now", "parse_int(.c)", "upcse"]);
}

#[test]
fn no_withheld_function_compiles() {
    for (name, _) in WITHHELD {
        let fault = fault(&format!(".x = {name}(.y)"), Purpose::Program);
        assert!(fault.message.starts_with(&format!("`{name}` is not offered: ")), "{}", fault.message);
        assert_eq!(fault.span, 5..5 + name.len());
    }
    let now = fault("now()", Purpose::Program);
    assert_eq!(now.message, "`now` is not offered: programs must give the same result on every run");
    assert!(now.help.unwrap().contains("%time"));
}

#[test]
fn an_inner_function_cannot_be_named() {
    for source in [".x = +(1)", ".x = =read(1)", "*(\"\", 0, 0) -> || { 1 }"] {
        assert!(compile(source, Purpose::Program).is_err(), "{source}");
    }
}

#[test]
fn an_unknown_table_is_a_fault_at_its_name_with_a_suggestion() {
    let source = ".x = table(\"vaat\", .country)";
    let unknown = fault(source, Purpose::Program);
    assert_eq!(&source[unknown.span], "\"vaat\"");
    assert_eq!(unknown.help.as_deref(), Some("did you mean `vat`?"));
    assert_eq!(fault("table(\"zzz\", 1)", Purpose::Value).help.as_deref(), Some("tables that are declared: vat"));
    assert!(fault("table(.name, 1)", Purpose::Value).message.contains("written out"));
}

#[test]
fn a_row_has_the_type_of_the_tables_rows_or_is_null() {
    assert_eq!(compile("table(\"vat\", .c)", Purpose::Value).unwrap().output().to_string(), "object or null");
    assert_eq!(run(".r = table(\"vat\", .c).rate", r#"{"c":"XX"}"#).unwrap(), r#"{"c":"XX","r":null}"#);
}

#[test]
fn a_condition_has_to_be_boolean() {
    let condition = compile(".total == 3", Purpose::Condition).unwrap();
    assert!(condition.run(&mut input(r#"{"total":3}"#)).unwrap().is_true());
    assert!(!condition.run(&mut input(r#"{"total":4}"#)).unwrap().is_true());
    let fault = fault("true\n.total", Purpose::Condition);
    assert_eq!(
        (fault.span.clone(), fault.message.as_str()),
        (5..11, "a condition has to be true or false, this is any")
    );
    assert!(fault.help.is_some());
}

#[test]
fn a_condition_or_value_cannot_change_the_event_and_nothing_changes_the_metadata() {
    for source in [".a = 1\ntrue", "del(.a)\ntrue", ". = {}\ntrue", "%id = \"x\"\ntrue"] {
        assert!(compile(source, Purpose::Condition).is_err(), "{source}");
        assert!(compile(source, Purpose::Value).is_err(), "{source}");
    }
    assert!(compile("%id = \"x\"", Purpose::Program).is_err());
    assert!(compile("x = 1\nx == 1", Purpose::Condition).is_ok());
}

#[test]
fn metadata_is_read_and_known_to_be_needed() {
    let source = ".s = %subject\n.i = %id\n.t = %time\n.h = %headers.team\n.n = %headers.none";
    let program = program(source);
    assert!(program.uses_meta());
    assert!(!super::tests::program(".a = 1").uses_meta());
    let meta = Meta {
        subject: "orders.raw".into(),
        id: "7".into(),
        time: crate::time::Timestamp::parse("2026-11-30T20:00:00Z").unwrap(),
        headers: [("team".to_owned(), "ops".to_owned())].into(),
    };
    let mut input = Input { event: Value::Object(ObjectMap::new()), meta };
    program.run(&mut input).unwrap();
    let expected = r#"{"h":"ops","i":"7","n":null,"s":"orders.raw","t":"2026-11-30T20:00:00Z"}"#;
    assert_eq!(json::to_bytes(&input.event), expected);
}

#[test]
fn abort_and_run_time_errors_say_what_and_where() {
    let source = "x = 1\nif .n == null { abort \"no n\" }\n.m = to_int!(.n)";
    let aborted = run(source, "{}").unwrap_err();
    assert!(aborted.aborted);
    assert_eq!((aborted.message.as_str(), &source[aborted.span.unwrap()]), ("no n", "abort"));
    let failed = run(source, r#"{"n":"x"}"#).unwrap_err();
    assert!(!failed.aborted);
    assert_eq!(&source[failed.span.unwrap()], "to_int!(.n)");
    assert!(failed.message.contains("Invalid integer"), "{}", failed.message);
}

#[test]
fn wrapping_does_not_change_what_operators_mean() {
    let source = r#"
        .sum = 1 + 2 * 3
        .text = "a" + "b" * 3
        .both = { "x": 1 } | { "y": [1, .sum] }
        .both |= { "z": "{{ t }}" }
        .safe = (parse_int(.bad) + 1) ?? 9
        .or = .none || "dflt"
    "#
    .replace("{{ t }}", "z");
    let expected = r#"{"bad":"q","both":{"x":1,"y":[1,7],"z":"z"},"or":"dflt","safe":9,"sum":7,"text":"abbb"}"#;
    assert_eq!(run(&source, r#"{"bad":"q"}"#).unwrap(), expected);
    assert_eq!(run("t = \"q\"\n.a = \"{{ t }}-{{ t }}\"", "{}").unwrap(), r#"{"a":"q-q"}"#);
    assert_eq!(run(".a = replace(.a, r'(b)c', \"<$1>\") ?? 0", r#"{"a":"abcbc"}"#).unwrap(), r#"{"a":"a<b><b>"}"#);
    assert_eq!(run(".a = replace(\"aaa\", \"a\", \"b\", 2)", "{}").unwrap(), r#"{"a":"bba"}"#);
    assert_eq!(run(".a = join!([\"a\", .b], \"-\")", r#"{"b":"b"}"#).unwrap(), r#"{"a":"a-b","b":"b"}"#);
}

/// Runs on a small stack and tells the message; what it proves besides is that the process goes on.
fn stops(source: &str, event: &str) -> String {
    let (source, event) = (source.to_owned(), event.to_owned());
    let worker = thread::Builder::new().stack_size(WORKER_STACK_BYTES);
    worker.spawn(move || run(&source, &event).expect_err(&source).message).unwrap().join().unwrap()
}

#[test]
fn a_program_that_doubles_is_stopped() {
    let doubled = |line: &str| format!("x = \"0123456789\"\n{}.x = x", format!("{line}\n").repeat(40));
    let large = "a value is larger than 8388608 bytes";
    // Small items take more memory than text: their sum is reached first.
    let many = "the program makes values of more than 268435456 bytes";
    assert_eq!(stops(&doubled("x = x + x"), "{}"), large);
    assert_eq!(stops(&doubled("x = \"{{ x }}{{ x }}\""), "{}"), large);
    assert_eq!(stops(&doubled("x = replace(x, \"0\", \"0000000000\")"), "{}"), large);
    assert_eq!(stops(&doubled("x = join([x, x, x])"), "{}"), large);
    assert_eq!(stops("x = \"x\" * 10000000000000\n.x = x", "{}"), large);
    assert_eq!(stops("n = int!(.n)\n.x = \"x\" * n", r#"{"n":9000000000000000000}"#), large);
    assert_eq!(stops(&format!("x = [1]\n{}", "x = [x, x]\n".repeat(40)), "{}"), many);
    assert_eq!(stops(&format!(".x = [1]\n{}", ".x = {\"a\": .x, \"b\": .x}\n".repeat(40)), "{}"), many);
    assert_eq!(stops("x = [1]\nfor_each(array!(.l)) -> |_, v| { x = append(x, x) }", &list(40)), many);
}

#[test]
fn a_type_that_doubles_is_widened_whatever_else_is_wrong_with_the_program() {
    let doubled = "x = [x, x]\n".repeat(30);
    assert!(compile(&format!("x = [1]\n{doubled}.x = x"), Purpose::Program).is_ok());
    assert!(fault(&format!("x = [1]\n{doubled}.x = parse_int(.y)"), Purpose::Program).message.contains("fallible"));
    assert!(fault(&format!("x = [1]\n{doubled}.x = now()"), Purpose::Program).message.contains("not offered"));
    let mapped = format!("x = {{\"a\": 1, \"b\": 2}}\n{}", "x = map_values(x) -> |v| { x }\n".repeat(20));
    assert!(compile(&mapped, Purpose::Program).is_ok());
}

#[test]
fn a_type_that_nests_in_itself_is_widened() {
    for line in [". = merge(object!(.), {\"self\": .})\n", ".x = {\"self\": .x}\n", "x = [x]\n"] {
        assert!(compile(&format!("x = 1\n{}", line.repeat(60)), Purpose::Program).is_ok(), "{line}");
    }
}

#[test]
fn many_large_values_are_stopped_by_their_sum() {
    let first = "x = split(\"a \" * 100000, \" \")\n".to_owned();
    let many = (0..200).fold(first, |source, n| source + &format!("x{n} = x\n"));
    assert_eq!(stops(&many, "{}"), "the program makes values of more than 268435456 bytes");
}

#[test]
fn a_loop_that_replaces_its_variable_may_go_on_for_long() {
    let source = "out = []\nfor_each(array!(.l)) -> |_, v| { out = push(out, {\"v\": v}) }\n. = length(out)";
    assert_eq!(run(source, &list(1500)).unwrap(), "1500");
}

#[test]
fn work_depth_and_numbers_are_bounded() {
    let nested = "for_each(array!(.l)) -> |_, a| { for_each(array!(.l)) -> |_, b| { for_each(array!(.l)) -> |_, c| { x = 1 } } }";
    assert!(stops(nested, &list(1000)).contains("evaluates more than"));
    assert!(stops("x = []\nfor_each(array!(.l)) -> |_, v| { x = [x] }\n.x = x", &list(5000)).contains("nested deeper"));
    assert!(fault("range(0, 100000000)", Purpose::Value).message.contains("beyond 10000"));
    assert!(stops("n = int!(.n)\n.x = range!(0, n)", r#"{"n":100000000}"#).contains("beyond the 10000"));
    assert!(stops("n = int!(.n)\n. = set!(., [\"a\", n], 1)", r#"{"n":100000000}"#).contains("beyond the 10000"));
    assert!(fault(".x[100000000] = 1", Purpose::Program).message.contains("an index beyond"));
    assert!(
        stops("s = string!(.s)\n.x = flatten({\"a\": s, \"b\": s})", &format!("{{\"s\":\"{}\"}}", "x".repeat(40_000)))
            .contains("an argument is larger")
    );
}

#[test]
fn a_limit_cannot_be_caught_by_the_program() {
    let message = stops("x = \"0123456789\" * 800000\n.y, err = x + x + .n\n.z = (x + x + .n) ?? 1", "{}");
    assert!(message.contains("a value is larger"), "{message}");
}

fn list(items: usize) -> String {
    format!("{{\"l\":[{}]}}", vec!["1"; items].join(","))
}

#[test]
fn hostile_texts_are_faults_and_never_the_end_of_the_process() {
    let chain = |part: &str, times: usize| format!(".x = 1{}", part.repeat(times));
    let texts = [
        "!".repeat(3000) + "true",
        "-".repeat(3000) + "1",
        "(".repeat(3000),
        "[".repeat(30_000),
        chain(" + 1", 15_000),
        chain(" ?? 1", 10_000),
        "if true { 1 } ".to_owned() + &"else if true { 1 } ".repeat(3000),
        ".".repeat(60_000),
        ".a".repeat(30_000),
        "\"".to_owned() + &"{{ a }}".repeat(9000) + "\"",
        "x".repeat(SOURCE_BYTES_MAX + 1),
        "\u{0}\u{fffd}'".to_owned(),
    ];
    for text in texts {
        let start: String = text.chars().take(20).collect();
        assert!(compile(&text, Purpose::Program).is_err(), "{start}");
    }
}

#[test]
fn the_deepest_allowed_program_runs_on_the_deepest_event_on_a_workers_stack() {
    let chain = format!(".x = \"a\"{}", " + \"b\"".repeat(150));
    let calls = format!(".y = {}\"a\"{}", "upcase(".repeat(30), ")".repeat(30));
    let loops = format!("{} .z = 1 {}", "for_each([1]) -> |_, v| { ".repeat(15), "}".repeat(15));
    let source = format!(
        "{chain}\n{calls}\n{loops}\nw = .e\n.f = w == .e\n.g = flatten([.e])\n.e = map_values(array!(.e), recursive: true) -> |v| {{ v }}\n"
    );
    let program = program(&source);
    let event = format!("{{\"e\":{}1{}}}", "[".repeat(120), "]".repeat(120));
    let worker = thread::Builder::new().stack_size(WORKER_STACK_BYTES);
    let run = worker.spawn(move || program.run(&mut input(&event)).map(|_| ()));
    assert_eq!(run.unwrap().join().unwrap(), Ok(()));
}

#[test]
fn the_same_program_on_the_same_event_gives_the_same_bytes() {
    let source = "
        .a = keys(object!(.o))
        .b = encode_json(.o)
        .c = unique(array!(.l))
        .t = parse_timestamp!(\"2026-01-02 03:04\", \"%Y-%m-%d %H:%M\")
        .u = tally(.names) ?? {}
    ";
    let event = r#"{"o":{"z":1,"a":{"q":2,"b":3}},"l":[3,1,3,2],"names":["x","y","x","z"]}"#;
    let first = run(source, event).unwrap();
    assert!(first.contains("2026-01-02T03:04:00Z"), "{first}");
    for _ in 0..20 {
        assert_eq!(run(source, event).unwrap(), first);
    }
}

#[test]
fn a_program_is_compiled_once_for_the_same_text_and_surroundings() {
    let compiler = Compiler::new();
    let (any, order, none) = (EventType::any(), order_type(), Tables::new());
    let tables = tables();
    let compile =
        |source, purpose, event, tables| compiler.compile(source, purpose, &Environment { event, tables }).unwrap();
    let first = compile("true", Purpose::Condition, &any, &none);
    assert!(Arc::ptr_eq(&first, &compile("true", Purpose::Condition, &any, &tables)));
    assert!(!Arc::ptr_eq(&first, &compile("true", Purpose::Value, &any, &none)));
    assert!(!Arc::ptr_eq(&first, &compile("true", Purpose::Condition, &order, &none)));
    let looked_up = compile("table(\"vat\", 1)", Purpose::Value, &any, &tables);
    let other = Tables::from([("vat".to_owned(), Arc::new(Table::new("vat", [], [8; 32])))]);
    assert!(!Arc::ptr_eq(&looked_up, &compile("table(\"vat\", 1)", Purpose::Value, &any, &other)));
}

#[test]
fn variables_of_one_run_are_gone_in_the_next() {
    let program = program("if .first == true { x = 1 }\n.x = .y");
    program.run(&mut input(r#"{"first":true}"#)).unwrap();
    let mut second = input("{}");
    program.run(&mut second).unwrap();
    assert_eq!(json::to_bytes(&second.event), r#"{"x":null}"#);
}

#[test]
fn compiling_nested_calls_takes_no_more_than_linear_work() {
    // Twenty nested calls took minutes before the type of a call was worked out once.
    let source = format!(".x = {}string!(.s){}", "upcase(".repeat(25), ")".repeat(25));
    assert_eq!(run(&source, r#"{"s":"a"}"#).unwrap(), r#"{"s":"a","x":"A"}"#);
}
