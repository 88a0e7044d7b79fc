//! Sizes as people write and read them: `64K`, `1M`, `2GiB`; and durations: `30s`.

use std::time::Duration;

/// Letters of the powers of 1024, smallest first.
const LETTERS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Bytes of `4096`, `64K`, `1M`, `2GiB`, `1.5T`: always powers of 1024. The error names the expected form.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size: expected a number with K, M, G, T, P or E, such as 64K or 2GiB");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let power = match unit.chars().collect::<Vec<_>>()[..] {
        [] => 0,
        [letter] => 1 + LETTERS.iter().position(|known| *known == letter).ok_or_else(bad)?,
        _ => return Err(bad()),
    };
    let shift = 10 * power as u32;
    if number.contains('.') {
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * (1u64 << shift) as f64;
        return if power > 0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(bad()) };
    }
    let value: u64 = number.parse().map_err(|_| bad())?;
    value.checked_mul(1 << shift).ok_or_else(bad)
}

/// `30s`, `500ms`, `2m`, `1h`, or seconds without a unit. The error names the expected form.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a duration: expected a number with ms, s, m or h, such as 30s");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    Ok(Duration::from_millis(number.checked_mul(milliseconds).ok_or_else(bad)?))
}

/// At most four significant characters and a unit: `0`, `512`, `1.5K`, `20G`; rounded up like `du -h`.
pub fn short(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let power = (bytes.ilog2() / 10) as usize;
    let unit = 1u64 << (10 * power);
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    match tenths {
        0..100 => format!("{}.{}{}", tenths / 10, tenths % 10, LETTERS[power - 1]),
        100..10_240 => format!("{}{}", tenths.div_ceil(10), LETTERS[power - 1]),
        _ => format!("1.0{}", LETTERS[power]),
    }
}

/// For sentences: `512 B`, `1.5 KiB`, `20 GiB`.
pub fn words(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10) as usize;
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {}iB", LETTERS[power - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            ("64k", 65_536),
            ("1M", 1 << 20),
            ("1MB", 1 << 20),
            ("2GiB", 2 << 30),
            ("2 GiB", 2 << 30),
            ("1.5K", 1536),
            ("3T", 3 << 40),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "1X", "-1", "1KK", "16E", "1.5", "1.2.3K", "1iiB", "one"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in
            [("30s", 30_000), ("30", 30_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "1d", "1.5s", "-1s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn short_sizes_round_up_and_stay_short() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (20 << 30, "20G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(short(bytes), text, "{bytes}");
        }
        assert_eq!(words(1536), "1.50 KiB");
        assert_eq!(words(20 << 30), "20.0 GiB");
        assert_eq!(words(7), "7 B");
    }
}
