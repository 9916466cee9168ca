//! Client media data (CMCD, CTA-5004): of all keys `rtp`, the requested rate, and `sid`, the id of
//! the session.
//!
//! Promise: malformed data is ignored and never an error, as the specification requires. The keys
//! are read from each of the four fields, and from the query.

use std::borrow::Cow;

use tactus_core::units::BitRate;

use super::fields::Fields;
use super::query;

/// The fields that carry keys; the specification puts `rtp` into the first.
const FIELDS: [&str; 4] = ["cmcd-status", "cmcd-request", "cmcd-object", "cmcd-session"];

/// The rate that the player requests ("requested maximum throughput").
pub(super) fn requested_throughput(fields: &Fields, query: Option<&str>) -> Option<BitRate> {
    lists(fields, query).find_map(|list| rtp(&list))
}

/// The id of the player's session, which is random ("a GUID identifying the current playback
/// session").
pub(super) fn session(fields: &Fields, query: Option<&str>) -> Option<Vec<u8>> {
    lists(fields, query).find_map(|list| sid(&list))
}

/// The lists of keys: those of the fields go before those of the query.
fn lists<'a>(fields: &'a Fields, query: Option<&'a str>) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let in_fields = FIELDS.iter().flat_map(|name| fields.all(name)).map(Cow::Borrowed);
    let in_query = query::values(query, "CMCD").flatten();
    in_fields.chain(in_query.map(|list| Cow::Owned(list.into_owned().into_bytes())))
}

/// The value of `sid` in a list of keys: a string of at most 64 characters that is not empty.
fn sid(list: &[u8]) -> Option<Vec<u8>> {
    elements(list).find_map(|element| {
        let id = element.strip_prefix(b"sid=\"")?.strip_suffix(b"\"")?;
        (1..=64).contains(&id.len()).then(|| id.to_vec())
    })
}

/// The value of `rtp` in a list of keys: an integer of kbit/s, at least one.
fn rtp(list: &[u8]) -> Option<BitRate> {
    elements(list).find_map(|element| {
        let value = std::str::from_utf8(element.strip_prefix(b"rtp=")?).ok()?;
        let plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let rate = value.parse::<u64>().ok().filter(|_| plain)?.checked_mul(1000)?;
        (rate > 0).then_some(BitRate(rate))
    })
}

/// The elements of a list; a comma within a string is no separator.
fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    list.split(move |&byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' => return !quoted,
            _ => {}
        }
        false
    })
    .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtp_is_found_among_other_keys() {
        for (list, kilobits) in [
            ("rtp=10000", Some(10_000)),
            ("bl=21300, rtp=3200 ,su", Some(3_200)),
            ("nor=\"a,rtp=1,\\\",rtp=2\",rtp=700", Some(700)),
            ("com.example-rtp=5,rtp=12", Some(12)),
            ("rtp=0", None),
            ("rtp=-1", None),
            ("rtp=1.5", None),
            ("rtp=\"100\"", None),
            ("rtp", None),
            ("rtp=", None),
            ("rtp=99999999999999999999", None),
            ("rtp=18446744073709551615", None),
            ("sid=\"rtp=100", None),
            ("RTP=100", None),
            ("", None),
        ] {
            assert_eq!(rtp(list.as_bytes()).map(|r| r.0), kilobits.map(|k| k * 1000u64), "{list}");
        }
    }

    #[test]
    fn r05_the_session_of_a_player_is_its_sid() {
        for (list, id) in [
            ("sid=\"6e2fb550-c457\"", Some("6e2fb550-c457")),
            ("bl=21300,sid=\"a,b\",rtp=1", Some("a,b")),
            ("nor=\"sid=1\",sid=\"x\"", Some("x")),
            ("sid=\"\"", None),
            ("sid=x", None),
            ("sid=\"x", None),
            ("sid", None),
        ] {
            assert_eq!(sid(list.as_bytes()).as_deref(), id.map(str::as_bytes), "{list}");
        }
        assert_eq!(sid(format!("sid=\"{}\"", "x".repeat(65)).as_bytes()), None);
        let query = Some("CMCD=bl%3D1%2Csid%3D%22x%22");
        assert_eq!(session(&Fields::default(), query), Some(b"x".to_vec()));
    }

    #[test]
    fn fields_go_before_the_query() {
        let head = b"cmcd-sessionrtp=1cmcd-statusrtp=2".to_vec();
        let fields = Fields::new(head, vec![(0..12, 12..17), (17..28, 28..33)]);
        let query = Some("CMCD=su%2Crtp%3D3&x=y");
        assert_eq!(requested_throughput(&fields, query), Some(BitRate(2000)));
        assert_eq!(requested_throughput(&Fields::default(), query), Some(BitRate(3000)));
        assert_eq!(requested_throughput(&Fields::default(), Some("CMCD=%zz")), None);
        assert_eq!(requested_throughput(&Fields::default(), None), None);
    }
}
