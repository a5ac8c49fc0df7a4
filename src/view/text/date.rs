//! Conversion between dates and nanoseconds since 1970.

/// Returns a text such as `2026-11-21 11:22:33 UTC` for nanoseconds since 1970.
pub(in crate::view) fn utc(since_epoch_ns: u64) -> String {
    let seconds = since_epoch_ns / 1_000_000_000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Returns the year, month and day of a number of days since 1970.
///
/// The function counts in years that start in March, so that the leap day is the last one, and in
/// eras of 400 years, after which the calendar repeats.
fn civil(days_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_TO_EPOCH: u64 = 719_468; // from 0000-03-01
    const DAYS_OF_ERA: u64 = 146_097;
    let days = days_since_epoch + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Returns the days from 1970 to a date, or `None` for an invalid or earlier date.
pub(in crate::view) fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    const DAYS_TO_EPOCH: u64 = 719_468; // from 0000-03-01
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year_from_march, march_month) =
        if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year_from_march / 4 - year_from_march / 100 + year_from_march / 400;
    let days = 365 * year_from_march + leap_days + (153 * march_month + 2) / 5 + day - 1;
    let days = days.checked_sub(DAYS_TO_EPOCH)?;
    // The 30th of February converts to another date.
    (civil(days) == (year, month, day)).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_their_dates() {
        for day in (0..80 * 366).chain([2_000_000]) {
            let (year, month, of_month) = civil(day);
            assert_eq!(days(year, month, of_month), Some(day));
        }
        for (year, month, day) in [(2026, 2, 29), (2100, 2, 29), (2026, 4, 31), (1969, 12, 31)] {
            assert_eq!(days(year, month, day), None);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |seconds: u64, expected: &str| {
            assert_eq!(utc(seconds * 1_000_000_000 + 999), expected);
        };
        check(0, "1970-01-01 00:00:00 UTC");
        check(951_782_399, "2000-02-28 23:59:59 UTC");
        check(951_782_400, "2000-02-29 00:00:00 UTC");
        check(951_868_800, "2000-03-01 00:00:00 UTC");
        check(1_795_260_153, "2026-11-21 11:22:33 UTC");
        check(4_107_542_400, "2100-03-01 00:00:00 UTC");
    }
}
