//! A Rust file as the rules see it: which of its text is code, and which of its code is tests.
//!
//! Promise: a word in a comment or a string is never taken for code, and line numbers stay as they
//! are. It is a lexer of comments, literals and brackets, not a parser: macros are seen as written.

use std::collections::HashSet;
use std::ops::Range;

/// A Rust file.
pub(super) struct Source {
    /// From the root of the tree.
    pub(super) path: String,
    /// As it stands.
    pub(super) text: String,
    /// With comments and the contents of literals blanked.
    pub(super) code: String,
    /// Whether the whole file is compiled for tests only.
    is_test: bool,
    /// Lines of items that are compiled for tests only, counted from zero.
    test_lines: Vec<Range<usize>>,
    /// Modules in files of their own that are declared for tests only.
    test_modules: Vec<String>,
}

impl Source {
    /// Reads one file alone.
    pub(super) fn read(path: &str, text: &str) -> Self {
        let kinds = kinds(text);
        let code = keep(text, &kinds, |kind| kind == Kind::Code);
        let (test_lines, test_modules) = test_items(&code);
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            is_test: path.split('/').any(|part| part == "tests" || part == "benches"),
            test_lines,
            test_modules,
        }
    }

    /// Whether line `number`, counted from one, is compiled for tests only.
    pub(super) fn is_test(&self, number: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|lines| lines.contains(&(number - 1)))
    }

    /// The lines of code that hold `word` as a whole word, counted from one.
    pub(super) fn lines_with_word(&self, word: &str) -> impl Iterator<Item = usize> {
        numbered(&self.code)
            .filter(move |(_, line)| words(line).any(|found| found == word))
            .map(|(number, _)| number)
    }

    /// The crate's directory, as in `crates/core`.
    pub(super) fn crate_directory(&self) -> &str {
        let end = self.path.match_indices('/').nth(1).map_or(self.path.len(), |(at, _)| at);
        &self.path[..end]
    }

    /// Where the modules declared in this file have theirs.
    fn child_directory(&self) -> String {
        let (directory, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        match file {
            "lib.rs" | "main.rs" | "mod.rs" => directory.to_owned(),
            _ => self.path.trim_end_matches(".rs").to_owned(),
        }
    }
}

/// Reads files together, so that a module declared for tests in one file is known as such.
pub(super) fn read_all<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Source> {
    let mut sources: Vec<_> = files.map(|(path, text)| Source::read(path, text)).collect();
    let declared: HashSet<String> = sources
        .iter()
        .flat_map(|source| {
            source.test_modules.iter().map(|name| format!("{}/{name}", source.child_directory()))
        })
        .collect();
    for source in &mut sources {
        source.is_test |= declared.iter().any(|module| {
            source
                .path
                .strip_prefix(module.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
    }
    sources
}

/// The lines of `text`, numbered from one.
pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// The identifiers and numbers in `line`.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// The kind of each byte. The quotes of a literal count as code, what is between them does not.
fn kinds(text: &str) -> Vec<Kind> {
    let bytes = text.as_bytes();
    let mut kinds = vec![Kind::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (inside, end) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => {
                let end = text[at..].find('\n').map_or(bytes.len(), |length| at + length);
                (at..end, end)
            }
            b'/' if bytes[at..].starts_with(b"/*") => {
                let end = at + block_comment_len(&bytes[at..]);
                (at..end, end)
            }
            b'"' => string(bytes, at),
            b'\'' => match char_len(&text[at + 1..]) {
                Some(length) => (at + 1..at + 1 + length, at + 2 + length),
                None => (at..at, at + 1),
            },
            _ => (at..at, at + 1),
        };
        let kind = if bytes[at] == b'/' { Kind::Comment } else { Kind::Literal };
        kinds[inside].fill(kind);
        at = end;
    }
    kinds
}

/// Length of the block comment that `bytes` begin with; they nest.
fn block_comment_len(bytes: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// The inside and the end of the string whose first quote is at `quote`.
fn string(bytes: &[u8], quote: usize) -> (Range<usize>, usize) {
    let hashes = bytes[..quote].iter().rev().take_while(|&&byte| byte == b'#').count();
    let before = &bytes[..quote - hashes];
    let letters = before.iter().rev().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let prefix = &before[before.len() - letters..];
    let raw = matches!(prefix, b"r" | b"br" | b"cr");
    let begin = quote + 1;
    let mut at = begin;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if !raw => at += 2,
            b'"' if !raw => return (begin..at, at + 1),
            b'"' if bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count() >= hashes => {
                return (begin..at, at + 1 + hashes);
            }
            _ => at += 1,
        }
    }
    (begin..bytes.len(), bytes.len())
}

/// Bytes of the character literal whose inside `rest` begins with; none for a lifetime.
fn char_len(rest: &str) -> Option<usize> {
    let first = rest.chars().next()?;
    if first == '\\' {
        // The escaped character itself may be a quote.
        return rest[2..].find('\'').map(|length| length + 2);
    }
    rest[first.len_utf8()..].starts_with('\'').then_some(first.len_utf8())
}

/// `text` with everything blanked whose kind is not wanted.
fn keep(text: &str, kinds: &[Kind], wanted: impl Fn(Kind) -> bool) -> String {
    let bytes = text.bytes().zip(kinds).map(|(byte, &kind)| match byte {
        b'\n' => b'\n',
        _ if wanted(kind) => byte,
        _ => b' ',
    });
    String::from_utf8(bytes.collect()).expect("whole characters are blanked")
}

/// The lines of the items in `code` that carry a test attribute, and the names of the modules in
/// files of their own among them.
fn test_items(code: &str) -> (Vec<Range<usize>>, Vec<String>) {
    let mut lines = Vec::new();
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("#[") {
        let attribute = &code[at..at + bracketed_len(&code[at..])];
        if !is_test_attribute(attribute) {
            continue;
        }
        let item = &code[at + attribute.len()..];
        let item = &item[..item_len(item)];
        let first = code[..at].matches('\n').count();
        let count = attribute.matches('\n').count() + item.matches('\n').count();
        lines.push(first..first + count + 1);
        let mut words = words(item).skip_while(|&word| word != "mod").skip(1);
        if let (true, Some(name)) = (item.ends_with(';'), words.next()) {
            modules.push(name.to_owned());
        }
    }
    (lines, modules)
}

fn is_test_attribute(attribute: &str) -> bool {
    let inside: String = attribute[2..].chars().filter(|c| !c.is_whitespace()).collect();
    let path = inside.split(['(', ']']).next().unwrap_or_default();
    path == "test"
        || path == "rstest"
        || path.ends_with("::test")
        || inside.starts_with("cfg(test)")
        || inside.starts_with("cfg(all(test")
}

/// Length of `code` up to the end of its first group of round, square or curly brackets.
fn bracketed_len(code: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Length of the item that `code` begins with: up to its body's end, or to its semicolon.
fn item_len(code: &str) -> usize {
    let mut at = 0;
    while let Some(byte) = code.as_bytes().get(at) {
        match byte {
            b';' => return at + 1,
            b'{' => return at + bracketed_len(&code[at..]),
            b'(' | b'[' => at += bracketed_len(&code[at..]),
            _ => at += 1,
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::read("crates/core/src/a.rs", text).code
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        assert_eq!(code("a // unsafe\nb"), "a          \nb");
        assert_eq!(code("a /* x /* y */ z */ b"), "a                   b");
        assert_eq!(code(r#"f("un\"safe") + 1"#), r#"f("        ") + 1"#);
        assert_eq!(code("r#\"a\" b\"# c"), "r#\"    \"# c");
        assert_eq!(code("br\"\\\" c"), "br\" \" c");
        assert_eq!(code("'\"' 'a '\\'' b\"x\""), "' ' 'a '  ' b\" \"");
        assert_eq!(code("\"é\" 'é'"), "\"  \" '  '");
    }

    #[test]
    fn items_for_tests_are_told_from_others() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c(x: [u8; 2]) {}\n\
                    #[test]\nfn d(x: [u8; 2]) {\n}\n#[cfg(not(test))]\nfn e() {}\n";
        let source = Source::read("crates/core/src/a.rs", text);
        let tests: Vec<_> = (1..=11).filter(|&line| source.is_test(line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 7, 8, 9]);
    }

    #[test]
    fn a_module_declared_for_tests_is_tests() {
        let files = [
            ("crates/core/src/lib.rs", "#[cfg(test)]\nmod model;\nmod real;"),
            ("crates/core/src/model.rs", "fn a() {}"),
            ("crates/core/src/model/part.rs", "fn a() {}"),
            ("crates/core/src/models.rs", "fn a() {}"),
            ("crates/core/src/real.rs", "fn a() {}"),
            ("crates/core/tests/a.rs", "fn a() {}"),
        ];
        let tests: Vec<_> = read_all(files.into_iter()).iter().map(|s| s.is_test(1)).collect();
        assert_eq!(tests, [true, true, true, false, false, true]);
    }

    #[test]
    fn a_word_is_found_whole() {
        let source = Source::read("crates/core/src/a.rs", "unsafe_code\nx = unsafe { y }");
        assert_eq!(source.lines_with_word("unsafe").collect::<Vec<_>>(), [2]);
    }
}
