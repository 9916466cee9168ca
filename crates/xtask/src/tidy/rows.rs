//! Every row of the tables of hostile input has its test.
//!
//! Promise: each id that is listed here stands in the name of a test of the server, or in an
//! attribute of one: `fn h01_slow_headers_are_cut_off()`, `#[case::r03(..)]`. The tables themselves
//! are part of the project's promises; this list only says which rows apply so far.

use std::collections::HashSet;

use super::finding::Finding;
use super::source::{Source, words};

/// Tables by their letter, with the number of their rows: HTTP framing, ranges, paths and files,
/// live inputs.
const TABLES: [(char, u32); 4] = [('h', 21), ('r', 6), ('a', 8), ('d', 4)];
const HOME: &str = "crates/server/";

/// Checks the tests of the server.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut shown = HashSet::new();
    for source in sources.iter().filter(|source| source.path.starts_with(HOME)) {
        shown.extend(test_words(&source.uncommented));
    }
    let rows = TABLES
        .iter()
        .flat_map(|&(letter, count)| (1..=count).map(move |row| format!("{letter}{row:02}")));
    rows.filter(|row| !shown.contains(row))
        .map(|row| Finding::of(HOME, format!("no test shows row {}", row.to_uppercase())))
        .collect()
}

/// The words of the names of tests, and of all attributes, in lower case.
fn test_words(text: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut take = |text: &str| {
        let parts = words(text).flat_map(|word| word.split('_'));
        found.extend(parts.map(str::to_ascii_lowercase));
    };
    for (at, _) in text.match_indices("#[") {
        let attribute = text[at..].split(']').next().unwrap_or_default();
        take(attribute);
        if attribute.ends_with("test") || attribute.contains("test(") {
            let item = &text[at + attribute.len()..];
            take(item.split('(').next().unwrap_or_default());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(text: &str) -> Vec<String> {
        check(&[Source::read("crates/server/tests/http.rs", text)])
            .iter()
            .map(Finding::to_string)
            .collect()
    }

    #[test]
    fn a_row_without_a_test_is_reported() {
        let all = missing("");
        assert_eq!(all.len(), 21 + 6 + 8 + 4);
        assert_eq!(all[0], "crates/server/: no test shows row H01");
    }

    #[test]
    fn a_row_is_shown_by_the_name_or_an_attribute_of_a_test() {
        assert_eq!(missing("#[test]\nfn h01_slow() {}").len(), 38);
        assert_eq!(missing("#[tokio::test(flavor = \"x\")]\nasync fn r02_and_a08() {}").len(), 37);
        assert_eq!(missing("#[case::h03(1)]\n#[row(\"H04\")]\nfn x() {}").len(), 37);
    }

    #[test]
    fn a_row_is_not_shown_by_a_comment_or_another_function() {
        assert_eq!(missing("// H01\nfn h02() {}\n#[test]\nfn x() { h03() }").len(), 39);
    }
}
