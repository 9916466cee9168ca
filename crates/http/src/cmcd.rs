//! Client media data (CMCD, CTA-5004): of all keys only `rtp`, the requested rate.
//!
//! Promise: malformed data is ignored and never an error, as the specification requires. The key is
//! read from each of the four fields, and from the query.

use tactus_core::units::BitRate;

use super::fields::Fields;
use super::query;

/// The fields that carry keys; the specification puts `rtp` into the first.
const FIELDS: [&str; 4] = ["cmcd-status", "cmcd-request", "cmcd-object", "cmcd-session"];

/// The rate that the player requests ("requested maximum throughput").
pub(super) fn requested_throughput(fields: &Fields, query: Option<&str>) -> Option<BitRate> {
    let in_fields = FIELDS.iter().flat_map(|name| fields.all(name)).find_map(rtp);
    in_fields
        .or_else(|| query::values(query, "CMCD").flatten().find_map(|list| rtp(list.as_bytes())))
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
