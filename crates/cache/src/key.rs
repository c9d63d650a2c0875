//! The key of the cache.

use holdfast_types::ObjectId;
use std::hash::{Hash, Hasher};

/// Names one block of an extent of a segment, or one page of a pack. On disk, an entry of several blocks has the name
/// of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockKey {
    /// The object.
    pub object: ObjectId,
    /// The number of the extent or page in it.
    pub number: u32,
    /// The block of the extent; 0 of a page.
    pub block: u32,
}

impl BlockKey {
    /// The first block of an extent, or a page.
    pub fn first(object: ObjectId, number: u32) -> Self {
        Self { object, number, block: 0 }
    }
}

impl Hash for BlockKey {
    /// The id's 128 random bits are enough to tell objects apart; hashing the rest would only take time.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.object.random);
        state.write_u32(self.number);
        state.write_u32(self.block);
    }
}
