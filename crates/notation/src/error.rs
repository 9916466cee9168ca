//! Mistakes in a configuration file, with their places.
//!
//! Promise: each message names file, line and column, shows the line, and says what to write
//! instead. The message about an unknown key suggests the most similar known one.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A mistake in a configuration file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file as it was named.
    pub file: PathBuf,
    /// Its place; none when the file could not be read.
    pub place: Option<TextPosition>,
    /// The problem and its correction.
    pub message: String,
}

/// A place in a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextPosition {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// Number of marked characters, at least 1.
    pub width: usize,
    /// The line's text.
    pub text: String,
}

/// A mistake found by the check, before its file is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The marked bytes of the text.
    pub span: Option<Range<usize>>,
    /// The problem and its correction.
    pub message: String,
}

impl Mistake {
    /// A mistake at `span`.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span: Some(span), message: message.into() }
    }

    /// Adds the file to the mistake.
    pub fn in_file(self, file: &Path, text: &str) -> ConfigError {
        let place = self.span.map(|span| TextPosition::of(text, span));
        ConfigError { file: file.into(), place, message: self.message }
    }
}

impl From<toml::de::Error> for Mistake {
    fn from(error: toml::de::Error) -> Self {
        Self { span: error.span(), message: reworded(error.message()) }
    }
}

impl TextPosition {
    fn of(text: &str, span: Range<usize>) -> Self {
        let start = floor_char_boundary(text, span.start);
        let end = floor_char_boundary(text, span.end.max(start));
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let meant = &text[start..end.min(line_end)];
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            width: meant.chars().count().max(1),
            text: text[line_start..line_end].trim_end_matches('\r').into(),
        }
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Replaces messages of serde by messages in the operator's words.
fn reworded(message: &str) -> String {
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(String::from).collect();
    if let Some(rest) = message.strip_prefix("unknown field ") {
        let names: Vec<String> = quoted(rest);
        if let Some((unknown, known)) = names.split_first() {
            return format!("unknown key `{unknown}`; {}", advice(unknown, known));
        }
    }
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("the key {rest} is missing; add it");
    }
    for kind in ["invalid type: ", "invalid value: "] {
        if let Some((found, expected)) =
            message.strip_prefix(kind).and_then(|rest| rest.split_once(", expected "))
        {
            let number = |least: &str, most: &str| format!("a whole number from {least} to {most}");
            let expected = match expected {
                "u8" => number("0", "255"),
                "u16" => number("0", "65535"),
                "u32" => number("0", "4294967295"),
                "u64" | "usize" => number("0", "9223372036854775807"),
                "a boolean" => "true or false".to_owned(),
                other => other.to_owned(),
            };
            let found = found.trim_end_matches(" as i128").trim_end_matches(" as u128");
            return format!("{found} does not belong here; write {expected}");
        }
    }
    message.into()
}

fn advice(unknown: &str, known: &[String]) -> String {
    let near = known.iter().map(|name| (strsim::jaro_winkler(unknown, name), name));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((likeness, name)) if likeness > ALIKE => format!("did you mean `{name}`?"),
        _ => format!("the keys here are {}", known.join(", ")),
    }
}

/// Similarity above which a name is suggested: `adress` and `address` have 0.97, `colour` and
/// `cycle` 0.67.
const ALIKE: f64 = 0.8;

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else {
            return write!(f, "{}: {}", self.file.display(), self.message);
        };
        let margin = " ".repeat(place.line.to_string().len());
        // Tabs stay tabs, so that the marks stand below the marked characters.
        let before = place.text.chars().take(place.column - 1);
        let before: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "{}:{}:{}: {}", self.file.display(), place.line, place.column, self.message)?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{} | {}", place.line, place.text)?;
        write!(f, "{margin} | {before}{}", "^".repeat(place.width))
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_stands_below_what_is_meant() {
        let text = "# größe\n[memory]\n\tarena = \"64 Kib\"\n";
        let at = text.find("\"64").unwrap();
        let error = Mistake::at(at..at + 8, "no").in_file(Path::new("t.toml"), text);
        assert_eq!(
            error.to_string(),
            "t.toml:3:10: no\n  |\n3 | \tarena = \"64 Kib\"\n  | \t        ^^^^^^^^"
        );
    }

    #[test]
    fn a_mark_never_leaves_its_line_or_the_text() {
        let text = "a = 1\nb = ä";
        for start in 0..=text.len() + 2 {
            for end in 0..=text.len() + 2 {
                let place = TextPosition::of(text, start..end);
                assert!(place.column + place.width <= place.text.chars().count() + 2);
            }
        }
    }

    #[test]
    fn unknown_names_are_answered_with_the_nearest() {
        let said = reworded("unknown field `adress`, expected one of `address`, `allowed_hosts`");
        assert_eq!(said, "unknown key `adress`; did you mean `address`?");
        let said = reworded("unknown field `colour`, expected `address` or `listing`");
        assert_eq!(said, "unknown key `colour`; the keys here are address, listing");
    }
}
