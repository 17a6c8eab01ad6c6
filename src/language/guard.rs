//! What is checked on a program's text before the parser sees it.
//!
//! The parser and the compiler recurse over what they read. These bounds keep that recursion small whatever the
//! text says. Depth that needs no brackets, as in `1 + 1 + 1 + …`, is bounded by `rewrite` on the parsed program.

use super::fault::Fault;

/// Longest program, in bytes.
pub const SOURCE_BYTES_MAX: usize = 64 * 1024;

/// Brackets open at once, and signs (`!`, `-`) in a row.
pub const NESTING_MAX: usize = 32;

/// Checks size and nesting. Text inside strings and comments does not count.
pub(super) fn check(source: &str) -> Result<(), Fault> {
    if source.len() > SOURCE_BYTES_MAX {
        let message = format!("the program has {} bytes, more than {SOURCE_BYTES_MAX}", source.len());
        return Err(Fault::new(message, 0..0).help("split the work over several steps or move data into a Table"));
    }
    let bytes = source.as_bytes();
    let (mut at, mut open, mut signs) = (0, 0_usize, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'#' => at = line_end(bytes, at),
            b'"' => at = string_end(bytes, at, b'"'),
            b'\'' if opens_literal(bytes, start) => at = string_end(bytes, at, b'\''),
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        signs = match byte {
            b'!' | b'-' => signs + 1,
            b' ' | b'\t' | b'\r' | b'\n' => signs,
            _ => 0,
        };
        if open > NESTING_MAX || signs > NESTING_MAX {
            let what = if open > NESTING_MAX { "brackets" } else { "signs" };
            let message = format!("more than {NESTING_MAX} {what} inside one another");
            return Err(Fault::new(message, start..start + 1).help("give a part of it a name: `part = …`"));
        }
    }
    Ok(())
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| from + n)
}

/// The place after the closing quote, or the end of the text.
fn string_end(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'\\' => at += 1,
            b if b == quote => break,
            _ => {}
        }
    }
    at.min(bytes.len())
}

/// Whether the quote at `at` belongs to `r'…'`, `s'…'` or `t'…'`.
fn opens_literal(bytes: &[u8], at: usize) -> bool {
    let Some(prefix) = at.checked_sub(1).map(|n| bytes[n]) else { return false };
    let before = at.checked_sub(2).map(|n| bytes[n]);
    matches!(prefix, b'r' | b's' | b't') && !before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_and_signs_are_counted_outside_strings_and_comments_only() {
        let many = "(".repeat(NESTING_MAX + 1);
        assert!(check(&many).is_err());
        assert!(check(&"!".repeat(NESTING_MAX + 1)).is_err());
        assert!(check(&"! ".repeat(NESTING_MAX + 1)).is_err());
        for inert in [format!("\"{many}\""), format!("s'{many}'"), format!("r'\\'{many}'"), format!("# {many}\n1")] {
            assert_eq!(check(&inert), Ok(()), "{inert}");
        }
        assert_eq!(check(&"(1)\n".repeat(1000)), Ok(()));
    }

    #[test]
    fn a_text_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
        assert_eq!(check(&" ".repeat(SOURCE_BYTES_MAX)), Ok(()));
        assert!(check(&" ".repeat(SOURCE_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn an_unclosed_string_is_left_to_the_parser() {
        assert_eq!(check("\"abc\\"), Ok(()));
        assert_eq!(check("s'"), Ok(()));
    }
}
