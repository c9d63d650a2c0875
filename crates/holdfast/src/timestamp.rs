//! Times as people write them: a date and time with its zone, or a duration from now. Shown in UTC.

use crate::duration;
use std::fmt;

/// A point in time, in Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp(pub u64);

const DAY_S: i64 = 86_400;

/// Days since 1970 of a date of the Gregorian calendar. Years are counted from March, so that the leap day is the last
/// day of the year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, month) = (year.div_euclid(400), (month + 9) % 12);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.0 / 1000).unwrap_or(i64::MAX);
        let ((year, month, day), of_day) = (date(seconds.div_euclid(DAY_S)), seconds.rem_euclid(DAY_S));
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Now.
pub fn now() -> Timestamp {
    Timestamp(holdfast_host::unix_ms())
}

/// Reads `2026-11-22T04:00:00Z`, `2026-11-22T05:00+01:00`, or a duration from now, such as `10m`. The seconds are
/// optional, the zone is not.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = duration::parse(text) {
        return Ok(Timestamp(now().0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))));
    }
    read(text).ok_or_else(|| {
        format!("found {text:?}, expected a time with its zone such as 2026-11-22T04:00:00Z, or a duration from now such as 10m")
    })
}

fn number(text: &str, digits: usize, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
    let whole = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    whole.then(|| text.parse::<i64>().ok())?.filter(|number| range.contains(number))
}

fn read(text: &str) -> Option<Timestamp> {
    let (day, rest) = text.split_once(['T', ' '])?;
    let mut parts = day.split('-');
    let year = number(parts.next()?, 4, 1970..=9999)?;
    let month = number(parts.next()?, 2, 1..=12)?;
    let of_month = number(parts.next()?, 2, 1..=31)?;
    if parts.next().is_some() {
        return None;
    }
    let day = days(year, month, of_month);
    // The 31st of a shorter month would become another date.
    if date(day) != (year, month, of_month) {
        return None;
    }
    let (clock, zone) = match rest.find(['Z', '+', '-']) {
        Some(at) => rest.split_at(at),
        None => return None,
    };
    let offset = match zone {
        "Z" => 0,
        zone => {
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let minutes = number(hours, 2, 0..=23)? * 60 + number(minutes, 2, 0..=59)?;
            if zone.starts_with('-') { -minutes } else { minutes }
        }
    };
    let mut parts = clock.split(':');
    let hour = number(parts.next()?, 2, 0..=23)?;
    let minute = number(parts.next()?, 2, 0..=59)?;
    let second = parts.next().map_or(Some(0), |second| number(second, 2, 0..=59))?;
    if parts.next().is_some() {
        return None;
    }
    let seconds = day * DAY_S + (hour * 60 + minute - offset) * 60 + second;
    u64::try_from(seconds).ok().map(|seconds| Timestamp(seconds * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_their_zone() {
        let at = |text: &str| parse(text).map(|moment| moment.0 / 1000);
        assert_eq!(at("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(at("2000-02-29T12:00Z"), Ok(951_825_600));
        assert_eq!(at("2026-11-22T04:00:00Z"), Ok(1_795_320_000));
        assert_eq!(at("2026-11-22T05:00+01:00"), Ok(1_795_320_000));
        assert_eq!(at("2026-11-21 22:30-05:30"), Ok(1_795_320_000));
        for bad in [
            "",
            "now",
            "2026-11-22",
            "2026-11-22T04:00:00",
            "2026-02-30T00:00Z",
            "2026-13-01T00:00Z",
            "2026-11-22T24:00Z",
            "2026-11-22T04:00:00:00Z",
            "2026-11-22T04:00:00+1",
            "26-11-22T04:00Z",
            "2026-11-22TZ",
            "-1s",
            "2026-1-22T04:00Z",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn so_long_from_now() {
        let before = now().0;
        let at = parse("10m").unwrap().0;
        assert!((before + 600_000..=now().0 + 600_000).contains(&at));
    }

    #[test]
    fn what_is_shown_is_read_again() {
        // Every day of 800 years, with a different time of day.
        for day in 0..292_194_i64 {
            let seconds = u64::try_from(day * DAY_S + day * 7919 % DAY_S).unwrap();
            let moment = Timestamp(seconds * 1000);
            assert_eq!(read(&moment.to_string()), Some(moment), "{moment}");
        }
    }
}
