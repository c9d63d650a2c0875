//! Numbers in the tables of stored objects: little-endian base-128 varints, shortest form only, read with bounds.

/// Appends `value` as 1 to 10 bytes.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed difference, short if small. Wraps; [`Reader::step`] wraps back.
pub(crate) fn put_step(out: &mut Vec<u8>, from: u64, to: u64) {
    let step = to.wrapping_sub(from) as i64;
    put(out, ((step << 1) ^ (step >> 63)) as u64);
}

/// A table that does not decode. Names the field, its byte offset, and what was found and expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end within a field.
    #[error("{field} at byte {at}: found {found} bytes, expected at least {expected}")]
    End {
        /// What was read.
        field: &'static str,
        /// Where.
        at: usize,
        /// Bytes left.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// A value out of range.
    #[error("{field} at byte {at}: found {found}, expected {least} to {most}")]
    Range {
        /// What was read.
        field: &'static str,
        /// Where.
        at: usize,
        /// Its value.
        found: u64,
        /// Least value that may be there.
        least: u64,
        /// Largest value that may be there.
        most: u64,
    },
    /// A varint longer than its value needs or than 64 bits.
    #[error("{field} at byte {at}: found a number that is not in its shortest form of at most 64 bits")]
    Overlong {
        /// What was read.
        field: &'static str,
        /// Where.
        at: usize,
    },
    /// Another fixed text than expected.
    #[error("{field}: found {found:02x?}, expected {expected:02x?}")]
    Magic {
        /// What was read.
        field: &'static str,
        /// Bytes found.
        found: Box<[u8]>,
        /// Bytes expected.
        expected: Box<[u8]>,
    },
    /// Bytes behind the last field.
    #[error("end of the table at byte {at}: found {found} bytes more, expected none")]
    Trailing {
        /// Where the table ended.
        at: usize,
        /// Bytes left.
        found: usize,
    },
}

/// Reads a table front to back.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn left(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    /// Reads a fixed text, such as magic and version.
    pub(crate) fn magic(&mut self, field: &'static str, expected: &[u8]) -> Result<(), WireError> {
        let found = &self.left()[..self.left().len().min(expected.len())];
        if found != expected {
            return Err(WireError::Magic { field, found: found.into(), expected: expected.into() });
        }
        self.at += expected.len();
        Ok(())
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        let byte = *self.left().first().ok_or(WireError::End { field, at: self.at, found: 0, expected: 1 })?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let left = self.left();
        let chunk =
            left.first_chunk::<N>().ok_or(WireError::End { field, at: self.at, found: left.len(), expected: N })?;
        self.at += N;
        Ok(*chunk)
    }

    /// A number of `least..=most`.
    pub(crate) fn number(&mut self, field: &'static str, least: u64, most: u64) -> Result<u64, WireError> {
        let at = self.at;
        let found = self.varint(field)?;
        if found < least || found > most {
            return Err(WireError::Range { field, at, found, least, most });
        }
        Ok(found)
    }

    /// A number in `least..=most`, written as the step from `from`.
    pub(crate) fn step(&mut self, field: &'static str, from: u64, least: u64, most: u64) -> Result<u64, WireError> {
        let at = self.at;
        let zigzag = self.varint(field)?;
        let step = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let found = from.wrapping_add(step as u64);
        if found < least || found > most {
            return Err(WireError::Range { field, at, found, least, most });
        }
        Ok(found)
    }

    /// The number of following items of at least `item_bytes` each. At most what the remaining bytes can hold, so the
    /// caller may allocate for it.
    pub(crate) fn count(&mut self, field: &'static str, item_bytes: usize, most: u64) -> Result<usize, WireError> {
        let at = self.at;
        let found = self.varint(field)?;
        let most = most.min((self.left().len() / item_bytes.max(1)) as u64);
        if found > most {
            return Err(WireError::Range { field, at, found, least: 0, most });
        }
        Ok(found as usize)
    }

    fn varint(&mut self, field: &'static str) -> Result<u64, WireError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return Err(WireError::Overlong { field, at: start });
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if bits == 0 && shift > 0 {
                    return Err(WireError::Overlong { field, at: start });
                }
                return Ok(value);
            }
        }
        Err(WireError::Overlong { field, at: start })
    }

    /// Where the reader stands, for errors of the caller's own.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), WireError> {
        match self.left().len() {
            0 => Ok(()),
            found => Err(WireError::Trailing { at: self.at, found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_and_steps_come_back(value: u64, from: u64) {
            let mut out = Vec::new();
            put(&mut out, value);
            put_step(&mut out, from, value);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.number("n", 0, u64::MAX), Ok(value));
            prop_assert_eq!(reader.step("s", from, 0, u64::MAX), Ok(value));
            prop_assert_eq!(reader.end(), Ok(()));
        }

        #[test]
        fn a_number_has_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(value) = reader.number("n", 0, u64::MAX) {
                let mut out = Vec::new();
                put(&mut out, value);
                prop_assert_eq!(&out[..], &bytes[..reader.at()]);
            }
        }
    }

    #[test]
    fn bounds_are_named() {
        let mut out = Vec::new();
        put(&mut out, 300);
        let error = Reader::new(&out).number("sectors", 1, 256);
        assert_eq!(error, Err(WireError::Range { field: "sectors", at: 0, found: 300, least: 1, most: 256 }));
        assert_eq!(
            error.map_err(|e| e.to_string()),
            Err("sectors at byte 0: found 300, expected 1 to 256".to_string())
        );
        assert!(matches!(Reader::new(&[0x80, 0x00]).number("n", 0, 9), Err(WireError::Overlong { .. })));
        assert!(matches!(Reader::new(&[0xff; 10]).number("n", 0, u64::MAX), Err(WireError::Overlong { .. })));
        assert!(matches!(Reader::new(&[5, 1, 1]).count("n", 1, 100), Err(WireError::Range { most: 2, .. })));
        assert!(matches!(Reader::new(&[1]).end(), Err(WireError::Trailing { found: 1, .. })));
    }
}
