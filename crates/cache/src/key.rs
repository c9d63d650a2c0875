//! The key of the cache.

use holdfast_types::ObjectId;
use std::hash::{Hash, Hasher};

/// Names one extent of a segment, or one page of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockKey {
    /// The object.
    pub object: ObjectId,
    /// The number of the extent or page in it.
    pub number: u32,
}

impl Hash for BlockKey {
    /// The id's 128 random bits are enough to tell objects apart; hashing the rest would only take time.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.object.random);
        state.write_u32(self.number);
    }
}
