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

impl Civil {
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
        }
        assert_eq!(to_the_minute(WallTime(951_868_799_000_000_000)), "2000-02-29 23:59");
    }
}
