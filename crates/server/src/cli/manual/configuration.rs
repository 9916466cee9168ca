//! tactus.toml(5), generated from the sample file: its tables, keys, defaults and comments.
//!
//! Promise: each key of the sample is in the page with its comment. Tests of the configuration
//! check the sample.

use super::Page;
use super::roff::{Roff, bold, italic};

const SAMPLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tactus.sample.toml"));

/// The page of tactus.toml.
pub(super) fn page() -> Page {
    let mut page = Roff::new("tactus.toml", 5);
    page.section("NAME");
    page.line("tactus.toml \\- configuration of the stream server tactus");
    page.section("SYNOPSIS");
    let (serve, file) = (bold("tactus serve --config"), italic("FILE"));
    page.line(&format!("{serve} {file} [{}]", bold("--check-config")));
    page.section("DESCRIPTION");
    sample(SAMPLE, &mut page);
    page.section("FILES");
    page.item(&italic("/etc/tactus.toml"));
    page.text("The usual place. The file is read only with --config.");
    page.section("EXAMPLES");
    page.example(
        "[http]\naddress = \"0.0.0.0:8080\"\n\n[[volume]]\npath = \"/srv/media\"\nuploads = true",
    );
    page.section("SEE ALSO");
    page.line(&format!("{}(1), {}(1)", bold("tactus"), bold("tactus-serve")));
    Page { file: "tactus.toml.5".into(), text: page.finish() }
}

/// A line of the sample.
enum Line<'a> {
    Empty,
    Comment(&'a str),
    /// A table's heading, commented out or not.
    Table(&'a str),
    Key(&'a str, &'a str),
}

fn sample(text: &str, page: &mut Roff) {
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        match read(line) {
            Line::Comment(text) => comment.push(text),
            Line::Empty => flush(&mut comment, page),
            Line::Table(name) => {
                page.part(name);
                for line in comment.drain(..) {
                    page.text(line);
                }
            }
            Line::Key(name, value) => {
                page.item(&format!("{} = {}", bold(name), italic(value)));
                if comment.is_empty() {
                    page.text("As above.");
                }
                for line in comment.drain(..) {
                    page.text(line);
                }
            }
        }
    }
    flush(&mut comment, page);
}

/// Comments that belong to no key; indented lines in them are examples.
fn flush(comment: &mut Vec<&str>, page: &mut Roff) {
    if comment.is_empty() {
        return;
    }
    page.paragraph();
    let mut example = String::new();
    for line in comment.drain(..) {
        match line.strip_prefix("  ") {
            Some(line) => example += &format!("{line}\n"),
            None if line.is_empty() => {}
            None => page.text(line),
        }
    }
    if !example.is_empty() {
        page.example(&example);
    }
}

/// Optional tables are commented out as a whole, with `# ` before each line.
fn read(line: &str) -> Line<'_> {
    let (body, is_comment) = match line.strip_prefix('#') {
        Some(rest) => (rest.strip_prefix(' ').unwrap_or(rest), true),
        None => (line, false),
    };
    if body.is_empty() {
        return if is_comment { Line::Comment("") } else { Line::Empty };
    }
    if body.starts_with('[') && body.trim_end().ends_with(']') {
        return Line::Table(body.trim_end());
    }
    let key = body.split_once(" = ").filter(|(name, _)| {
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    });
    match (key, is_comment) {
        (Some((name, value)), _) => Line::Key(name, value),
        (None, true) => Line::Comment(body.strip_prefix("# ").unwrap_or(body)),
        (None, false) => Line::Empty,
    }
}
