//! Writes manual pages with the macros of man(7).
//!
//! Promise: text is escaped; no part of it acts as a request or an escape.

/// The date of the pages, which man-pages(7) requires. It is fixed, so that a tree always gives the
/// same pages.
const DATE: &str = "2026-11-25";

/// A page.
pub(super) struct Roff(String);

impl Roff {
    /// Begins the page `name`(`section`).
    pub(super) fn new(name: &str, section: u8) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let title = name.to_uppercase();
        Self(format!(
            ".TH \"{title}\" {section} \"{DATE}\" \"Tactus {version}\" \"Tactus Manual\"\n"
        ))
    }

    /// Begins a section.
    pub(super) fn section(&mut self, name: &str) {
        self.0 += &format!(".SH {}\n", quoted(name));
    }

    /// Begins a subsection.
    pub(super) fn part(&mut self, name: &str) {
        self.0 += &format!(".SS {}\n", quoted(name));
    }

    /// Begins a paragraph.
    pub(super) fn paragraph(&mut self) {
        let last = self.0.lines().last().unwrap_or_default();
        // A heading begins a paragraph.
        if !last.starts_with(".SH") && !last.starts_with(".SS") {
            self.0 += ".PP\n";
        }
    }

    /// Begins a list item with `tag`, which may contain fonts.
    pub(super) fn item(&mut self, tag: &str) {
        self.0 += &format!(".TP\n{tag}\n");
    }

    /// A line of text.
    pub(super) fn text(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.0 += &guarded(&escaped(line));
            self.0.push('\n');
        }
    }

    /// Writes a line that may contain fonts.
    pub(super) fn line(&mut self, line: &str) {
        self.0 += &guarded(line);
        self.0.push('\n');
    }

    /// Writes lines verbatim.
    pub(super) fn example(&mut self, text: &str) {
        self.paragraph();
        self.0 += ".RS 4\n.nf\n";
        for line in text.lines() {
            self.0 += &guarded(&escaped(line));
            self.0.push('\n');
        }
        self.0 += ".fi\n.RE\n";
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Text to type literally.
pub(super) fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

/// A placeholder.
pub(super) fn italic(text: &str) -> String {
    format!("\\fI{}\\fR", escaped(text))
}

pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '~' => out.push_str("\\(ti"),
            '^' => out.push_str("\\(ha"),
            c => out.push(c),
        }
    }
    out
}

/// A line that begins with a full stop or an apostrophe would be a request.
fn guarded(line: &str) -> String {
    if line.starts_with('.') { format!("\\&{line}") } else { line.to_owned() }
}

fn quoted(name: &str) -> String {
    let name = escaped(name);
    if name.contains(' ') { format!("\"{name}\"") } else { name }
}
