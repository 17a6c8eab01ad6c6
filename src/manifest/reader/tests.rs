use super::origin::Origin;
use super::tree::Step;
use super::*;
use crate::manifest::problem::Position;

fn only(text: &str) -> Document {
    let read = read("a.yaml", text.as_bytes());
    assert!(read.problems.is_empty(), "{:?}", read.problems);
    assert_eq!(read.documents.len(), 1);
    read.documents.into_iter().next().unwrap()
}

fn codes(bytes: &[u8]) -> Vec<(Code, Option<Position>)> {
    read("a.yaml", bytes).problems.iter().map(|p| (p.code, p.place.start())).collect()
}

fn at(line: usize, column: usize) -> Option<Position> {
    Some(Position { line, column })
}

#[test]
fn empty_documents_and_comments_are_no_documents_but_count() {
    let read = read("a.yaml", b"# only\n---\n# nothing\n---\na: 1\n---\n...\n");
    assert!(read.problems.is_empty(), "{:?}", read.problems);
    assert_eq!(read.documents.iter().map(|d| d.index).collect::<Vec<_>>(), [1]);
    assert!(super::read("a.yaml", b"").documents.is_empty());
    assert!(super::read("a.yaml", b"# c\n").documents.is_empty());
    assert!(super::read("a.yaml", b"\xef\xbb\xbf").documents.is_empty());
}

#[test]
fn a_mark_and_crlf_change_no_position() {
    let document = only("\u{feff}a: 1\r\nb:\r\n  c: two\r\n");
    let source = Source::new("a.yaml", "a: 1\r\nb:\r\n  c: two\r\n");
    let node = document.root.at(&[Step::Key("b"), Step::Key("c")]).unwrap();
    assert_eq!(source.position(node.region.start), Position { line: 3, column: 6 });
    assert_eq!(node.text(), Some("two"));
}

#[test]
fn duplicate_keys_name_both_places() {
    let read = read("a.yaml", b"a: 1\nb: 2\na: 3\n");
    let problem = &read.problems[0];
    assert_eq!((problem.code, problem.place.start()), (Code::DuplicateKey, at(3, 1)));
    assert_eq!(problem.labels[0].place.start(), at(1, 1));
    assert!(read.documents[0].damaged);
}

#[test]
fn duplicate_keys_are_found_in_long_mappings_too() {
    let mut text: String = (0..50).map(|n| format!("k{n}: 1\n")).collect();
    text.push_str("k3: 2\nk15: 2\nk49: 2\n");
    assert_eq!(codes(text.as_bytes()).len(), 3);
}

#[test]
fn merged_keys_give_way_to_written_ones_and_earlier_merges_win() {
    let document = only("u: &u { a: 1, b: 1 }\nv: &v { b: 2, c: 2 }\nz:\n  <<: [*u, *v]\n  a: 0\n");
    let z = document.root.get("z").unwrap().to_json();
    assert_eq!(z, serde_json::json!({ "a": 0, "b": 1, "c": 2 }));
}

#[test]
fn billion_laughs_are_refused_within_the_budget() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..60 {
        let aliases = vec![format!("*a{}", n - 1); 10].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{aliases}]\n"));
    }
    assert_eq!(codes(text.as_bytes()).iter().map(|c| c.0).collect::<Vec<_>>(), [Code::TooMuch]);
}

#[test]
fn deep_nesting_is_refused_without_overflowing() {
    let text = "[".repeat(100_000);
    assert_eq!(codes(text.as_bytes())[0].0, Code::TooMuch);
    let text = format!("{}1{}", "[".repeat(150), "]".repeat(150));
    assert_eq!(codes(text.as_bytes())[0].0, Code::TooMuch);
}

#[test]
fn an_alias_inside_its_own_anchor_is_refused() {
    assert_eq!(codes(b"a: &a [1, *a]\n"), [(Code::Unsupported, at(1, 11))]);
}

#[test]
fn bytes_that_are_no_text_are_named_by_their_offset() {
    let read = read("a.yaml", b"a: 1\nb: \xff\n");
    assert_eq!((read.problems[0].code, read.problems[0].place.start()), (Code::NotUtf8, at(2, 4)));
    assert!(read.problems[0].message.contains("byte 8"), "{}", read.problems[0].message);
}

#[test]
fn a_tab_as_indentation_is_said_to_be_one() {
    let read = read("a.yaml", b"a:\n\tb: 1\n");
    assert_eq!(read.problems[0].code, Code::Syntax);
    assert!(read.problems[0].help.as_deref().unwrap().contains("tab"));
}

#[test]
fn a_document_behind_a_broken_one_is_read() {
    let read = read("a.yaml", b"a: [1\n---\nb: 2\n");
    assert_eq!(read.problems.len(), 1);
    assert_eq!(read.documents.len(), 1);
    assert!(read.documents[0].root.get("b").is_some());
}

/// Every word of the decoded text is found where it was written.
#[test]
fn positions_in_scalars_of_every_style() {
    for text in [
        "a:\n  map: |\n    one = 1\n    two\n\n      three\n",
        "a:\r\n  map: |\r\n    one = 1\r\n    two\r\n\r\n      three\r\n",
        "a:\n  map: |2-\n    one\n    two\n    three\n",
        "a:\n  map: >\n    one\n    two\n\n    three\n",
        "a:\n  map: one\n    two\n\n    three\n",
        "a:\n  map: 'one ''\n    two''s\n\n    three'\n",
        "a:\n  map: \"one \\\" \\n two\n    \\x41 \\\n    three\"\n",
        "a: { map: one two three }\n",
    ] {
        let read = read("a.yaml", text.as_bytes());
        let node = read.documents[0].root.at(&[Step::Key("a"), Step::Key("map")]).unwrap();
        let origin = Origin::of(&read.source, node).unwrap();
        let decoded = node.text().unwrap();
        for word in ["one", "two", "three"] {
            let offset = decoded.find(word).unwrap();
            let region = origin.region_in_file(offset, offset + word.len());
            assert_eq!(&read.source.text[region.range()], word, "{text:?} is {decoded:?}");
        }
    }
}
