//! Sizes: what CSI asks for, in whole MiB.

use crate::refused::Refused;
use crate::v1;
use holdfast_types::SECTOR_BYTES;
use holdfast_types::limits::VOLUME_SECTORS_MAX;
use tonic::Code;

/// Sizes are multiples of this many bytes.
pub const UNIT: u64 = 1 << 20;

/// Size of a volume whose size is not said, in bytes.
pub const DEFAULT: u64 = 1 << 30;

/// Largest size of a volume, in bytes.
pub const MAX: u64 = VOLUME_SECTORS_MAX * SECTOR_BYTES;

/// A range of sizes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// 0: not said.
    required: u64,
    /// 0: none.
    limit: u64,
}

fn out(text: String) -> Refused {
    Refused::new(Code::OutOfRange, text)
}

impl Range {
    /// Reads it.
    ///
    /// # Errors
    /// A bound is negative, or the lower one is above the upper one.
    pub fn read(range: Option<&v1::CapacityRange>) -> Result<Self, Refused> {
        let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
        match (u64::try_from(required), u64::try_from(limit)) {
            (Ok(required), Ok(limit)) if limit == 0 || required <= limit => Ok(Self { required, limit }),
            _ => Err(Refused::invalid(format!(
                "capacity_range: found required_bytes {required} and limit_bytes {limit}, expected 0 <= required <= limit, or no limit"
            ))),
        }
    }

    /// Whether a volume of this size is what was asked for.
    pub fn holds(self, bytes: u64) -> bool {
        self.required <= bytes && (self.limit == 0 || bytes <= self.limit)
    }

    /// The size of a new volume. `least` is that of its source, 0 if it has none.
    ///
    /// # Errors
    /// OUT_OF_RANGE: no size fits.
    pub fn size(self, least: u64) -> Result<u64, Refused> {
        let asked = match (self.required, least) {
            (0, 0) if self.limit == 0 => DEFAULT,
            (0, 0) => (self.limit / UNIT * UNIT).min(DEFAULT),
            (required, least) => required.max(least),
        };
        let too_large = || out(format!("capacity_range: found {asked} bytes, expected at most {MAX}"));
        let size = asked.max(1).checked_next_multiple_of(UNIT).filter(|size| *size <= MAX).ok_or_else(too_large)?;
        // A source keeps the size that it has, where that is no multiple.
        let size = if least > 0 && asked == least && self.holds(least) { least } else { size };
        if self.holds(size) {
            return Ok(size);
        }
        let (source, limit) =
            (if least > 0 { format!(", of a source of {least} bytes") } else { String::new() }, self.limit);
        Err(out(format!(
            "capacity_range: found a limit of {limit} bytes{source}, expected room for {size} (whole MiB)"
        )))
    }
}

/// For a field of CSI, which is signed.
pub fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> Range {
        Range::read(Some(&v1::CapacityRange { required_bytes, limit_bytes })).unwrap()
    }

    #[test]
    fn sizes_are_whole_and_within_the_range() {
        let unit = i64::try_from(UNIT).unwrap();
        assert_eq!(Range::read(None).unwrap().size(0).unwrap(), DEFAULT);
        assert_eq!(range(1, 0).size(0).unwrap(), UNIT);
        assert_eq!(range(unit + 1, 0).size(0).unwrap(), 2 * UNIT);
        assert_eq!(range(0, 5 * unit + 7).size(0).unwrap(), 5 * UNIT);
        assert_eq!(range(unit, unit).size(0).unwrap(), UNIT);
        for (required, limit) in [(unit + 1, unit + 2), (0, 5), (i64::MAX, 0)] {
            assert_eq!(range(required, limit).size(0).unwrap_err().code, Code::OutOfRange, "{required} {limit}");
        }
    }

    #[test]
    fn a_copy_is_as_large_as_its_source_at_least() {
        let unit = i64::try_from(UNIT).unwrap();
        assert_eq!(range(unit, 0).size(3 * UNIT).unwrap(), 3 * UNIT);
        assert_eq!(range(5 * unit, 0).size(3 * UNIT).unwrap(), 5 * UNIT);
        assert_eq!(Range::read(None).unwrap().size(UNIT + 512).unwrap(), UNIT + 512);
        assert_eq!(range(unit, 2 * unit).size(3 * UNIT).unwrap_err().code, Code::OutOfRange);
    }

    #[test]
    fn impossible_ranges_are_refused() {
        for (required_bytes, limit_bytes) in [(-1, 0), (0, -1), (2, 1)] {
            let range = v1::CapacityRange { required_bytes, limit_bytes };
            assert_eq!(Range::read(Some(&range)).unwrap_err().code, Code::InvalidArgument);
        }
        assert!(range(10, 20).holds(10) && range(10, 20).holds(20) && range(10, 0).holds(1 << 40));
        assert!(!range(10, 20).holds(9) && !range(10, 20).holds(21));
    }
}
