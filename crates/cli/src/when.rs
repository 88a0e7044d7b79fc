//! Points in time as people write them.

use crate::sys;
use aze_proto::ids::Time;
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads `2026-11-21`, `2026-11-21 13:05`, `2026-11-21T13:05:09.5`, a trailing `Z` for UTC instead of
/// local time, or `@SECONDS` since 1970. The error names the expected form.
pub fn parse(text: &str) -> Result<Time, String> {
    let bad = || {
        format!(
            "'{text}' is not a time: expected 2026-11-21, 2026-11-21 13:05:09 (with Z at its end for UTC) or @SECONDS"
        )
    };
    if let Some(seconds) = text.strip_prefix('@') {
        return with_fraction(seconds, bad, |seconds| seconds.parse().ok());
    }
    let (text, utc) = text.strip_suffix('Z').map_or((text, false), |text| (text, true));
    with_fraction(text, bad, |text| calendar(text, utc))
}

/// Now, by this machine's clock.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Splits off a fraction of a second, and lets `whole` read the rest.
fn with_fraction(text: &str, bad: impl Fn() -> String, whole: impl Fn(&str) -> Option<i64>) -> Result<Time, String> {
    let (rest, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(bad());
    }
    let nanoseconds: u64 = format!("{fraction:0<9}").parse().map_err(|_| bad())?;
    let seconds = whole(rest).and_then(|seconds| u64::try_from(seconds).ok()).ok_or_else(&bad)?;
    seconds.checked_mul(1_000_000_000).and_then(|base| base.checked_add(nanoseconds)).map(Time).ok_or_else(bad)
}

fn calendar(text: &str, utc: bool) -> Option<i64> {
    let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "0:0:0"));
    let [year, month, day] = numbers(date, '-')?[..] else { return None };
    let (hour, minute, second) = match numbers(clock, ':')?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    if !in_range || !(1970..=9999).contains(&year) {
        return None;
    }
    if utc {
        return Some(days_since_1970(year, month, day) * 86_400 + i64::from(hour * 3600 + minute * 60 + second));
    }
    let mut parts = sys::local_time(0);
    (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year - 1900, month - 1, day);
    (parts.tm_hour, parts.tm_min, parts.tm_sec) = (hour, minute, second);
    sys::seconds_of(parts)
}

fn numbers(text: &str, separator: char) -> Option<Vec<i32>> {
    text.split(separator)
        .map(|part| part.parse().ok().filter(|_| part.bytes().all(|digit| digit.is_ascii_digit())))
        .collect()
}

/// Days of the Gregorian calendar, years counted from March so that a leap day comes last.
fn days_since_1970(year: i32, month: i32, day: i32) -> i64 {
    let year = i64::from(year) - i64::from(month < 3);
    let from_march = i64::from((month + 9) % 12);
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + i64::from(day) - 1;
    days - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utc_times_are_exact() {
        for (text, seconds) in [
            ("1970-01-01Z", 0),
            ("1970-01-01T00:00:01Z", 1),
            ("2000-02-29Z", 951_782_400),
            ("2026-11-21T13:05:09Z", 1_795_266_309),
            ("@1795266309", 1_795_266_309),
        ] {
            assert_eq!(parse(text), Ok(Time(seconds * 1_000_000_000)), "{text}");
        }
        assert_eq!(parse("@1.5"), Ok(Time(1_500_000_000)));
        assert_eq!(parse("1970-01-01 00:00:00.000000001Z"), Ok(Time(1)));
    }

    #[test]
    fn local_times_come_back() {
        let time = parse("2026-07-01 12:34:56").unwrap();
        assert_eq!(crate::show::time(time), "2026-07-01 12:34:56");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "@",
            "@-1",
            "2026",
            "2026-13-01",
            "2026-02-31",
            "2026-1-1 25:00",
            "2026-01-01 1",
            "1969-12-31Z",
            "@1.",
            "+1-01-01",
            "now",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
