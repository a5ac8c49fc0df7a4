//! A point in time of a recording, as users write it.

use std::str::FromStr;
use std::time::Duration;

use crate::quantity;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::text::date;

const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// Upper limit of times in nanoseconds, whatever a file says: sums of three stay in range.
const LATEST_NS: u64 = u64::MAX / 4;
const EXPECTED: &str = "expected a time such as 5, 5s, 500ms, 5m or 1h30m (after the start), \
    -30s (before the end), +10s (after --from), 50%, 14:03 or 2026-11-21T14:03:05 (UTC)";

/// A point in time of a recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TimePoint {
    /// This long after the start of the recording.
    After(Duration),
    /// This long before the end of the recording.
    BeforeEnd(Duration),
    /// This long after `--from`.
    Later(Duration),
    /// After this percentage of the recording.
    Percent(f64),
    /// At this time of day, in nanoseconds since midnight UTC.
    TimeOfDay(u64),
    /// At this time, in nanoseconds since 1970.
    Date(u64),
}

impl FromStr for TimePoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(before) = text.strip_prefix('-') {
            return Ok(Self::BeforeEnd(time(before)?));
        }
        if let Some(later) = text.strip_prefix('+') {
            return Ok(Self::Later(time(later)?));
        }
        if let Some(number) = text.strip_suffix('%') {
            let number = quantity::number(number).ok_or(EXPECTED)?;
            let is_share = number <= 100.0;
            let share = is_share.then_some(Self::Percent(number));
            return share.ok_or_else(|| "expected a percentage from 0% to 100%".to_owned());
        }
        if text.contains(':') {
            return clock(text).ok_or_else(|| EXPECTED.to_owned());
        }
        Ok(Self::After(time(text)?))
    }
}

/// A time range: `5s-10s`, `5s..10s` or `1s+9s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeRange(pub TimePoint, pub TimePoint);

impl FromStr for TimeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once("..").or_else(|| {
            // This is the first sign after the digits of the first time; dates have signs
            // themselves.
            let sign = text.char_indices().skip(1).find(|(_, c)| matches!(c, '-' | '+'))?.0;
            let end = if text[sign..].starts_with('-') { sign + 1 } else { sign };
            (!text.contains('T')).then(|| (&text[..sign], &text[end..]))
        });
        let (from, to) =
            parts.ok_or("expected two times, such as 5s-10s, 14:03..14:05 or 1s+9s")?;
        Ok(Self(from.parse()?, to.parse()?))
    }
}

impl TimePoint {
    /// Returns the time on the clock of the samples. `from_ns` is the start of the selection.
    ///
    /// # Errors
    /// A message for the user, if the date is missing in the trace.
    pub(in crate::view) fn of(
        self,
        recording: &RecordingInfo,
        from_ns: u64,
    ) -> Result<u64, String> {
        let begin_ns = recording.begin_ns().unwrap_or(0).min(LATEST_NS);
        let end_ns = recording.end_ns().unwrap_or(begin_ns).min(LATEST_NS);
        let length_ns = end_ns.saturating_sub(begin_ns);
        Ok(match self {
            Self::After(time) => begin_ns.saturating_add(nanoseconds(time)),
            Self::BeforeEnd(time) => end_ns.saturating_sub(nanoseconds(time)),
            Self::Later(time) => from_ns.max(begin_ns).saturating_add(nanoseconds(time)),
            Self::Percent(percent) => {
                begin_ns.saturating_add((length_ns as f64 * percent / 100.0) as u64)
            }
            Self::TimeOfDay(time_ns) => {
                let began_ns = realtime(recording)?;
                let of_first_day = began_ns - began_ns % DAY_NS + time_ns;
                // A time before the start is on the next day, if the recording lasted that long.
                let is_next =
                    of_first_day < began_ns && of_first_day + DAY_NS <= began_ns + length_ns;
                // An end before its start is on the next day, too.
                let from_date_ns = began_ns + from_ns.min(LATEST_NS).saturating_sub(begin_ns);
                let is_next = is_next || (from_ns > 0 && of_first_day < from_date_ns);
                let date_ns = of_first_day + if is_next { DAY_NS } else { 0 };
                (begin_ns + date_ns).saturating_sub(began_ns)
            }
            Self::Date(date_ns) => {
                begin_ns.saturating_add(date_ns).saturating_sub(realtime(recording)?)
            }
        })
    }
}

fn realtime(recording: &RecordingInfo) -> Result<u64, String> {
    let known = recording.number("start_realtime_ns").filter(|ns| *ns < LATEST_NS);
    known.ok_or_else(|| {
        "the trace does not say on which date it was recorded: give times after its start, such as \
         2.5s"
            .to_owned()
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn time(text: &str) -> Result<Duration, String> {
    quantity::time(text).map_err(|error| match error == quantity::TIME_EXPECTED {
        // A point in time has more forms than a duration.
        true => EXPECTED.to_owned(),
        false => error,
    })
}

/// Parses `14:03`, `14:03:05.5`, or the same after a date. A final `Z` or ` UTC` is redundant.
fn clock(text: &str) -> Option<TimePoint> {
    let text = text.strip_suffix('Z').or_else(|| text.strip_suffix(" UTC")).unwrap_or(text);
    let Some((day, time)) = text.split_once(['T', ' ']) else {
        return Some(TimePoint::TimeOfDay(time_of_day(text)?));
    };
    let mut parts = day.split('-').map(|part| digits(part, part.len()));
    let [year, month, day] = [parts.next()??, parts.next()??, parts.next()??];
    if parts.next().is_some() {
        return None;
    }
    let days = date::days(year, month, day)?;
    // Dates after 2554 do not fit in nanoseconds.
    let date_ns = days.checked_mul(DAY_NS)?.checked_add(time_of_day(time)?)?;
    (date_ns < LATEST_NS).then_some(TimePoint::Date(date_ns))
}

fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (hour, minute) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let seconds = parts.next().unwrap_or("0");
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let second = digits(whole, 2)?;
    digits(fraction, 9)?;
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let fraction_ns: u64 = format!("{fraction:0<9}").parse().ok()?;
    Some((hour * 3600 + minute * 60 + second) * 1_000_000_000 + fraction_ns)
}

/// Parses a number of at most `most` digits.
fn digits(text: &str, most: usize) -> Option<u64> {
    let is_number = (1..=most).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Value;

    /// Returns a recording of 4 s, from 2026-11-21 23:59:58 on.
    fn recording() -> RecordingInfo {
        let mut recording = RecordingInfo { closed: true, ..RecordingInfo::default() };
        for (key, ns) in [
            ("start_monotonic_ns", 10_000_000_000),
            ("end_monotonic_ns", 14_000_000_000),
            ("start_realtime_ns", 1_795_305_598_000_000_000),
        ] {
            recording.metadata.insert(key.to_owned(), Value::Unsigned(ns));
        }
        recording
    }

    #[test]
    fn moments_have_units_or_are_shares() {
        let ms = Duration::from_millis;
        let after = |time| Ok(TimePoint::After(ms(time)));
        assert_eq!("2.5s".parse(), after(2500));
        assert_eq!("2.5".parse(), after(2500));
        assert_eq!("500ms".parse(), after(500));
        assert_eq!("7000us".parse(), after(7));
        assert_eq!("1m".parse(), after(60_000));
        assert_eq!("1m30s".parse(), after(90_000));
        assert_eq!("0".parse(), after(0));
        assert_eq!("50%".parse(), Ok(TimePoint::Percent(50.0)));
        assert_eq!("-1m".parse(), Ok(TimePoint::BeforeEnd(ms(60_000))));
        assert_eq!("+10".parse(), Ok(TimePoint::Later(ms(10_000))));
        for text in ["", "s", "--1", "1d", "1 s", "101%", "%", "inf", "1e3", "..", "ä", "9e99h"] {
            assert!(text.parse::<TimePoint>().is_err(), "{text}");
        }
        assert!("99999999999999h".parse::<TimePoint>().is_err());
    }

    #[test]
    fn times_of_day_and_dates_are_those_of_the_calendar() {
        let of = |text: &str| text.parse::<TimePoint>().ok();
        let noon = 12 * 3_600_000_000_000;
        assert_eq!(of("12:00"), Some(TimePoint::TimeOfDay(noon)));
        assert_eq!(of("12:00:05.25"), Some(TimePoint::TimeOfDay(noon + 5_250_000_000)));
        let date = Some(TimePoint::Date(1_795_260_153_000_000_000));
        for text in ["2026-11-21T11:22:33", "2026-11-21 11:22:33 UTC", "2026-11-21T11:22:33.000Z"] {
            assert_eq!(of(text), date, "{text}");
        }
        for text in [
            "24:00",
            "12:60",
            "12:00:61",
            "1:2:3:4",
            ":",
            "12:",
            "2026-13-01T00:00",
            "2026-02-29T00:00",
            "2026-11T00:00",
            "12:00:00.1234567890",
            "T12:00",
            "2026-11-21T",
            "-1-1-1T00:00",
            "+1:00",
            "3000-01-01T00:00",
            "9999-12-31T23:59",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn moments_are_found_in_the_recording() {
        let at = |text: &str, from_ns| text.parse::<TimePoint>().unwrap().of(&recording(), from_ns);
        for (text, s) in [
            ("1s", 11.0),
            ("-1s", 13.0),
            ("25%", 11.0),
            ("23:59:59", 11.0),
            ("00:00:01", 13.0),
            // Before the recording, and after it: not on another day.
            ("23:59:57", 9.0),
            ("00:00:05", 0.0),
            ("2026-11-22T00:00:00.5", 12.5),
            ("2026-11-23T00:00:00", 86_412.0),
        ] {
            assert_eq!(at(text, 0), Ok((s * 1e9) as u64), "{text}");
        }
        assert_eq!(at("+500ms", 12_000_000_000), Ok(12_500_000_000));
        assert_eq!(at("00:00:30", 13_000_000_000), Ok(42_000_000_000));
        assert_eq!(at("23:59:59", 13_000_000_000), Ok(11_000_000_000 + DAY_NS), "the next evening");
        assert_eq!(at("+1s", 0), Ok(11_000_000_000), "after the start, if there is no --from");
        let mut undated = recording();
        undated.metadata.remove("start_realtime_ns");
        let error = TimePoint::TimeOfDay(0).of(&undated, 0).unwrap_err();
        assert!(error.contains("after its start"), "{error}");
    }

    #[test]
    fn ranges_are_two_moments() {
        let range = |text: &str| text.parse::<TimeRange>().ok();
        let s = |s| TimePoint::After(Duration::from_secs(s));
        assert_eq!(range("5s-10s"), Some(TimeRange(s(5), s(10))));
        assert_eq!(range("5..10"), Some(TimeRange(s(5), s(10))));
        assert_eq!(range("1s+9s"), Some(TimeRange(s(1), TimePoint::Later(Duration::from_secs(9)))));
        let minutes = |minute: u64| TimePoint::TimeOfDay((14 * 60 + minute) * 60_000_000_000);
        assert_eq!(range("14:03-14:05"), Some(TimeRange(minutes(3), minutes(5))));
        let end = |s| TimePoint::BeforeEnd(Duration::from_secs(s));
        assert_eq!(range("-30s..-10s"), Some(TimeRange(end(30), end(10))));
        assert!(range("2026-11-21T14:03..2026-11-21T14:05").is_some());
        for text in ["", "5s", "-5s", "5s-", "2026-11-21T14:03-2026-11-21T14:05", "a-b"] {
            assert_eq!(range(text), None, "{text}");
        }
    }
}
