//! Every case from the field has tests.
//!
//! Promise: `docs/field-cases.md` has one row per id of its four tables, each row names at least
//! one test, and each name is that of a test in the tree. The gate runs the tests.

use std::collections::{BTreeSet, HashSet};

use super::Text;
use super::finding::Finding;
use super::source::{Source, numbered, words};

const DOCUMENT: &str = "docs/field-cases.md";

/// The tables by letter, with their number of rows: packets and recordings, security and faults,
/// web and WebDAV, everyday use.
const TABLES: [(char, u32); 4] = [('P', 9), ('S', 14), ('W', 13), ('N', 14)];

/// Checks the document against the tests of the tree.
pub(super) fn check(texts: &[Text], sources: &[Source]) -> Vec<Finding> {
    let Some(document) = texts.iter().find(|text| text.path == DOCUMENT) else {
        return vec![Finding::of(DOCUMENT, "is missing")];
    };
    let tests: HashSet<&str> = sources.iter().flat_map(|source| test_names(&source.code)).collect();
    let mut findings = Vec::new();
    let mut missing: BTreeSet<String> = TABLES
        .iter()
        .flat_map(|&(letter, count)| (1..=count).map(move |row| format!("{letter}{row}")))
        .collect();
    for (number, line) in numbered(&document.text) {
        let Some((id, named)) = row(line) else { continue };
        if !missing.remove(id) {
            findings.push(Finding::at(
                DOCUMENT,
                number,
                format!("{id} is not an id, or is there twice"),
            ));
        }
        if named.is_empty() {
            findings.push(Finding::at(DOCUMENT, number, format!("{id} names no test")));
        }
        for name in named.iter().filter(|name| !tests.contains(*name)) {
            findings.push(Finding::at(DOCUMENT, number, format!("{id}: no test is called {name}")));
        }
    }
    findings.extend(missing.iter().map(|id| Finding::of(DOCUMENT, format!("{id} has no row"))));
    findings
}

/// The id of a row and the test names in its last column: `| W7 | promise | `name`, `name` |`.
fn row(line: &str) -> Option<(&str, Vec<&str>)> {
    let cells: Vec<&str> = line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').collect();
    let id = cells.first()?.trim();
    let (letter, digits) = (id.chars().next()?, id.get(1..)?);
    let is_id = TABLES.iter().any(|table| table.0 == letter)
        && !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Names are between backticks: every second piece.
    let names = cells.last()?.split('`').skip(1).step_by(2).collect();
    is_id.then_some((id, names))
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

    /// All rows with a valid test; `change` replaces the row of W7.
    fn findings(change: &str) -> Vec<String> {
        let rows = TABLES.iter().flat_map(|&(letter, count)| {
            (1..=count).map(move |row| format!("| {letter}{row} | a promise | `a_door_is_shut` |"))
        });
        let row_of_w7 =
            |row: String| if row.starts_with("| W7 ") { change.to_owned() } else { row };
        let text = rows.map(row_of_w7).collect::<Vec<_>>().join("\n");
        let document = Text { path: DOCUMENT.to_owned(), text };
        let source = Source::read("crates/server/tests/http.rs", SOURCE);
        check(&[document], &[source]).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_row_with_tests_is_right() {
        assert!(findings("| W7 | x | `a_door_is_shut`, `a_window_is_shut` |").is_empty());
    }

    #[test]
    fn a_row_that_is_missing_or_names_no_test_is_found() {
        assert_eq!(findings(""), ["docs/field-cases.md: W7 has no row"]);
        assert!(findings("| W7 | x | |")[0].ends_with("W7 names no test"));
        assert!(findings("| W7 | x | `no_test` |")[0].ends_with("W7: no test is called no_test"));
        let twice = findings("| W6 | x | `a_door_is_shut` |");
        assert!(twice[0].ends_with("W6 is not an id, or is there twice"), "{twice:?}");
        assert!(twice[1].ends_with("W7 has no row"), "{twice:?}");
    }
}
