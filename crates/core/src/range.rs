//! Byte ranges: what a `Range` field asks of a title of known length (RFC 9110 section 14).
//!
//! Promise: every range that comes out lies within the title, and all of them together ask for no
//! more bytes than it has; so no request can multiply the work (RangeAmp, CVE-2011-3192). All
//! arithmetic is checked. It neither reorders nor joins ranges: the answer has the asked order.

use alloc::vec::Vec;
use core::ops::Range;

/// Most ranges in one request, unless configured. Players ask for one, a PDF viewer for a handful.
pub const RANGES_MAX: usize = 8;

/// Most ranges that may overlap one before them (RFC 9110 section 14.2 names more than two as
/// abuse).
pub const OVERLAPS_MAX: usize = 2;

/// What a `Range` field asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestedRange {
    /// The field says nothing that counts here (bad syntax, another unit): the whole title.
    Whole,
    /// These parts, in this order; at least one, none empty.
    Parts(Vec<Range<u64>>),
    /// Nothing that the title has, or more than one answer may carry: 416.
    Unsatisfiable,
}

/// Reads the value of a `Range` field for a title of `len` bytes; at most `ranges_max` are
/// answered.
pub fn asked(field: &[u8], len: u64, ranges_max: usize) -> RequestedRange {
    // An empty title has no range at all. Clients that always send `bytes=0-` still want it.
    let (Some(set), true) = (range_set(field), len > 0) else { return RequestedRange::Whole };
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut count = 0;
    for spec in set.split(|&byte| byte == b',') {
        let spec = spec.trim_ascii();
        // RFC 9110 section 5.6.1: a recipient reads over empty list elements.
        if spec.is_empty() {
            continue;
        }
        count += 1;
        match resolve(spec, len) {
            Spec::Invalid => return RequestedRange::Whole,
            Spec::Outside => {}
            // The count is bounded here, so that a long field costs no memory.
            Spec::Part(part) if parts.len() < ranges_max => parts.push(part),
            Spec::Part(_) => {}
        }
    }
    if count == 0 {
        return RequestedRange::Whole;
    }
    match count <= ranges_max && !parts.is_empty() && bounded(&parts, len) {
        true => RequestedRange::Parts(parts),
        false => RequestedRange::Unsatisfiable,
    }
}

/// One element of the set, against the title's length.
enum Spec {
    /// Not of the grammar: the whole field is ignored.
    Invalid,
    /// Well formed, but past the end.
    Outside,
    Part(Range<u64>),
}

fn resolve(spec: &[u8], len: u64) -> Spec {
    let Some(dash) = spec.iter().position(|&byte| byte == b'-') else { return Spec::Invalid };
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    if first.is_empty() && last.is_empty() {
        return Spec::Invalid;
    }
    let (Some(first), Some(last)) = (number(first), number(last)) else { return Spec::Invalid };
    match (first, last) {
        (None, Some(last)) if last.at_most(0) => Spec::Outside,
        (None, Some(suffix)) => Spec::Part(len.saturating_sub(suffix.value)..len),
        // Section 14.1.1: a set with such a range is invalid.
        (Some(first), Some(last)) if last < first => Spec::Invalid,
        // Sections 14.1.2 and 15.5.17: nothing lies behind the end, and a range ends there.
        (Some(first), _) if first.value >= len => Spec::Outside,
        (Some(first), Some(last)) => Spec::Part(first.value..last.value.min(len - 1) + 1),
        (Some(first), None) => Spec::Part(first.value..len),
        (None, None) => Spec::Invalid,
    }
}

/// A decimal number of any length, ordered by value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Number<'a> {
    /// Digits without leading zeros: the longer of two numbers is the larger.
    len: usize,
    digits: &'a [u8],
    /// The value, saturated at `u64::MAX`: no title is that long.
    value: u64,
}

impl Number<'_> {
    fn at_most(self, most: u64) -> bool {
        self.value <= most
    }
}

/// Digits only, or nothing; no sign, no space. `None` when it is something else.
fn number(digits: &[u8]) -> Option<Option<Number<'_>>> {
    if digits.is_empty() {
        return Some(None);
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    let digits = &digits[zeros..];
    let value = digits
        .iter()
        .try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
    Some(Some(Number { len: digits.len(), digits, value: value.unwrap_or(u64::MAX) }))
}

fn bounded(parts: &[Range<u64>], len: u64) -> bool {
    let sum = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.end - part.start));
    let overlaps = parts
        .iter()
        .enumerate()
        .filter(|(index, part)| parts[..*index].iter().any(|before| overlap(before, part)))
        .count();
    sum.is_some_and(|sum| sum <= len) && overlaps <= OVERLAPS_MAX
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The set behind `bytes=`; `None` for another unit. Units are case-insensitive (section 14.1).
fn range_set(field: &[u8]) -> Option<&[u8]> {
    let field = field.trim_ascii();
    let equals = field.iter().position(|&byte| byte == b'=')?;
    field[..equals].eq_ignore_ascii_case(b"bytes").then(|| &field[equals + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    fn asked(field: &[u8], len: u64) -> RequestedRange {
        super::asked(field, len, RANGES_MAX)
    }

    fn parts(field: &str, len: u64) -> Vec<Range<u64>> {
        match asked(field.as_bytes(), len) {
            RequestedRange::Parts(parts) => parts,
            other => panic!("{field} of {len} gave {other:?}"),
        }
    }

    #[test]
    fn the_examples_of_rfc_9110_mean_what_it_says() {
        assert_eq!(parts("bytes=0-499", 10_000), vec![0..500]);
        assert_eq!(parts("bytes=-500", 10_000), vec![9_500..10_000]);
        assert_eq!(parts("bytes=9500-", 10_000), vec![9_500..10_000]);
        assert_eq!(parts("bytes=0-0,-1", 10_000), vec![0..1, 9_999..10_000]);
        assert_eq!(
            parts("bytes= 0-999, 4500-5499, -1000", 10_000),
            vec![0..1_000, 4_500..5_500, 9_000..10_000]
        );
        assert_eq!(parts("bytes=500-700,601-999", 10_000), vec![500..701, 601..1_000]);
        assert_eq!(parts("BYTES=0-0", 10_000), vec![0..1]);
    }

    #[test]
    fn a_range_is_cut_at_the_end_of_the_title() {
        assert_eq!(parts("bytes=0-99999", 100), vec![0..100]);
        assert_eq!(parts("bytes=-99999", 100), vec![0..100]);
        assert_eq!(parts("bytes=99-", 100), vec![99..100]);
        assert_eq!(parts("bytes=5-9,100-200", 100), vec![5..10]);
        for field in ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=100-,200-"] {
            assert_eq!(asked(field.as_bytes(), 100), RequestedRange::Unsatisfiable, "{field}");
        }
    }

    #[test]
    fn r01_many_tiny_ranges_are_unsatisfiable() {
        let many = |count: u64| {
            let specs: Vec<_> = (0..count).map(|n| format!("{0}-{0}", 2 * n)).collect();
            format!("bytes={}", specs.join(","))
        };
        assert_eq!(asked(many(500).as_bytes(), 10_000), RequestedRange::Unsatisfiable);
        assert_eq!(asked(many(9).as_bytes(), 10_000), RequestedRange::Unsatisfiable);
        assert_eq!(parts(&many(8), 10_000).len(), 8);
    }

    #[test]
    fn r02_repeated_and_overlapping_ranges_are_unsatisfiable() {
        let repeated = format!("bytes={}", vec!["0-"; 100].join(","));
        assert_eq!(asked(repeated.as_bytes(), 10_000), RequestedRange::Unsatisfiable);
        assert_eq!(asked(b"bytes=0-,0-", 10_000), RequestedRange::Unsatisfiable);
        assert_eq!(asked(b"bytes=0-9,5-14,10-19,15-24", 10_000), RequestedRange::Unsatisfiable);
        assert_eq!(parts("bytes=0-9,5-14,10-19", 10_000).len(), 3);
    }

    #[test]
    fn r03_numbers_are_checked_and_bad_syntax_is_ignored() {
        for field in [
            "bytes=18446744073709551615-",
            "bytes=18446744073709551616-",
            "bytes=18446744073709551616-18446744073709551616",
            "bytes=99999999999999999999999999999999999999-",
            "bytes=-0",
            "bytes=-00000000000000000000000000",
        ] {
            assert_eq!(asked(field.as_bytes(), 100), RequestedRange::Unsatisfiable, "{field}");
        }
        for field in [
            "bytes=18446744073709551617-18446744073709551616",
            "bytes=99999999999999999999999-18446744073709551616",
            "bytes=0-1,18446744073709551616-18446744073709551615",
            "bytes=00000000000000000000000000005-3",
            "bytes=5-3",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1-+2",
            "bytes=1",
            "bytes=--1",
            "bytes=0x1-2",
            "bytes=1 - 2",
            "items=0-5",
            "0-5",
            "",
            "bytes=,,",
            "bytes=0-1,x",
        ] {
            assert_eq!(asked(field.as_bytes(), 100), RequestedRange::Whole, "{field}");
        }
    }

    #[test]
    fn s12_a_number_larger_than_any_file_means_the_end() {
        let huge = [
            "100",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999999999999999999",
        ];
        for huge in huge {
            assert_eq!(parts(&format!("bytes=0-{huge}"), 100), vec![0..100], "{huge}");
            assert_eq!(parts(&format!("bytes=99-{huge}"), 100), vec![99..100], "{huge}");
            assert_eq!(parts(&format!("bytes=-{huge}"), 100), vec![0..100], "{huge}");
            assert_eq!(parts(&format!("bytes=0-4,50-{huge}"), 100), vec![0..5, 50..100], "{huge}");
            // RFC 9110 section 14.1.2: ranges that begin after the end are dropped from the set.
            let behind = format!("bytes=0-4,{huge}-,{huge}-{huge}");
            assert_eq!(parts(&behind, 100), vec![0..5], "{huge}");
            assert_eq!(parts(&format!("bytes=0000{}0-0{huge}", "0".repeat(40)), 100), vec![0..100]);
        }
        let RequestedRange::Parts(parts) = asked(b"bytes=0-18446744073709551615", u64::MAX) else {
            panic!("the whole of the largest possible title must be a part")
        };
        assert_eq!(parts.first(), Some(&(0..u64::MAX)));
    }

    #[test]
    fn an_empty_title_is_sent_whole() {
        for field in ["bytes=0-", "bytes=-5", "bytes=0-0"] {
            assert_eq!(asked(field.as_bytes(), 0), RequestedRange::Whole, "{field}");
        }
    }

    proptest! {
        #[test]
        fn no_field_asks_for_more_than_the_title_has(
            field in "bytes=([0-9]{0,20}-[0-9]{0,20},?){1,10}", len in 0u64..1_000_000
        ) {
            if let RequestedRange::Parts(parts) = asked(field.as_bytes(), len) {
                prop_assert!(!parts.is_empty() && parts.len() <= RANGES_MAX);
                prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= len));
                prop_assert!(parts.iter().map(|part| part.end - part.start).sum::<u64>() <= len);
            }
        }

        #[test]
        fn any_bytes_are_survived(field in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut prefixed = Vec::from(&b"bytes="[..]);
            prefixed.extend(&field);
            asked(&field, 1000);
            asked(&prefixed, u64::MAX);
        }

        #[test]
        fn a_single_range_comes_back_as_it_was_written(
            len in 1u64..u64::MAX / 4, a in any::<u64>(), b in any::<u64>()
        ) {
            let (a, b) = (a % len, b % len);
            let (first, last) = (a.min(b), a.max(b));
            let field: String = format!("bytes={first}-{last}");
            let [part] = &parts(&field, len)[..] else { panic!("one range, one part") };
            prop_assert_eq!(part, &(first..last + 1));
        }
    }
}
