//! Sizes as people write them: `1GiB`, `512MiB`, `4096`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes that reads and prints with binary units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

/// A size could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("size: found {found:?}, expected a whole number with B, KiB, MiB, GiB or TiB, such as 10GiB")]
pub struct SizeError {
    found: String,
}

const UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let bad = || SizeError { found: text.chars().take(40).collect() };
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let unit = unit.trim();
        let factor = if unit.is_empty() {
            1
        } else {
            UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(bad)?
        };
        number.checked_mul(factor).map(ByteSize).ok_or_else(bad)
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
        for text in ["1GiB", "512MiB", "3KiB", "1TiB", "7B", "0B"] {
            assert_eq!(text.parse::<ByteSize>().map(|s| s.to_string()), Ok(text.to_string()));
        }
        for bad in ["", "GiB", "1GB", "-1", "1.5GiB", "99999999999999999999TiB", "18446744073709551615KiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
}
