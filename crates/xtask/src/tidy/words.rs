//! One thing has one word, and a type name is a noun of the field.
//!
//! Promise: a type whose whole name is one of [`WORDS`] is found in every crate, tests included.
//! The words are private metaphors that once hid the field's terms, and participles, pronouns and
//! questions. As variants of an enum, in prose and within longer names they are ordinary words.

use super::finding::Finding;
use super::source::{Source, numbered, words};

/// What a type must not be called, and the word to use.
const WORDS: [(&str, &[&str]); 16] = [
    ("Request, Cost or Rejection", &["Wish", "Demand", "Terms", "Short"]),
    ("Output", &["Way", "Whereto", "Sink", "Door", "Outlet"]),
    ("Input", &["Inlet"]),
    ("SourceSpec, SendQueue or WriteBuffer", &["Feed", "Feeding"]),
    ("Pin", &["Hold", "Held", "Holding"]),
    ("Generated…", &["Made", "Making"]),
    ("a session or an upload", &["Show", "Take", "Film", "Reel"]),
    ("Server, TestServer or Fixture", &["House", "Stage"]),
    ("a list, a limit or a schedule", &["Book", "Desk", "Seat", "Roster", "Itinerary"]),
    ("Waker", &["Bell"]),
    ("DegradationLevel", &["Ladder", "Strain"]),
    ("Resync", &["Sieve"]),
    ("Watermark or Follower", &["Ebb", "Edge", "Tide"]),
    ("a promise, a check or a kind", &["Cast", "Habit", "Law"]),
    ("Reporter, Listener or Message", &["Teller", "Hearer", "Voice"]),
    ("a noun", &QUESTIONS),
];

/// Questions, pronouns and participles that say nothing about the thing.
const QUESTIONS: [&str; 34] = [
    "Asked", "At", "Begun", "Changed", "Damaged", "Ended", "Found", "Gone", "Heard", "How", "Kept",
    "Known", "Left", "Lost", "Needs", "Of", "Opened", "Over", "Placed", "Planned", "Received",
    "Said", "Seen", "Sent", "Taken", "Thing", "Until", "Waiting", "Wanted", "What", "When",
    "Where", "Who", "Whose",
];

/// The keywords before the name of a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Checks all sources.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().flat_map(findings).collect()
}

fn findings(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in numbered(&source.code) {
        let words: Vec<_> = words(line).collect();
        for pair in words.windows(2).filter(|pair| KEYWORDS.contains(&pair[0])) {
            let name = pair[1];
            if let Some((better, _)) = WORDS.iter().find(|(_, names)| names.contains(&name)) {
                let what = format!("the type name {name} is not a word of the glossary: {better}");
                findings.push(Finding::at(&source.path, number, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&[Source::read("crates/core/src/a.rs", text)]).len()
    }

    #[test]
    fn a_type_of_a_word_that_is_no_noun_of_the_field_is_found() {
        assert_eq!(count("pub(crate) struct Wish {\n    at: u64,\n}\n"), 1);
        assert_eq!(count("enum When<'a> {\n    Now,\n}\ntrait Sink {}\ntype Found = u8;\n"), 3);
    }

    #[test]
    fn variants_prose_and_longer_names_are_free() {
        assert_eq!(count("enum Event {\n    Sent,\n    Ended { at: u64 },\n}\n"), 0);
        assert_eq!(count("/// struct Wish\nstruct WishList;\nfn wish() -> &'static str {\n"), 0);
    }
}
