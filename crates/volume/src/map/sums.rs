//! What a root knows of an object, and sums over the objects of a leaf.

use crate::wire::{self, Reader, WireError};
use holdfast_types::ObjectId;

/// What a root knows of an object, as leaves list it.
pub(super) trait Known: Copy + PartialEq {
    /// Fewest bytes of an encoded entry.
    const WIRE_BYTES_MIN: usize;
    fn put(&self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError>;
    /// Stored bytes; of them those in use; amount stored and amount in use, in a unit of the type's own.
    fn sums(&self) -> (u64, u64, u64, u64);
    /// Whether it is entirely unused: a sealed root names no such object.
    fn is_dead(&self) -> bool;

    /// The share in use, in parts of [`IN_USE_OF`]; `None` where all of it is in use.
    fn in_use(&self) -> Option<u64> {
        let (_, _, whole, part) = self.sums();
        (part < whole).then(|| share(IN_USE_OF, part, whole))
    }
}

/// Unit of shares in use: whole numbers, so that every run chooses the same objects.
pub(super) const IN_USE_OF: u64 = 1 << 32;
const _: () = assert!(IN_USE_OF.is_multiple_of(LOWEST_OF));

/// `bytes` × `part` / `whole`.
pub(super) fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    (u128::from(bytes) * u128::from(part) / u128::from(whole.max(1))) as u64
}

/// Unit of [`Sums::lowest`].
pub const LOWEST_OF: u64 = 1 << 16;

/// A top's summary of one leaf of objects: stored and used bytes, and whether the leaf has anything to collect, without
/// reading the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// How many there are.
    pub objects: u64,
    /// Their bytes in the store, as far as they are known.
    pub stored_bytes: u64,
    /// Bytes in use, in proportion for each object.
    pub live_bytes: u64,
    /// Share in use of the least used object, in parts of [`LOWEST_OF`]; all of them if nothing is unused.
    pub lowest: u64,
}

impl Sums {
    pub(super) fn of<V: Known>(entries: &[(ObjectId, V)]) -> Self {
        let mut sums = Self { objects: entries.len() as u64, stored_bytes: 0, live_bytes: 0, lowest: LOWEST_OF };
        for (_, known) in entries {
            let (stored, live, whole, part) = known.sums();
            sums.stored_bytes = sums.stored_bytes.saturating_add(stored);
            sums.live_bytes = sums.live_bytes.saturating_add(live);
            if part < whole {
                sums.lowest = sums.lowest.min(share(LOWEST_OF, part, whole));
            }
        }
        sums
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put(out, self.objects);
        wire::put(out, self.stored_bytes);
        wire::put(out, self.live_bytes);
        wire::put(out, self.lowest);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            objects: reader.number("objects of a leaf", 1, u64::from(u32::MAX))?,
            stored_bytes: reader.number("stored bytes of a leaf", 0, u64::MAX)?,
            live_bytes: reader.number("live bytes of a leaf", 0, u64::MAX)?,
            lowest: reader.number("lowest share in use of a leaf", 0, LOWEST_OF)?,
        })
    }
}
