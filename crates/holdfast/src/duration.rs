//! Durations as people write them: `500ms`, `30s`, `2m`, `1h`.

use std::time::Duration;

/// Reads a whole number with `ms`, `s`, `m`, `h` or `d`: above zero and at most a day.
pub fn parse(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!("found {text:?}, expected a whole number with ms, s, m, h or d, such as 30s, above zero and at most 1d")
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    let millis = number.checked_mul(factor).filter(|&millis| (1..=86_400_000).contains(&millis)).ok_or_else(bad)?;
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_and_bad() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!((parse("2h"), parse("1d")), (parse("120m"), parse("1440m")));
        for bad in ["", "30", "0s", "-1s", "1.5s", "25h", "2d", "s", "99999999999999999999s", "1441m"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
