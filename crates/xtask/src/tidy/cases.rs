//! Every row of the tables of cases has tests.
//!
//! Promise: each document of [`DOCUMENTS`] has one row per id of its tables, each row names at
//! least one test, and each name is that of a test in the tree. In the table of hostile input one
//! of them carries the id of the row. The gate runs the tests.

use std::collections::{BTreeSet, HashSet};

use super::Text;
use super::finding::Finding;
use super::source::{Source, numbered, words};

/// A document of tables.
struct Document {
    path: &'static str,
    /// What the ids of a table begin with, its first and its last number.
    tables: &'static [(&'static str, u32, u32)],
    /// The least number of digits of an id.
    digits: usize,
    /// Whether a test of each row has its id in its name.
    ids_in_names: bool,
}

const DOCUMENTS: [Document; 3] = [
    // Packets and recordings, security and faults, web and WebDAV, everyday use.
    Document {
        path: "docs/field-cases.md",
        tables: &[("P", 1, 9), ("S", 1, 14), ("W", 1, 13), ("N", 1, 14)],
        digits: 1,
        ids_in_names: false,
    },
    // HTTP framing, ranges, paths, uploads and WebDAV, RTSP, live inputs, pages, tokens, local
    // programs.
    Document {
        path: "docs/hostile-input.md",
        tables: &[
            ("H", 1, 21),
            ("R", 1, 6),
            ("A", 1, 9),
            ("U", 1, 29),
            ("S", 1, 20),
            ("D", 1, 4),
            ("C", 1, 3),
            ("K", 3, 3),
            ("L", 1, 6),
        ],
        digits: 2,
        ids_in_names: true,
    },
    Document {
        path: "docs/faults.md",
        tables: &[
            ("F-", 1, 1),
            ("F-", 4, 14),
            ("F-", 25, 25),
            ("F-", 28, 28),
            ("F-", 30, 32),
            ("F-", 34, 35),
        ],
        digits: 2,
        ids_in_names: false,
    },
];

/// Checks the documents against the tests of the tree.
pub(super) fn check(texts: &[Text], sources: &[Source]) -> Vec<Finding> {
    let tests: HashSet<&str> = sources.iter().flat_map(|source| test_names(&source.code)).collect();
    DOCUMENTS.iter().flat_map(|document| document.check(texts, &tests)).collect()
}

impl Document {
    fn check(&self, texts: &[Text], tests: &HashSet<&str>) -> Vec<Finding> {
        let Some(document) = texts.iter().find(|text| text.path == self.path) else {
            return vec![Finding::of(self.path, "is missing")];
        };
        let mut findings = Vec::new();
        let mut missing: BTreeSet<String> = self.ids().collect();
        for (number, line) in numbered(&document.text) {
            let Some((id, named)) = self.row(line) else { continue };
            let mut find = |text| findings.push(Finding::at(self.path, number, text));
            if !missing.remove(id) {
                find(format!("{id} is not an id, or is there twice"));
            }
            if named.is_empty() {
                find(format!("{id} names no test"));
            }
            for name in named.iter().filter(|name| !tests.contains(*name)) {
                find(format!("{id}: no test is called {name}"));
            }
            let word = id.to_ascii_lowercase();
            if self.ids_in_names && !named.iter().any(|name| name.split('_').any(|w| w == word)) {
                find(format!("{id}: no test has {word} in its name"));
            }
        }
        findings
            .extend(missing.iter().map(|id| Finding::of(self.path, format!("{id} has no row"))));
        findings
    }

    /// The id of each row that there must be.
    fn ids(&self) -> impl Iterator<Item = String> {
        let digits = self.digits;
        self.tables.iter().flat_map(move |&(prefix, first, last)| {
            (first..=last).map(move |number| format!("{prefix}{number:0digits$}"))
        })
    }

    /// The id of a row and the test names in its last column: `| W7 | promise | `name`, `name` |`.
    fn row<'a>(&self, line: &'a str) -> Option<(&'a str, Vec<&'a str>)> {
        let line = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        let cells: Vec<&str> = line.split('|').collect();
        let id = cells.first()?.trim();
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_id = self.tables.iter().any(|table| id.strip_prefix(table.0).is_some_and(is_number));
        // Names are between backticks: every second piece.
        let names = cells.last()?.split('`').skip(1).step_by(2).collect();
        is_id.then_some((id, names))
    }
}

/// The names of functions with a test attribute, and of those inside `proptest!`.
fn test_names(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("#[").filter_map(|(at, _)| {
        let attribute = code[at..].split(']').next()?;
        let is_test = attribute.ends_with("test") || attribute.contains("test(");
        let item = code[at + attribute.len()..].split_once("fn ")?.1;
        if is_test { words(item).next() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn a_door_is_shut() {}\nfn no_test() {}\n\
        #[tokio::test(flavor = \"x\")]\n#[should_panic]\nasync fn a_window_is_shut() {}";

    /// What is found in a document whose rows all have a valid test, except for the row that
    /// `change` replaces.
    fn findings(document: &Document, id: &str, change: &str) -> Vec<String> {
        let row_of = |row: String| {
            let is_it = row == id;
            let name = if document.ids_in_names { row.to_lowercase() + "_" } else { String::new() };
            let row = format!("| {row} | a promise | `{name}a_door_is_shut` |");
            if is_it { change.to_owned() } else { row }
        };
        let text = document.ids().map(row_of).collect::<Vec<_>>().join("\n");
        let named = document.ids().map(|id| format!("#[test]\nfn {}_a_door_is_shut() {{}}\n", id));
        let code = SOURCE.to_owned() + &named.collect::<String>().to_lowercase().replace('-', "_");
        let source = Source::read("crates/server/tests/http.rs", &code);
        let tests: HashSet<&str> = test_names(&source.code).collect();
        let texts = [Text { path: document.path.to_owned(), text }];
        document.check(&texts, &tests).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_row_with_tests_is_right() {
        let [field, hostile, faults] = &DOCUMENTS;
        let two = "`a_door_is_shut`, `a_window_is_shut`";
        assert!(findings(field, "W7", &format!("| W7 | x | {two} |")).is_empty());
        assert!(findings(faults, "F-09", &format!("| F-09 | x | y | {two} |")).is_empty());
        let named = "| H07 | x | `h07_a_door_is_shut`, `a_window_is_shut` |";
        assert_eq!(findings(hostile, "H07", named), [""; 0]);
    }

    #[test]
    fn a_row_that_is_missing_or_names_no_test_is_found() {
        let [field, hostile, faults] = &DOCUMENTS;
        let of_w7 = |change| findings(field, "W7", change);
        assert_eq!(of_w7(""), ["docs/field-cases.md: W7 has no row"]);
        assert!(of_w7("| W7 | x | |")[0].ends_with("W7 names no test"));
        assert!(of_w7("| W7 | x | `no_test` |")[0].ends_with("W7: no test is called no_test"));
        let twice = of_w7("| W6 | x | `a_door_is_shut` |");
        assert!(twice[0].ends_with("W6 is not an id, or is there twice"), "{twice:?}");
        assert!(twice[1].ends_with("W7 has no row"), "{twice:?}");
        assert_eq!(findings(faults, "F-09", ""), ["docs/faults.md: F-09 has no row"]);
        let other = findings(hostile, "S20", "| S20 | x | `a_door_is_shut` |");
        assert!(other[0].ends_with("S20: no test has s20 in its name"), "{other:?}");
        assert!(check(&[], &[])[0].to_string().ends_with("is missing"));
    }
}
