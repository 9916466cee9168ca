//! Nothing unfinished is committed: no placeholders, no notes to oneself, no skipped tests, and no
//! error that is answered by falling over without a reason.

use super::Tree;
use super::finding::Finding;
use super::source::{Source, numbered, words};

/// Notes to oneself. In two halves, so that this file does not break its own rule.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Checks notes in all texts, the rest in all sources.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in tree.texts.iter().filter(|text| is_ours(&text.path)) {
        for (number, line) in numbered(&text.text) {
            if words(line).any(|word| NOTES.contains(&word)) {
                findings.push(Finding::at(&text.path, number, "do it, or open an issue"));
            }
        }
    }
    findings.extend(tree.sources.iter().flat_map(placeholders));
    findings
}

fn is_ours(path: &str) -> bool {
    [".rs", ".md", ".toml", ".sh", ".py"].iter().any(|end| path.ends_with(end))
}

fn placeholders(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in numbered(&source.code) {
        let squeezed: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        let mut find = |what: &str| findings.push(Finding::at(&source.path, number, what));
        if ["todo!", "unimplemented!"].iter().any(|stub| squeezed.contains(stub)) {
            find("no stubs");
        }
        if squeezed.contains("#[ignore") {
            find("a test runs, or it is deleted");
        }
        if squeezed.contains(".unwrap()") && !source.is_test(number) {
            find("say why it holds: `expect(\"…\")`, or return the error");
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Text;
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let source = path.ends_with(".rs").then(|| Source::read(path, text));
        let text = Text { path: path.to_owned(), text: text.to_owned() };
        check(&Tree { texts: vec![text], sources: source.into_iter().collect() }).len()
    }

    #[test]
    fn a_bare_unwrap_is_for_tests_only() {
        assert_eq!(count("crates/core/src/a.rs", "fn f() { g().unwrap(); }"), 1);
        assert_eq!(count("crates/core/src/a.rs", "fn f() { g().unwrap_or(1); } // .unwrap()"), 0);
        assert_eq!(count("crates/core/src/a.rs", "#[test]\nfn f() { g().unwrap(); }"), 0);
        assert_eq!(count("crates/core/tests/a.rs", "fn f() { g().unwrap(); }"), 0);
    }

    #[test]
    fn stubs_and_skipped_tests_are_found() {
        assert_eq!(count("crates/core/src/a.rs", "fn f() { todo!() }"), 1);
        assert_eq!(count("crates/core/src/a.rs", "fn f() { unimplemented!(\"x\") }"), 1);
        assert_eq!(count("crates/core/src/a.rs", "#[ignore = \"slow\"]\nfn f() {}"), 1);
    }

    #[test]
    fn notes_to_oneself_are_found_in_comments_and_texts() {
        let note = NOTES[0];
        assert_eq!(count("crates/core/src/a.rs", &format!("// {note}: later")), 1);
        assert_eq!(count("docs/a.md", &format!("{note} later")), 1);
        assert_eq!(count("docs/a.md", &format!("{note}S later")), 0);
    }
}
