//! The wrapped data keys of one set: several [`WRAPPED_KEY_BYTES`] in a row, sorted by id. A single key is encoded as
//! before there could be several.
//!
//! ```text
//!   | wrapped key 1 | wrapped key 2 | …      each names its set, its number and the cluster key that wrapped it
//! ```

use crate::error::SealError;
use crate::fingerprint::KeyFingerprint;
use crate::key::{WRAPPED_KEY_BYTES, wrapped_by};
use std::collections::BTreeSet;

/// Offset of the key id in a wrapped key; see `key`.
const KEY_ID_AT: usize = 16;

fn key_id(wrapped: &[u8]) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&wrapped[KEY_ID_AT..KEY_ID_AT + 4]);
    u32::from_le_bytes(bytes)
}

/// The wrapped keys with their numbers, ascending. Not authenticated before each is unwrapped.
///
/// # Errors
/// [`SealError::WrappedLength`] if it is empty or not a whole number of wrapped keys; [`SealError::RingOrder`] if ids
/// do not ascend.
pub fn split_ring(ring: &[u8]) -> Result<Vec<(u32, &[u8])>, SealError> {
    if ring.is_empty() || !ring.len().is_multiple_of(WRAPPED_KEY_BYTES) {
        return Err(SealError::WrappedLength { found: ring.len(), expected: WRAPPED_KEY_BYTES });
    }
    let keys: Vec<(u32, &[u8])> = ring.chunks_exact(WRAPPED_KEY_BYTES).map(|key| (key_id(key), key)).collect();
    match keys.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        Some(pair) => Err(SealError::RingOrder { found: pair[1].0, after: pair[0].0 }),
        None => Ok(keys),
    }
}

/// The bytes of several wrapped keys, in any order.
pub fn join_ring(mut wrapped: Vec<Vec<u8>>) -> Vec<u8> {
    wrapped.sort_by_key(|key| if key.len() == WRAPPED_KEY_BYTES { key_id(key) } else { 0 });
    wrapped.concat()
}

/// The ids of its keys; empty if it does not parse.
pub fn ring_ids(ring: &[u8]) -> BTreeSet<u32> {
    split_ring(ring).map(|keys| keys.into_iter().map(|(id, _)| id).collect()).unwrap_or_default()
}

/// The cluster key that wrapped the whole ring; `None` if the ring does not parse, or has keys wrapped by several
/// cluster keys: all are always wrapped together.
pub fn ring_wrapped_by(ring: &[u8]) -> Option<KeyFingerprint> {
    let mut by = split_ring(ring).ok()?.into_iter().map(|(_, key)| wrapped_by(key));
    let first = by.next()??;
    by.all(|other| other == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterKey, DataKey};
    use holdfast_types::GroupId;
    use proptest::prelude::*;

    fn wrapped(by: u8, id: u32) -> Vec<u8> {
        let cluster = ClusterKey::from_key_file(&[by; 32]).expect("32 bytes");
        cluster.wrap(&DataKey::from_bytes([id as u8; 32]), GroupId(7), id, [3; 24])
    }

    #[test]
    fn one_key_is_what_it_was_and_several_come_back_in_order() {
        let one = wrapped(1, 1);
        assert_eq!(join_ring(vec![one.clone()]), one);
        let ring = join_ring(vec![wrapped(1, 3), wrapped(1, 1), wrapped(1, 2)]);
        assert_eq!(ring.len(), 3 * WRAPPED_KEY_BYTES);
        assert_eq!(ring_ids(&ring), BTreeSet::from([1, 2, 3]));
        assert_eq!(split_ring(&ring).expect("whole")[0], (1, &one[..]));
        assert_eq!(ring_wrapped_by(&ring), wrapped_by(&one));
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let (one, two) = (wrapped(1, 1), wrapped(1, 2));
        assert!(matches!(split_ring(&[]), Err(SealError::WrappedLength { found: 0, .. })));
        assert!(matches!(split_ring(&one[1..]), Err(SealError::WrappedLength { .. })));
        let reversed = [two.clone(), one.clone()].concat();
        assert_eq!(split_ring(&reversed), Err(SealError::RingOrder { found: 1, after: 2 }));
        let twice = [one.clone(), one.clone()].concat();
        assert_eq!(split_ring(&twice), Err(SealError::RingOrder { found: 1, after: 1 }));
        // A change of the cluster key wraps a whole ring again, by one entry.
        assert_eq!(ring_wrapped_by(&join_ring(vec![one, wrapped(2, 2)])), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = (split_ring(&bytes).map(|keys| keys.len()), ring_ids(&bytes), ring_wrapped_by(&bytes));
        }
    }
}
