//! The difference of two texts, line by line.

/// Lines shown around a change.
const CONTEXT_LINES: usize = 3;
/// Lines compared with each other at most on either side; beyond it the middle is shown as removed and added whole.
const COMPARED_LINES_MAX: usize = 2_000;
/// Lines shown at most.
const SHOWN_LINES_MAX: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line<'t> {
    Both(&'t str),
    Expected(&'t str),
    Found(&'t str),
}

/// Every line as found and not expected.
pub(super) fn all_new(found: &str) -> String {
    render(&found.lines().map(Line::Found).collect::<Vec<_>>())
}

/// `-` is expected, `+` is found.
pub(super) fn lines(expected: &str, found: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let start = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let rest = (&a[start..], &b[start..]);
    let end = rest.0.iter().rev().zip(rest.1.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut all: Vec<Line<'_>> = a[..start].iter().copied().map(Line::Both).collect();
    middle(&a[start..a.len() - end], &b[start..b.len() - end], &mut all);
    all.extend(a[a.len() - end..].iter().copied().map(Line::Both));
    render(&all)
}

/// By the longest common subsequence.
fn middle<'t>(a: &[&'t str], b: &[&'t str], all: &mut Vec<Line<'t>>) {
    if a.len() > COMPARED_LINES_MAX || b.len() > COMPARED_LINES_MAX {
        all.extend(a.iter().copied().map(Line::Expected));
        all.extend(b.iter().copied().map(Line::Found));
        return;
    }
    let width = b.len() + 1;
    // Length of the longest common subsequence of a[i..] and b[j..].
    let mut common = vec![0_u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i * width + j] = match a[i] == b[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            all.push(Line::Both(a[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[(i + 1) * width + j] >= common[i * width + j + 1]) {
            all.push(Line::Expected(a[i]));
            i += 1;
        } else {
            all.push(Line::Found(b[j]));
            j += 1;
        }
    }
}

fn render(all: &[Line<'_>]) -> String {
    let changed: Vec<usize> = (0..all.len()).filter(|at| !matches!(all[*at], Line::Both(_))).collect();
    let near = |at: usize| {
        let next = changed.partition_point(|changed| *changed < at);
        let close = |other: Option<&usize>| other.is_some_and(|other| other.abs_diff(at) <= CONTEXT_LINES);
        close(changed.get(next)) || close(next.checked_sub(1).and_then(|before| changed.get(before)))
    };
    let mut shown = Vec::new();
    let mut left_out = false;
    for (at, line) in all.iter().enumerate() {
        if !near(at) {
            left_out = true;
            continue;
        }
        if shown.len() >= SHOWN_LINES_MAX {
            shown.push("  … and more".to_owned());
            break;
        }
        if std::mem::take(&mut left_out) {
            shown.push("  …".to_owned());
        }
        shown.push(match line {
            Line::Both(text) => format!("  {text}"),
            Line::Expected(text) => format!("- {text}"),
            Line::Found(text) => format!("+ {text}"),
        });
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_its_surroundings_only() {
        let many = |changed: &str| format!("1\n2\n3\n4\n5\n{changed}\n7\n8\n9\n10\n11");
        let expected = "  …\n  3\n  4\n  5\n- 6\n+ six\n  7\n  8\n  9";
        assert_eq!(lines(&many("6"), &many("six")), expected);
    }

    #[test]
    fn lines_that_moved_in_between_are_found_again() {
        assert_eq!(lines("a\nb\nc", "a\nx\nb\ny\nc"), "  a\n+ x\n  b\n+ y\n  c");
        assert_eq!(lines("", "a"), "+ a");
    }

    #[test]
    fn a_long_difference_is_cut() {
        let long: String = (0..10_000).map(|n| format!("{n}\n")).collect();
        assert_eq!(all_new(&long).lines().count(), SHOWN_LINES_MAX + 1);
        assert_eq!(lines(&long, &long.replace('1', "x")).lines().last(), Some("  … and more"));
    }
}
