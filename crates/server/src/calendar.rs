//! Wall time as people write it: ISO 8601, UTC.

use tactus_core::units::WallTime;

const SECONDS_PER_DAY: u64 = 86_400;

/// A second of UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Civil {
    pub(crate) year: u64,
    /// From 1.
    pub(crate) month: u64,
    /// From 1.
    pub(crate) day: u64,
    pub(crate) hour: u64,
    pub(crate) minute: u64,
    pub(crate) second: u64,
}

/// `2023-11-14T22:13:20Z`
pub(crate) fn rfc_3339(time: WallTime) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::of(time);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// `2023-11-14 22:13`
pub(crate) fn to_the_minute(time: WallTime) -> String {
    let Civil { year, month, day, hour, minute, .. } = Civil::of(time);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// The moment that is written like `2023-11-14T22:13:20Z`, with `Z` or a distance from UTC at its end.
pub(crate) fn read_rfc_3339(text: &str) -> Option<WallTime> {
    let (date, rest) = text.split_once('T')?;
    let at = rest.find(['Z', '+', '-'])?;
    let (time, zone) = rest.split_at(at);
    let numbers = |text: &str, mark: char| -> Option<Vec<u64>> {
        let all: Option<Vec<_>> = text.split(mark).map(number).collect();
        all.filter(|all| (2..=3).contains(&all.len()))
    };
    let &[year, month, day] = &numbers(date, '-')?[..] else { return None };
    let time = numbers(time, ':')?;
    let (hour, minute, second) = (time[0], time[1], time.get(2).copied().unwrap_or(0));
    let is_right = (1970..10_000).contains(&year) && hour < 24 && minute < 60 && second < 60;
    let civil = Civil { year, month, day, hour, minute, second };
    let utc = if is_right { civil.time() } else { return None };
    // A date that there is not becomes another one.
    (Civil::of(utc) == civil).then_some(())?;
    let ahead = match zone.split_at(1) {
        ("Z", "") => return Some(utc),
        ("Z", _) => return None,
        (_, ahead) => numbers(ahead, ':').filter(|all| all.len() == 2)?,
    };
    let ahead = (ahead[0] * 3600 + ahead[1] * 60) * 1_000_000_000;
    let moved = match zone.starts_with('+') {
        true => utc.0.checked_sub(ahead)?,
        false => utc.0.checked_add(ahead)?,
    };
    Some(WallTime(moved))
}

/// Two or four digits.
pub(crate) fn number(text: &str) -> Option<u64> {
    let is_number = matches!(text.len(), 2 | 4) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

impl Civil {
    /// When it was; dates to days as the other way round.
    fn time(self) -> WallTime {
        let year = self.year - u64::from(self.month <= 2);
        let (era, year_of_era) = (year / 400, year % 400);
        let month_from_march = (self.month + 9) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day.saturating_sub(1);
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let days = (era * 146_097 + day_of_era).saturating_sub(719_468);
        let seconds = days * SECONDS_PER_DAY + self.hour * 3600 + self.minute * 60 + self.second;
        WallTime(seconds * 1_000_000_000)
    }

    /// The second in which `time` lies. Days to dates by the algorithm of Howard Hinnant,
    /// "chrono-compatible low-level date algorithms": years begin in March, so that the leap day is last.
    pub(crate) fn of(time: WallTime) -> Self {
        let seconds = time.0 / 1_000_000_000;
        let days = seconds / SECONDS_PER_DAY + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let seconds = seconds % SECONDS_PER_DAY;
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        Self { year, month, day, hour, minute, second }
    }
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
