//! The kinds of outputs are named in one enum, and the engine has no arm for what cannot be.
//!
//! Promise: a second enum with the variants of `Output` is found, wherever it is. So a new output
//! is a variant in one place, and parts that do not fit together are refused where a delivery is
//! made.

use super::finding::Finding;
use super::source::{Source, numbered};

/// Where the outputs are named.
const OUTPUTS: &str = "crates/engine/src/message/delivery.rs";

/// Checks all sources.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let outputs = sources.iter().filter(|source| source.path == OUTPUTS).flat_map(enums);
    let outputs = outputs.filter(|one| one.name == "Output").flat_map(|one| one.variants);
    let outputs: Vec<_> = outputs.collect();
    if outputs.is_empty() {
        return vec![Finding::at(OUTPUTS, 1, "the enum Output is not here".to_owned())];
    }
    for source in sources {
        for one in enums(source) {
            let shared = one.variants.iter().filter(|variant| outputs.contains(variant)).count();
            let is_own = source.path == OUTPUTS && one.name == "Output";
            if shared > 1 && !is_own && !source.is_test(one.line) {
                let what = format!("{} names the outputs again; use message::Output", one.name);
                findings.push(Finding::at(&source.path, one.line, what));
            }
        }
        if source.path.starts_with("crates/engine/src") {
            let arms = source.lines_with_word("unreachable").filter(|&line| !source.is_test(line));
            findings.extend(arms.map(|line| {
                let what = "refuse the combination in message::Delivery instead".to_owned();
                Finding::at(&source.path, line, what)
            }));
        }
    }
    findings
}

/// An enum and its variants.
struct Enum {
    name: String,
    line: usize,
    variants: Vec<String>,
}

/// The enums of a source, as rustfmt writes them: each variant begins a line one step further in.
fn enums(source: &Source) -> Vec<Enum> {
    let mut found: Vec<Enum> = Vec::new();
    let mut step = None;
    for (number, line) in numbered(&source.code) {
        let depth = line.len() - line.trim_start().len();
        let words: Vec<_> = line.split_whitespace().collect();
        if let Some(at) = words.iter().position(|word| *word == "enum") {
            let name = words.get(at + 1).map_or("", |word| identifier(word)).to_owned();
            found.push(Enum { name, line: number, variants: Vec::new() });
            step = Some(depth + 4);
        } else if step == Some(depth + 4) && line.trim_start().starts_with('}') {
            step = None;
        } else if step == Some(depth) {
            let name = identifier(line.trim_start());
            if name.starts_with(char::is_uppercase)
                && let Some(last) = found.last_mut()
            {
                last.variants.push(name.to_owned());
            }
        }
    }
    found
}

/// The identifier with which `text` begins.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "/// Where.\npub enum Output {\n    /// One.\n    Socket(u8),\n    \
        Ring {\n        at: u8,\n    },\n}\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        let sources = [Source::read(OUTPUTS, OWN), Source::read(path, text)];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_second_enum_of_the_outputs_is_found() {
        let path = "crates/server/src/x.rs";
        assert_eq!(found(path, "enum Way {\n    Socket,\n    Other,\n}\n").len(), 0);
        let twice = found(path, "fn f() {}\nenum Way {\n    Socket,\n    Ring(u8),\n}\n");
        assert_eq!(twice.len(), 1);
        assert!(twice[0].starts_with("crates/server/src/x.rs:2: Way names"), "{twice:?}");
    }

    #[test]
    fn an_arm_that_cannot_be_is_found_in_the_engine_only() {
        let text = "fn f() {\n    unreachable!(\"no\")\n}\n";
        assert_eq!(found("crates/engine/src/x.rs", text).len(), 1);
        assert_eq!(found("crates/server/src/x.rs", text).len(), 0);
    }
}
