//! Wall time as people write it: ISO 8601, UTC.

use jiff::Timestamp;
use tactus_core::units::WallTime;

/// `2023-11-14T22:13:20Z`
pub fn rfc_3339(time: WallTime) -> String {
    format!("{:.0}", timestamp(time))
}

/// `2023-11-14T22:13:20.123Z`
pub fn rfc_3339_millis(time: WallTime) -> String {
    format!("{:.3}", timestamp(time))
}

/// `2023-11-14 22:13`
pub fn to_the_minute(time: WallTime) -> String {
    timestamp(time).strftime("%Y-%m-%d %H:%M").to_string()
}

/// The moment that is written like `2023-11-14T22:13:20Z`, with `Z` or an offset from UTC at its
/// end. Of the forms of ISO 8601 it is the one with separators, without fractions of a second.
pub fn read_rfc_3339(text: &str) -> Option<WallTime> {
    let (date, time) = text.split_once('T')?;
    let is_plain = |byte: u8| byte.is_ascii_digit() || b"Z:+-".contains(&byte);
    let has_separators = date.len() == "2023-11-14".len() && time.as_bytes().get(2) == Some(&b':');
    // jiff takes the 60th second of a minute for the 59th.
    if !has_separators || !time.bytes().all(is_plain) || time.get(5..8) == Some(":60") {
        return None;
    }
    let read: Timestamp = text.parse().ok()?;
    u64::try_from(read.as_nanosecond()).ok().map(WallTime)
}

/// The same moment for the library of dates.
pub fn timestamp(time: WallTime) -> Timestamp {
    Timestamp::from_nanosecond(time.0.into()).expect("64 bits of nanoseconds end in the year 2554")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_written_and_nothing_else_is() {
        let at = |seconds: u64| Some(WallTime(seconds * 1_000_000_000));
        assert_eq!(read_rfc_3339("2000-02-29T01:00+01:00"), at(951_782_400));
        assert_eq!(read_rfc_3339("2000-02-28T22:30:00-01:30"), at(951_782_400));
        for text in [
            "",
            "T",
            "2000-02-29",
            "2000-02-30T00:00:00Z",
            "2001-02-29T00:00:00Z",
            "2000-13-01T00:00Z",
            "2000-00-01T00:00Z",
            "2000-02-29T24:00Z",
            "2000-02-29T00:60Z",
            "2000-02-29T00:00",
            "2000-2-29T00:00Z",
            "2000-02-29T00:00Zulu",
            "2000-02-29T00:00+1",
            "1969-12-31T00:00Z",
            "2000-02-00T00:00Z",
            "+000-02-29T00:00Z",
            "1970-01-01T00:00+01:00",
            "2000-02-29 00:00:00Z",
            "2000-02-29T00:00:00.5Z",
            "2000-02-29T00:00:00Z[UTC]",
            "2000-02-29t00:00:00z",
            "20000229T000000Z",
            "2000-02-29T0000Z",
            "2000-02-29T00:00:60Z",
            "-009999-02-29T00:00Z",
            "+010000-02-29T00:00Z",
        ] {
            assert_eq!(read_rfc_3339(text), None, "{text}");
        }
    }

    #[test]
    fn known_days_have_their_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc_3339(WallTime(seconds * 1_000_000_000)), text);
            assert_eq!(read_rfc_3339(text), Some(WallTime(seconds * 1_000_000_000)));
        }
        assert_eq!(to_the_minute(WallTime(951_868_799_000_000_000)), "2000-02-29 23:59");
    }
}
