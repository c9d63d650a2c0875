//! Sizes as people write them: `1GiB`, `1.5GiB`, `512MiB`, `4096`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes that reads and prints with binary units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

/// A size could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text has another form, or the number is too large.
    #[error("size: found {found:?}, expected a number with B, KiB, MiB, GiB, TiB or PiB, such as 10GiB or 1.5GiB")]
    Form {
        /// The text.
        found: String,
    },
    /// A decimal fraction that is not a whole number of sectors.
    #[error("size: found {found:?}, which is no multiple of 512B; the next smaller one is {below}")]
    Fraction {
        /// The text.
        found: String,
        /// The largest multiple of a sector below it.
        below: ByteSize,
    },
}

/// A fraction of a unit must come to whole sectors of this many bytes: nothing is rounded silently.
const SECTOR_BYTES: u128 = 512;

/// Digits after the point at most.
const FRACTION_DIGITS_MAX: usize = 12;

const UNITS: [(&str, u64); 6] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let found = || text.chars().take(40).collect::<String>();
        let form = || SizeError::Form { found: found() };
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, unit) = trimmed.split_at(digits);
        let unit = if unit.trim().is_empty() { "B" } else { unit.trim() };
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(form)?;
        let (whole, fraction) = match number.split_once('.') {
            None => (number, None),
            Some((whole, fraction)) => (whole, Some(fraction)),
        };
        let whole: u64 = whole.parse().map_err(|_| form())?;
        let whole = whole.checked_mul(factor).ok_or_else(form)?;
        let Some(fraction) = fraction else { return Ok(Self(whole)) };
        if fraction.len() > FRACTION_DIGITS_MAX {
            return Err(form());
        }
        // Exact: numerator and denominator stay below 2^50 * 10^12.
        let numerator: u128 = fraction.parse::<u64>().map_err(|_| form())?.into();
        let denominator = 10_u128.pow(fraction.len() as u32);
        let bytes = u128::from(whole) * denominator + numerator * u128::from(factor);
        let sectors = bytes / denominator / SECTOR_BYTES;
        let below = u64::try_from(sectors * SECTOR_BYTES).map(Self).map_err(|_| form())?;
        match u128::from(below.0) * denominator == bytes {
            true => Ok(below),
            false => Err(SizeError::Fraction { found: found(), below }),
        }
    }
}

impl TryFrom<String> for ByteSize {
    type Error = SizeError;
    fn try_from(text: String) -> Result<Self, SizeError> {
        text.parse()
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> String {
        size.to_string()
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, factor) in UNITS {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{name}", self.0 / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusal() {
        for text in ["1GiB", "512MiB", "3KiB", "1TiB", "1PiB", "7B", "0B"] {
            assert_eq!(text.parse::<ByteSize>().map(|s| s.to_string()), Ok(text.to_string()));
        }
        for bad in [
            "",
            "GiB",
            "1GB",
            "-1",
            "1.GiB",
            ".5GiB",
            "1.5.5GiB",
            "1.+5GiB",
            ".",
            "99999999999999999999TiB",
            "18446744073709551615KiB",
        ] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
    #[test]
    fn a_fraction_is_taken_where_it_comes_to_whole_sectors() {
        let read = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(read("1.5GiB"), Ok(3 << 29));
        assert_eq!(read("0.5KiB"), Ok(512));
        assert_eq!(read("2.0TiB"), Ok(2 << 40));
        assert_eq!(read("16777215.9990234375TiB"), Ok(u64::MAX - (1 << 30) + 1));
        let inexact = "size: found \"1.1GiB\", which is no multiple of 512B; the next smaller one is 1181115904B";
        assert_eq!(read("1.1GiB").map_err(|error| error.to_string()), Err(inexact.to_string()));
        for bad in ["1.5B", "1.5", "0.1KiB", "16777216.5TiB", "1.0000000000001GiB"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
