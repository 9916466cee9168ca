//! The fences that the data path relies on: where `unsafe` may stand, where nothing may wait, and
//! that the decisions know no operating system.
//!
//! Promise: `unsafe` stands only in `ring`, `sys` and the library of local clients, every other
//! crate root forbids it; no `async` or `await` below the server; `core` is `no_std`.

use super::finding::Finding;
use super::source::Source;

/// Crates that may hold `unsafe`, each block with its reason.
const UNSAFE: [&str; 4] = ["crates/client", "crates/client-c", "crates/ring", "crates/sys"];
/// Crates whose code runs on real-time threads.
const NEVER_WAITS: [&str; 4] = ["crates/core", "crates/ring", "crates/sys", "crates/engine"];

/// Checks all sources; `roots` are the paths of the crates' root files.
pub(super) fn check(sources: &[Source], roots: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let home = source.crate_directory();
        if !UNSAFE.contains(&home) {
            let lines = source.lines_with_word("unsafe");
            findings.extend(lines.map(|line| {
                Finding::at(&source.path, line, "`unsafe` belongs into crates/ring or crates/sys")
            }));
            if roots.contains(&source.path) && !source.code.contains("#![forbid(unsafe_code)]") {
                findings.push(Finding::of(&source.path, "add #![forbid(unsafe_code)]"));
            }
        }
        if NEVER_WAITS.contains(&home) {
            let waits = ["async", "await"].iter().flat_map(|word| source.lines_with_word(word));
            findings.extend(waits.map(|line| {
                Finding::at(&source.path, line, "the data path never awaits; that is the server's")
            }));
        }
        if source.path == "crates/core/src/lib.rs" && !source.code.contains("#![no_std]") {
            findings.push(Finding::of(&source.path, "core is #![no_std]"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[Source::read(path, text)], &[path.to_owned()]).len()
    }

    #[test]
    fn unsafe_stands_only_in_ring_and_sys() {
        let text = "#![forbid(unsafe_code)]\n// unsafe is fine here\nfn f() { unsafe { g() } }";
        assert_eq!(count("crates/engine/src/lib.rs", text), 1);
        assert_eq!(count("crates/ring/src/arena.rs", text), 0);
    }

    #[test]
    fn a_crate_root_forbids_unsafe() {
        assert_eq!(count("crates/server/src/main.rs", "fn main() {}"), 1);
        assert_eq!(count("crates/server/src/main.rs", "#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(count("crates/sys/src/lib.rs", "fn f() {}"), 0);
    }

    #[test]
    fn nothing_below_the_server_awaits() {
        let text = "#![forbid(unsafe_code)]\nasync fn f() {\n    g().await }";
        assert_eq!(count("crates/engine/src/lib.rs", text), 2);
        assert_eq!(count("crates/server/src/main.rs", text), 0);
    }

    #[test]
    fn core_knows_no_operating_system() {
        assert_eq!(count("crates/core/src/lib.rs", "#![forbid(unsafe_code)]"), 1);
        assert_eq!(count("crates/core/src/lib.rs", "#![no_std]\n#![forbid(unsafe_code)]"), 0);
    }
}
