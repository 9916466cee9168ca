//! Progress of uploads and downloads, for people at a terminal.
//!
//! Promise: escape sequences go to terminals only, and not when `NO_COLOR` or `TERM=dumb` forbids
//! them.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tactus_core::units::BitRate;

/// A progress bar for `len` bytes, if known.
pub(super) fn meter(quiet: bool, len: Option<u64>) -> ProgressBar {
    if quiet || !takes_escapes() {
        return ProgressBar::hidden();
    }
    match len {
        Some(len) => ProgressBar::new(len),
        None => ProgressBar::no_length(),
    }
}

/// Whether standard error is a terminal that takes escape sequences.
pub(super) fn takes_escapes() -> bool {
    std::io::stderr().is_terminal() && are_welcome(|name| std::env::var(name).ok())
}

/// Follows <https://no-color.org> and `TERM`.
fn are_welcome(get: impl Fn(&str) -> Option<String>) -> bool {
    let plain = get("NO_COLOR").is_some_and(|value| !value.is_empty());
    !plain && get("TERM").is_none_or(|term| term != "dumb" && !term.is_empty())
}

/// The rate in bits per second of `bytes` in `taken`.
pub(super) fn rate_of(bytes: u64, taken: Duration) -> BitRate {
    let nanos = taken.as_nanos().max(1);
    BitRate((u128::from(bytes) * 8_000_000_000 / nanos) as u64)
}

/// The layout of a progress bar.
pub(super) fn style() -> ProgressStyle {
    let template = "[{bar:32}] {bytes} of {total_bytes}  {rate}  {left} left";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    style
        .with_key("rate", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            let bits = BitRate((state.per_sec() * 8.0) as u64 / 1000 * 1000);
            // A rate that cannot be formatted is left out; nothing depends on it.
            write!(to, "{bits}").unwrap_or_default();
        })
        .with_key("left", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
            let seconds = state.eta().as_secs();
            write!(to, "{}:{:02}", seconds / 60, seconds % 60).unwrap_or_default();
        })
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n13_no_escapes_for_dumb_terminals_and_no_color() {
        let with = |set: &[(&'static str, &'static str)]| {
            are_welcome(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| String::from(*value))
            })
        };
        assert!(with(&[("TERM", "xterm-256color")]));
        assert!(with(&[("NO_COLOR", ""), ("TERM", "linux")]), "an empty NO_COLOR has no effect");
        assert!(!with(&[("NO_COLOR", "1"), ("TERM", "xterm")]));
        assert!(!with(&[("TERM", "dumb")]));
        assert!(!with(&[("TERM", "")]));
    }
}
