//! The query of a request-target: `key=value` pairs, percent-decoded.

use std::borrow::Cow;

use crate::percent::decode;

/// Every value of `key`, decoded; `None` for a value that cannot be decoded.
pub(super) fn values<'a>(
    query: Option<&'a str>,
    key: &'a str,
) -> impl Iterator<Item = Option<Cow<'a, str>>> {
    query
        .unwrap_or("")
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(move |(name, _)| decode(name).is_some_and(|name| name == key))
        .map(|(_, value)| decode(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_decoded() {
        let all = |query: &str, key: &str| {
            values(Some(query), key).map(|value| value.map(Cow::into_owned)).collect::<Vec<_>>()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(all("a=1&rate=8.8M&b", "rate"), [some("8.8M")]);
        assert_eq!(all("rate=1&rate=2", "rate"), [some("1"), some("2")]);
        assert_eq!(all("CMCD=rtp%3D100%2Csu", "CMCD"), [some("rtp=100,su")]);
        assert_eq!(all("r%61te=%c3%a9", "rate"), [some("é")]);
        assert_eq!(all("b", "b"), [some("")]);
        for bad in ["rate=%", "rate=%2", "rate=%zz", "rate=%+1", "rate=%ff"] {
            assert_eq!(all(bad, "rate"), [None], "{bad}");
        }
        assert_eq!(values(None, "rate").count(), 0);
    }
}
