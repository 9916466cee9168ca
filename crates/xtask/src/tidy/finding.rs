//! A broken rule: where, and what to do about it.

use std::fmt;

/// One break of one rule.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Finding {
    path: String,
    /// Counts from one; zero when the whole file is meant.
    line: usize,
    what: String,
}

impl Finding {
    /// A break at `line` of `path`, counted from one.
    pub(super) fn at(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }

    /// A break of the whole file.
    pub(super) fn of(path: &str, what: impl Into<String>) -> Self {
        Self::at(path, 0, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}
