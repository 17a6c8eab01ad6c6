//! Changes to a text that keep most of it: what gets past the first check and into the corners.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Bytes that are printed as text when a case fails.
#[derive(Clone)]
pub struct Text(pub Vec<u8>);

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

#[derive(Debug, Clone)]
pub enum Mutation {
    Delete(Index, usize),
    /// Repeats a stretch where it stands.
    Repeat(Index, usize, usize),
    /// Repeats a whole line.
    RepeatLine(Index, usize),
    Insert(Index, Vec<u8>),
    Replace(Index, usize, Vec<u8>),
    Swap(Index, Index, usize),
    Truncate(Index),
}

pub fn mutations(dictionary: &'static [&'static str]) -> impl Strategy<Value = Vec<Mutation>> {
    let token = || {
        prop_oneof![
            4 => any::<Index>().prop_map(|at| at.get(dictionary).as_bytes().to_vec()),
            1 => vec(any::<u8>(), 1..8),
        ]
    };
    let mutation = prop_oneof![
        3 => (any::<Index>(), 1..40_usize).prop_map(|(at, length)| Mutation::Delete(at, length)),
        2 => (any::<Index>(), 1..30_usize, 1..60_usize).prop_map(|(at, n, times)| Mutation::Repeat(at, n, times)),
        1 => (any::<Index>(), 1..100_usize).prop_map(|(at, times)| Mutation::RepeatLine(at, times)),
        4 => (any::<Index>(), token()).prop_map(|(at, token)| Mutation::Insert(at, token)),
        4 => (any::<Index>(), 1..20_usize, token()).prop_map(|(at, n, token)| Mutation::Replace(at, n, token)),
        1 => (any::<Index>(), any::<Index>(), 1..30_usize).prop_map(|(a, b, n)| Mutation::Swap(a, b, n)),
        1 => any::<Index>().prop_map(Mutation::Truncate),
    ];
    vec(mutation, 0..6)
}

pub fn apply(mut bytes: Vec<u8>, mutations: &[Mutation]) -> Vec<u8> {
    for mutation in mutations {
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
        let length = bytes.len();
        let stretch = |at: &Index, n: usize| {
            let start = at.index(length);
            start..(start + n).min(length)
        };
        match mutation {
            Mutation::Delete(at, n) => drop(bytes.drain(stretch(at, *n))),
            Mutation::Repeat(at, n, times) => {
                let range = stretch(at, *n);
                let copy = bytes[range.clone()].repeat(*times);
                bytes.splice(range.end..range.end, copy);
            }
            Mutation::RepeatLine(at, times) => {
                let at = at.index(length);
                let start = bytes[..at].iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
                let end = bytes[at..].iter().position(|b| *b == b'\n').map_or(length, |newline| at + newline + 1);
                let copy = bytes[start..end].repeat(*times);
                bytes.splice(end..end, copy);
            }
            Mutation::Insert(at, token) => {
                let at = at.index(length);
                bytes.splice(at..at, token.iter().copied());
            }
            Mutation::Replace(at, n, token) => _ = bytes.splice(stretch(at, *n), token.iter().copied()),
            Mutation::Swap(a, b, n) => {
                let (a, b) = (stretch(a, *n), stretch(b, *n));
                let (one, other) = (bytes[a.clone()].to_vec(), bytes[b.clone()].to_vec());
                let (first, second) = if a.start <= b.start { ((a, other), (b, one)) } else { ((b, one), (a, other)) };
                if first.0.end <= second.0.start {
                    bytes.splice(second.0, second.1);
                    bytes.splice(first.0, first.1);
                }
            }
            Mutation::Truncate(at) => bytes.truncate(at.index(length)),
        }
    }
    bytes
}
