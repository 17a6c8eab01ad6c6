//! The path template of a file sink. Pure.
//!
//! Values come from messages: a value never holds a separator and never begins with a dot, so it cannot leave its
//! place in the path.

use std::path::PathBuf;

use crate::flow::message::{self, Stored};
use crate::id::{Names, UnitId};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Subject,
    Unit,
    /// Bytes of the RFC 3339 text of the message's time.
    Time(usize, usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the path is empty")]
    Empty,
    #[error("`{{` in the path is not closed by `}}`")]
    NotClosed,
    #[error(
        "`{{{0}}}` in the path is unknown; there are {{subject}}, {{unit}}, {{year}}, {{month}}, {{day}} and {{hour}}"
    )]
    Unknown(String),
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::Empty);
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or(Error::NotClosed)?;
            pieces.push(Piece::Text(before.to_owned()));
            pieces.push(match name {
                "subject" => Piece::Subject,
                "unit" => Piece::Unit,
                "year" => Piece::Time(0, 4),
                "month" => Piece::Time(5, 7),
                "day" => Piece::Time(8, 10),
                "hour" => Piece::Time(11, 13),
                _ => return Err(Error::Unknown(name.to_owned())),
            });
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Template(pieces))
    }

    pub fn path(&self, message: &Stored, unit: &UnitId, names: &Names) -> PathBuf {
        let entered = message.headers.get(message::TIME).and_then(Timestamp::parse).unwrap_or(message.time);
        let time = entered.to_string();
        let mut path = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => path.push_str(text),
                Piece::Subject => path.push_str(&sanitised(names.written(message.first_subject()))),
                Piece::Unit => path.push_str(&sanitised(&unit.name)),
                Piece::Time(from, to) => path.push_str(&sanitised(time.get(*from..*to).unwrap_or("0"))),
            }
        }
        PathBuf::from(path)
    }
}

fn sanitised(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    value.chars().enumerate().map(|(at, c)| if plain(c) && (at > 0 || c != '.') { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::flow::message::Headers;
    use crate::id::UnitKind;

    fn path(template: &str, subject: &str) -> PathBuf {
        let message = Stored {
            sequence: 1,
            subject: subject.to_owned(),
            headers: Headers::default(),
            payload: Bytes::new(),
            time: Timestamp::parse("2026-11-30T21:05:00Z").unwrap(),
        };
        Template::parse(template).unwrap().path(&message, &UnitId::new(UnitKind::Sink, "log"), &Names::default())
    }

    #[test]
    fn placeholders_are_filled_from_the_message() {
        let filled = path("out/{unit}/{year}-{month}-{day}/{hour}/{subject}.ndjson", "vx.orders.raw");
        assert_eq!(filled, PathBuf::from("out/log/2026-11-30/21/orders.raw.ndjson"));
        assert_eq!(Template::parse("{x}"), Err(Error::Unknown("x".to_owned())));
        assert_eq!(Template::parse("a{unit"), Err(Error::NotClosed));
    }

    proptest! {
        #[test]
        fn no_subject_leaves_its_place(subject in "\\PC{0,20}|[./]{1,8}") {
            let filled = path("base/x{subject}", &format!("vx.{subject}"));
            prop_assert_eq!(filled.parent(), Some(std::path::Path::new("base")));
            let filled = path("base/{subject}", &format!("vx.{subject}"));
            prop_assert!(filled.starts_with("base"));
            prop_assert!(filled.components().all(|part| matches!(part, std::path::Component::Normal(_))));
        }
    }
}
