//! What Cargo is told not to test holds no tests.
//!
//! Promise: a unit test in a target with `test = false`, and an example of the documentation in a
//! library with `doctest = false`, is found, because nothing would run it. An example is a fenced
//! block; blocks of other things say `text`.

use super::finding::Finding;
use super::layers::UntestedTarget;
use super::source::{Source, numbered};

/// Checks the sources of all targets.
pub(super) fn check(sources: &[Source], targets: &[UntestedTarget]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in targets {
        for source in sources.iter().filter(|source| is_of(source, target)) {
            if !target.has_tests {
                let tests = numbered(&source.code).filter(|(_, line)| is_test(line));
                findings.extend(tests.map(|(line, _)| {
                    Finding::at(&source.path, line, "Cargo.toml says that nothing is tested here")
                }));
            }
            if !target.has_examples {
                findings.extend(examples(&source.text).map(|line| {
                    let what =
                        "no example is run here: call it `text`, or remove `doctest = false`";
                    Finding::at(&source.path, line, what)
                }));
            }
        }
    }
    findings
}

/// A program's target is its own file, a library's all others beside it.
fn is_of(source: &Source, target: &UntestedTarget) -> bool {
    match target.root.strip_suffix("lib.rs") {
        Some(directory) => source.path.starts_with(directory) && !source.path.ends_with("/main.rs"),
        None => source.path == target.root,
    }
}

fn is_test(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("#[test]") || line.starts_with("#[tokio::test")
}

/// The lines at which a fenced block of Rust begins, counted from one.
fn examples(text: &str) -> impl Iterator<Item = usize> {
    let mut is_open = false;
    numbered(text).filter_map(move |(number, line)| {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        let language = comment.trim_start().strip_prefix("```")?;
        is_open = !is_open;
        (is_open && language != "text").then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str, [has_tests, has_examples]: [bool; 2]) -> usize {
        let root = "crates/a/src/lib.rs".to_owned();
        let sources = [Source::read(path, text)];
        check(&sources, &[UntestedTarget { root, has_tests, has_examples }]).len()
    }

    #[test]
    fn a_test_that_nothing_runs_is_found() {
        let text = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n    \
                    #[tokio::test(x)]\n    async fn b() {}\n}\n// #[test]\n";
        assert_eq!(count("crates/a/src/b.rs", text, [false, true]), 2);
        assert_eq!(count("crates/a/src/b.rs", text, [true, true]), 0);
        assert_eq!(count("crates/a/src/main.rs", text, [false, true]), 0, "another target");
        assert_eq!(count("crates/a/tests/b.rs", text, [false, true]), 0, "another target");
    }

    #[test]
    fn an_example_that_nothing_runs_is_found() {
        let text = "//! ```text\n//! a -> b\n//! ```\n/// ```no_run\n/// f();\n/// ```\nfn f() {}\n\
                    /// ```\n/// f();\n/// ```\nfn g() {}\n";
        assert_eq!(count("crates/a/src/b.rs", text, [true, false]), 2);
        assert_eq!(count("crates/a/src/b.rs", text, [true, true]), 0);
    }
}
