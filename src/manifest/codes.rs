//! The stable codes of problems, each with its page: what it means, an example that causes it, and the mend.
//!
//! A code is never given another meaning and never given again.

use std::fmt;

macro_rules! codes {
    ($($name:ident = $code:literal),+ $(,)?) => {
        /// What kind of problem it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $($name),+ }

        impl Code {
            /// In the order of their numbers.
            pub const ALL: &'static [Code] = &[$(Code::$name),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code),+ }
            }

            /// The help page, Markdown.
            pub fn page(self) -> &'static str {
                match self { $(Code::$name => include_str!(concat!("codes/", $code, ".md"))),+ }
            }
        }
    };
}

codes! {
    // Reading.
    Unreadable = "VJ0001",
    LeavesTree = "VJ0002",
    NotUtf8 = "VJ0003",
    Syntax = "VJ0004",
    DuplicateKey = "VJ0005",
    Trap = "VJ0006",
    UnknownKey = "VJ0007",
    TooMuch = "VJ0008",
    Unsupported = "VJ0009",
    // Shape.
    NotAManifest = "VJ0010",
    UnknownKind = "VJ0011",
    NotInThisVersion = "VJ0012",
    MissingKey = "VJ0013",
    WrongType = "VJ0014",
    InvalidValue = "VJ0015",
    ExactlyOne = "VJ0016",
    // Names and references.
    DuplicateName = "VJ0020",
    UnresolvedName = "VJ0021",
    BrokenReference = "VJ0022",
    ReferenceSyntax = "VJ0023",
    UnsetVariable = "VJ0024",
    ReferenceInStep = "VJ0025",
    MissingFile = "VJ0026",
    // Subjects.
    NobodyWrites = "VJ0030",
    NobodyReads = "VJ0031",
    Cycle = "VJ0032",
    EndsNowhere = "VJ0033",
    Unreachable = "VJ0034",
    // Listeners.
    SameRoute = "VJ0040",
    PortTaken = "VJ0041",
    OpenListener = "VJ0042",
    InvalidAddress = "VJ0043",
    // Schedules and data.
    InvalidSchedule = "VJ0050",
    InvalidSchema = "VJ0060",
    DuplicateRow = "VJ0061",
    InvalidTable = "VJ0062",
    // Programs.
    InvalidProgram = "VJ0070",
    NeverMatches = "VJ0071",
}

impl Code {
    pub fn parse(text: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str().eq_ignore_ascii_case(text))
    }

    /// The first heading of the page, without the code.
    pub fn title(self) -> &'static str {
        let line = self.page().lines().next().unwrap_or("");
        line.trim_start_matches("# ").trim_start_matches(self.as_str()).trim_start_matches([':', ' '])
    }

    /// The first example of the page, when it can be given as YAML.
    pub fn example(self) -> Option<&'static str> {
        let (_, rest) = self.page().split_once("```yaml\n")?;
        rest.split_once("\n```").map(|(example, _)| example)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_begins_with_its_code_and_has_example_and_mend() {
        for code in Code::ALL {
            let page = code.page();
            assert!(page.starts_with(&format!("# {code}: ")), "{code}");
            assert!(page.contains("\n## Example\n") && page.contains("\n## Mend\n"), "{code}");
            assert!(!code.title().is_empty(), "{code}");
            assert!(code.example().is_some() || page.contains("```text\n"), "{code}");
        }
        assert!(Code::ALL.is_sorted_by_key(|code| code.as_str()));
    }
}
