//! JSON in and out of a [`Value`], without a detour.
//!
//! Integers that fit 64 bits stay integers, other numbers become floats. Of a repeated key the last one counts.
//! Nesting is bounded (128 levels) by the parser, which is what keeps programs that walk an event off the stack's end.

use std::io;

use bytes::Bytes;

use super::Value;

/// Text that is not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} at line {line} column {column}")]
pub struct JsonError {
    /// From 1.
    pub line: usize,
    /// From 1, in bytes.
    pub column: usize,
    pub message: String,
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let message = match text.rfind(" at line ") {
            Some(end) => text[..end].to_owned(),
            None => text,
        };
        JsonError { line, column, message }
    }
}

pub fn from_slice(text: &[u8]) -> Result<Value, JsonError> {
    Ok(serde_json::from_slice(text)?)
}

/// Compact. Bytes that are no UTF-8 are written with replacement characters.
pub fn to_bytes(value: &Value) -> Bytes {
    let mut text = Vec::with_capacity(512);
    // Writing a value into memory cannot fail: keys are strings and floats are never NaN.
    to_writer(&mut text, value).expect("a value can be written to memory");
    Bytes::from(text)
}

/// Fails only when the writer does.
pub fn to_writer(writer: impl io::Write, value: &Value) -> io::Result<()> {
    serde_json::to_writer(writer, value).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back_compact_with_the_last_of_repeated_keys_and_numbers_kept() {
        let value = from_slice(br#" { "b" : [1, 2.5, -3, 9223372036854775808, null, true], "a": 1, "a": "\u00e9" } "#);
        let text = to_bytes(&value.unwrap());
        assert_eq!(
            std::str::from_utf8(&text).unwrap(),
            "{\"a\":\"é\",\"b\":[1,2.5,-3,9.223372036854776e+18,null,true]}"
        );
    }

    #[test]
    fn an_error_says_where() {
        let error = from_slice(b"{\n  \"a\": x}").unwrap_err();
        assert_eq!((error.line, error.column), (2, 8));
        assert_eq!(error.message, "expected value");
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused_and_not_followed() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(from_slice(deep(127).as_bytes()).is_ok());
        assert!(from_slice(deep(129).as_bytes()).is_err());
        assert!(from_slice(deep(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn bytes_after_the_value_are_refused() {
        assert!(from_slice(b"{} {}").is_err());
    }
}
