//! The form of a file: it opens with what it is for, it is short enough to read, and its name says
//! what it promises. Code, comments and prose are narrow enough to read and to compare.

use super::Text;
use super::finding::Finding;
use super::source::{Source, numbered, words};

const LINES_MAX: usize = 900;
/// Columns of a line of code or of a comment. The formatter wraps code, but no strings, no comments
/// and no bodies of macros, and then leaves the whole expression as it is.
const CODE_COLUMNS_MAX: usize = 100;
/// What else is as narrow as Rust, by the ends of file names.
const SCRIPTS: [&str; 4] = [".py", ".pyi", ".sh", ".mjs"];
/// Columns of a line of prose.
const COLUMNS_MAX: usize = 120;
/// Names that promise nothing.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "common", "helpers", "helper", "misc"];

/// Checks all sources.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let path = &source.path;
        if !opens_with_purpose(&source.text) {
            findings.push(Finding::at(path, 1, "open the file with `//!`: what it is for"));
        }
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            let what = format!("{lines} lines, at most {LINES_MAX}: split it by its promises");
            findings.push(Finding::of(path, what));
        }
        findings.extend(too_wide(path, &source.text));
        let mut parts = path.trim_end_matches(".rs").split('/');
        if parts.any(|part| EMPTY_NAMES.contains(&part)) {
            findings.push(Finding::of(path, "name the file by its promise"));
        }
        for (number, line) in numbered(&source.code) {
            let mut words = words(line).skip_while(|&word| word != "mod").skip(1);
            if words.next().is_some_and(|name| EMPTY_NAMES.contains(&name)) {
                findings.push(Finding::at(path, number, "name the module by its promise"));
            }
        }
    }
    findings
}

/// Checks the width of scripts and of code in other languages.
pub(super) fn check_scripts(texts: &[Text]) -> Vec<Finding> {
    let is_script = |text: &&Text| SCRIPTS.iter().any(|end| text.path.ends_with(end));
    texts.iter().filter(is_script).flat_map(|text| too_wide(&text.path, &text.text)).collect()
}

/// The lines of code that are too wide.
fn too_wide(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in numbered(text) {
        let columns = line.chars().count();
        if columns > CODE_COLUMNS_MAX && has_a_place_to_wrap(line) {
            let what = format!("{columns} columns, at most {CODE_COLUMNS_MAX}: wrap the line");
            findings.push(Finding::at(path, number, what));
        }
    }
    findings
}

/// Checks the width of prose. Tables, code and a line of one word (a link) may be wider.
pub(super) fn check_prose(texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Text { path, text } in texts.iter().filter(|text| text.path.ends_with(".md")) {
        let mut is_code = false;
        for (number, line) in numbered(text) {
            is_code ^= line.starts_with("```");
            let is_prose = !is_code && !line.starts_with('|') && !line.starts_with("    ");
            let columns = line.chars().count();
            if is_prose && columns > COLUMNS_MAX && has_a_place_to_wrap(line) {
                let what = format!("{columns} columns, at most {COLUMNS_MAX}: wrap the line");
                findings.push(Finding::at(path, number, what));
            }
        }
    }
    findings
}

/// Whether a line has more than one word. A long word alone is a link or data, as in the dump of a
/// packet: it may be wider than other lines. The marks that begin a comment are no word.
fn has_a_place_to_wrap(line: &str) -> bool {
    let line = line.trim();
    let line =
        ["///", "//!", "//", "#"].iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line);
    line.trim().contains(' ')
}

/// Whether the first line that is no shebang, inner attribute or blank is a module comment.
fn opens_with_purpose(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with("#!"))
        .is_some_and(|line| line.starts_with("//!"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[Source::read(path, text)]).len()
    }

    #[test]
    fn a_file_opens_with_what_it_is_for() {
        assert_eq!(count("a.rs", "//! Why.\nfn f() {}"), 0);
        assert_eq!(count("a.rs", "#!/usr/bin/env x\n#![no_std]\n\n//! Why.\n"), 0);
        assert_eq!(count("a.rs", "// Why.\nfn f() {}"), 1);
        assert_eq!(count("a.rs", ""), 1);
    }

    #[test]
    fn a_file_has_at_most_900_lines() {
        assert_eq!(count("a.rs", &"//! Why.\n".repeat(900)), 0);
        assert_eq!(count("a.rs", &"//! Why.\n".repeat(901)), 1);
    }

    #[test]
    fn code_and_comments_have_at_most_100_columns() {
        let count = |line: &str| count("a.rs", &format!("//! Why.\n{line}\nfn f() {{}}\n"));
        let fits = format!("// {}", "é ".repeat(48) + "e");
        assert_eq!((fits.chars().count(), count(&fits)), (100, 0));
        assert_eq!(count(&format!("{fits}e")), 1, "a comment");
        let string = format!("const A: &str = \"{}\";", "e".repeat(82));
        assert_eq!((string.len(), count(&string)), (101, 1), "a string");
        assert_eq!(count(&format!("\n// {fits}\n{string}")), 2);
        for mark in ["", "// ", "/// ", "    //! "] {
            assert_eq!(count(&format!("{mark}{}", "0f".repeat(60))), 0, "one word: {mark}");
        }
    }

    #[test]
    fn scripts_are_as_narrow_as_code() {
        let count = |path: &str, text: &str| {
            check_scripts(&[Text { path: path.to_owned(), text: text.to_owned() }]).len()
        };
        let fits = format!("# {}", "é ".repeat(48) + "ee");
        for path in ["a.py", "a.pyi", "a.sh", "a.mjs"] {
            assert_eq!((count(path, &fits), count(path, &format!("{fits}e"))), (0, 1), "{path}");
        }
        assert_eq!(count("a.py", &format!("# {}", "x".repeat(200))), 0, "a link");
        assert_eq!(count("a.lock", &format!("{fits}e")), 0);
    }

    #[test]
    fn prose_has_at_most_120_columns() {
        let count = |path: &str, text: &str| {
            check_prose(&[Text { path: path.to_owned(), text: text.to_owned() }]).len()
        };
        let long = "é ".repeat(60) + "e";
        assert_eq!(count("a.md", &"é ".repeat(60)), 0);
        assert_eq!(count("a.md", &format!("{long}\n- {long}\n")), 2);
        assert_eq!(count("a.rs", &long), 0);
        assert_eq!(count("a.md", &format!("| {long} |\n\n    {long}\n")), 0);
        assert_eq!(count("a.md", &format!("```\n{long}\n```\n{long}\n")), 1);
        assert_eq!(count("a.md", &"x".repeat(200)), 0, "a link");
    }

    #[test]
    fn a_name_says_what_it_promises() {
        assert_eq!(count("crates/core/src/utils.rs", "//! Why."), 1);
        assert_eq!(count("crates/server/tests/common/mod.rs", "//! Why."), 1);
        assert_eq!(count("crates/core/src/a.rs", "//! Why.\npub(crate) mod helpers {}"), 1);
        assert_eq!(count("crates/core/src/a.rs", "//! Why.\nlet common = 1;"), 0);
    }
}
