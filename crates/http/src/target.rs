//! The request-target (RFC 9112 section 3.2): the path of this server.

use tactus_core::path::RequestPath;

use super::fault::Fault;

/// A parsed request-target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// A path, and the text after the question mark.
    Path { path: RequestPath, query: Option<String> },
    /// `*`: the server as a whole, for OPTIONS.
    Server,
    /// A host and port, for CONNECT.
    Authority,
}

/// Reads a target; the second value is the authority of an absolute target.
pub(super) fn parse<'a>(method: &str, raw: &'a [u8]) -> Result<(Target, Option<&'a [u8]>), Fault> {
    if method == "CONNECT" {
        return Ok((Target::Authority, None));
    }
    if raw == b"*" {
        return if method == "OPTIONS" {
            Ok((Target::Server, None))
        } else {
            Err(Fault::BadTarget)
        };
    }
    let (authority, rest) = match raw.first() {
        Some(b'/') => (None, raw),
        _ => {
            let (authority, rest) = absolute(raw).ok_or(Fault::BadTarget)?;
            (Some(authority), rest)
        }
    };
    if !rest.iter().all(u8::is_ascii_graphic) || rest.contains(&b'#') {
        return Err(Fault::BadTarget);
    }
    let question = rest.iter().position(|&byte| byte == b'?');
    let (path, query) = rest.split_at(question.unwrap_or(rest.len()));
    // RFC 9112 section 3.2.1: an absolute target without a path means the root.
    let path = if path.is_empty() { b"/" } else { path };
    let path = RequestPath::parse(path).map_err(Fault::BadPath)?;
    let query = query.get(1..).map(|query| String::from_utf8_lossy(query).into_owned());
    Ok((Target::Path { path, query }, authority))
}

/// As [`parse`] for a URL in a field. Its scheme may be https, because a proxy before this server
/// may use TLS.
pub(super) fn of_url(raw: &[u8]) -> Result<(Target, Option<&[u8]>), Fault> {
    match after_scheme(raw, b"https://") {
        Some((authority, rest)) => Ok((parse("MOVE", rest)?.0, Some(authority))),
        None => parse("MOVE", raw),
    }
}

/// The authority of `http://authority`, and the rest.
fn absolute(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    after_scheme(raw, b"http://")
}

/// The authority after `begin`, a scheme in any case with its slashes; and the rest.
fn after_scheme<'a>(raw: &'a [u8], begin: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (scheme, rest) = raw.split_at_checked(begin.len())?;
    let end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
    let is_one = scheme.eq_ignore_ascii_case(begin) && end > 0;
    is_one.then(|| rest.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(raw: &str) -> Result<(String, Option<String>, Option<String>), Fault> {
        let (target, authority) = parse("GET", raw.as_bytes())?;
        let Target::Path { path, query } = target else { panic!("{raw} is no path") };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((path.name().to_owned(), query, authority.map(text)))
    }

    #[test]
    fn paths_and_absolute_targets_are_understood() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(path("/a/b?c=d?e"), Ok(("a/b".into(), some("c=d?e"), None)));
        assert_eq!(path("/?"), Ok(("".into(), some(""), None)));
        assert_eq!(path("http://h:80/a?b"), Ok(("a".into(), some("b"), some("h:80"))));
        assert_eq!(path("HTTP://h"), Ok(("".into(), None, some("h"))));
        assert_eq!(path("http://h?q"), Ok(("".into(), some("q"), some("h"))));
    }

    #[test]
    fn everything_else_is_refused() {
        for raw in ["", "a", "*", "http:///a", "https://h/a", "h:80", "/a#b", "/a?b#c", "/a?\u{e9}"]
        {
            assert_eq!(path(raw), Err(Fault::BadTarget), "{raw}");
        }
        assert!(matches!(path("/../a"), Err(Fault::BadPath(_))));
    }

    #[test]
    fn the_other_forms_belong_to_their_methods() {
        assert_eq!(parse("OPTIONS", b"*"), Ok((Target::Server, None)));
        assert_eq!(parse("CONNECT", b"h:80"), Ok((Target::Authority, None)));
    }
}
