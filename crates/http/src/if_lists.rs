//! The field `If` of WebDAV (RFC 4918 section 10.4): conditions on locks and versions, and the lock
//! tokens of a client.
//!
//! Promise: a value has one interpretation or is refused. The time is linear in its length, and a
//! value has at most [`CONDITIONS_MAX`] conditions.

use super::response::Response;

/// A list of conditions that must all be true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct List<'a> {
    /// The URL of the resource; none for the resource of the request.
    pub(super) resource: Option<&'a [u8]>,
    pub(super) conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Condition {
    /// The condition is negated.
    pub(super) not: bool,
    pub(super) state: State,
}

/// A state of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// A lock with this token covers it.
    Token(String),
    /// The entity tag, with quotes.
    Tag(String),
}

/// Most conditions of a value. Clients send one, or one for each of two paths.
const CONDITIONS_MAX: usize = 64;

/// The lists, of which at least one must be true.
///
/// # Errors
/// 400 when the value breaks the grammar of RFC 4918.
pub(super) fn lists(value: &[u8]) -> Result<Vec<List<'_>>, Response> {
    let wrong = "If is like (<token>), or <url> (<token>) [\"tag\"]; at most 64 conditions";
    read(value).ok_or_else(|| Response::text(400, wrong))
}

/// All lock tokens in the lists. A token in a list counts as submitted (section 10.4.1).
pub(super) fn tokens(lists: &[List<'_>]) -> Vec<String> {
    let all = lists.iter().flat_map(|list| &list.conditions);
    let token = |condition: &Condition| match &condition.state {
        State::Token(token) => Some(token.clone()),
        State::Tag(_) => None,
    };
    all.filter_map(token).collect()
}

fn read(value: &[u8]) -> Option<Vec<List<'_>>> {
    let (mut rest, mut lists, mut resource) = (value.trim_ascii(), Vec::new(), None);
    let (mut left, mut is_empty) = (CONDITIONS_MAX, false);
    while let Some((&first, tail)) = rest.split_first() {
        match first {
            b'<' => {
                // Either all lists have a resource, or none does.
                if is_empty || (resource.is_none() && !lists.is_empty()) {
                    return None;
                }
                let (url, tail) = until(tail, b'>')?;
                (resource, is_empty, rest) = (Some(url), true, tail);
            }
            b'(' => {
                let (conditions, tail) = conditions(tail, &mut left)?;
                lists.push(List { resource, conditions });
                (is_empty, rest) = (false, tail);
            }
            _ => return None,
        }
        rest = rest.trim_ascii_start();
    }
    (!lists.is_empty() && !is_empty).then_some(lists)
}

/// The conditions up to the closing bracket, and the bytes after it.
fn conditions<'a>(mut rest: &'a [u8], left: &mut usize) -> Option<(Vec<Condition>, &'a [u8])> {
    let mut all = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if let Some(tail) = rest.strip_prefix(b")") {
            return (!all.is_empty()).then_some((all, tail));
        }
        let (word, tail) = rest.split_at_checked(3).unwrap_or_default();
        let not = word.eq_ignore_ascii_case(b"not");
        if not {
            rest = tail.trim_ascii_start();
        }
        *left = left.checked_sub(1)?;
        let (first, tail) = rest.split_first()?;
        let (state, tail) = match first {
            b'<' => {
                let (token, tail) = until(tail, b'>')?;
                (State::Token(text(token)?), tail)
            }
            b'[' => {
                let (tag, tail) = tag(tail)?;
                (State::Tag(text(tag)?), tail)
            }
            _ => return None,
        };
        all.push(Condition { not, state });
        rest = tail;
    }
}

/// An entity tag, and the bytes after the bracket. A bracket within its quotes has no meaning.
fn tag(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let bare = bytes.strip_prefix(b"W/").unwrap_or(bytes);
    let Some(quoted) = bare.strip_prefix(b"\"") else { return until(bytes, b']') };
    let (inner, tail) = until(quoted, b'"')?;
    let len = bytes.len() - bare.len() + inner.len() + 2;
    Some((&bytes[..len], tail.strip_prefix(b"]")?))
}

fn until(bytes: &[u8], end: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&byte| byte == end)?;
    (at > 0 || end == b'"').then(|| (&bytes[..at], &bytes[at + 1..]))
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

/// Whether any bytes are a valid value; checks the bounds of the result.
#[cfg(any(test, feature = "fuzz-targets"))]
pub(super) fn understood(value: &[u8]) -> bool {
    let Ok(lists) = lists(value) else { return false };
    let count: usize = lists.iter().map(|list| list.conditions.len()).sum();
    assert!((1..=CONDITIONS_MAX).contains(&count));
    assert!(tokens(&lists).len() <= count);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: &str) -> Option<String> {
        let lists = read(value.as_bytes())?;
        let list = |list: &List<'_>| {
            let resource = list.resource.map(String::from_utf8_lossy).unwrap_or_default();
            let of = |condition: &Condition| {
                let not = if condition.not { "!" } else { "" };
                match &condition.state {
                    State::Token(token) => format!("{not}<{token}>"),
                    State::Tag(tag) => format!("{not}{tag}"),
                }
            };
            let all: Vec<_> = list.conditions.iter().map(of).collect();
            format!("{resource}({})", all.join(" "))
        };
        Some(lists.iter().map(list).collect::<Vec<_>>().join(" or "))
    }

    /// The examples of RFC 4918 section 10.4, and values that clients send.
    #[test]
    fn w05_conditions_of_clients_are_understood() {
        for (value, meaning) in [
            ("(<urn:uuid:181d4fae>)", "(<urn:uuid:181d4fae>)"),
            (
                "(<urn:uuid:181d4fae> [\"I am an ETag\"]) ([\"I am another ETag\"])",
                "(<urn:uuid:181d4fae> \"I am an ETag\") or (\"I am another ETag\")",
            ),
            ("(Not <urn:1> <urn:2>)", "(!<urn:1> <urn:2>)"),
            ("(<urn:1>) (Not <DAV:no-lock>)", "(<urn:1>) or (!<DAV:no-lock>)"),
            (
                "<http://h/a>\t(<urn:1> [W/\"A]\"]) ([\"s\"])</b>(not[\"x\"])",
                "http://h/a(<urn:1> W/\"A]\") or http://h/a(\"s\") or /b(!\"x\")",
            ),
            ("([bare])", "(bare)"),
            ("([\"\"])", "(\"\")"),
        ] {
            assert_eq!(shown(value).as_deref(), Some(meaning), "{value}");
        }
        let all = lists(b"</a> (<t:1> [\"e\"]) </b> (Not <t:2>)").unwrap();
        assert_eq!(tokens(&all), ["t:1", "t:2"]);
    }

    #[test]
    fn w05_what_is_no_condition_is_refused() {
        for bad in [
            "",
            " ",
            "()",
            "(",
            ")",
            "(<>)",
            "(<a>",
            "<a>",
            "<a> <b> (<c>)",
            "(<c>) <a> (<c>)",
            "(<c>) x",
            "x",
            "(x)",
            "(Not)",
            "(Not Not <a>)",
            "([\"a])",
            "([\"a\"x])",
            "([])",
            "<a> (<c>) <b>",
            "*",
            "<urn:1>",
            "(\"a\")",
            "(<a>),(<b>)",
        ] {
            assert_eq!(shown(bad), None, "{bad}");
        }
        assert_eq!(lists(b"(x)").unwrap_err().status(), 400);
        assert!(read(&b"(<a>)".repeat(CONDITIONS_MAX)).is_some());
        assert!(read(&b"(<a>)".repeat(CONDITIONS_MAX + 1)).is_none());
        assert!(read(&b"(<\xff>)"[..]).is_none());
    }
}
