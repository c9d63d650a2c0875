//! Decides what is written to the cache's disk, and what is written there again (CACHE-C5 to CACHE-C7 in `cache`).
//!
//! ```text
//!   the disk, a ring buffer:   oldest │ ...... older half ...... │ ...... newer half ...... │ new data
//!                              evicted│                                                      ^       ^
//!                              next   └─ read again, not by a scan: written again ───────────┘       │
//!   fetched for a point read, or made here: written ─────────────────────────────────────────────────┤
//!   fetched for a scan: left out and remembered; written if fetched again while remembered ──────────┘
//! ```

use crate::key::BlockKey;
use std::collections::{HashSet, VecDeque};

/// The kind of reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// A single read.
    Point,
    /// A sequential reader that has come far (AHEAD-A5 in `volume::ahead`): it reads everything once.
    Scan,
}

/// Left-out data is remembered up to this part of the disk, in bytes. So what is written at its second fetch evicts no
/// more than that, and a larger scan is never remembered until it comes round again.
const LEFT_OUT_SHARE: u64 = 4;

/// Also limited to this number of entries: about 7 MiB of memory, for 16 GiB of extents that do not compress.
const LEFT_OUT_MAX: usize = 1 << 17;

/// Credit for rewrites is saved up to this part of the disk.
const AGAIN_SHARE: u64 = 8;

/// See the module. Bytes are counted as on the disk.
#[derive(Debug)]
pub(super) struct Admission {
    left_out: LeftOut,
    /// Bytes that may still be rewritten.
    again: u64,
    again_max: u64,
}

impl Admission {
    /// For a disk of `disk_bytes`.
    pub(super) fn new(disk_bytes: u64) -> Self {
        let left_out = LeftOut { bytes_max: disk_bytes / LEFT_OUT_SHARE, ..LeftOut::default() };
        Self { left_out, again: 0, again_max: disk_bytes / AGAIN_SHARE }
    }

    /// Data was fetched. Returns whether it is written to the disk (CACHE-C5, CACHE-C6).
    pub(super) fn fetched(&mut self, key: &BlockKey, bytes: u64, demand: Demand) -> bool {
        let goes_in = match demand {
            Demand::Point => true,
            Demand::Scan => self.left_out.again(key, bytes),
        };
        if goes_in {
            self.came_in(bytes);
        }
        goes_in
    }

    /// New data is written, and evicts as much.
    pub(super) fn came_in(&mut self, bytes: u64) {
        self.again = self.again.saturating_add(bytes).min(self.again_max);
    }

    /// The disk did not answer a read in time. Rewrites would make it slower still, and data that it does not return is
    /// fetched and written again.
    pub(super) fn behind(&mut self) {
        self.again = 0;
    }

    /// Data was read from the disk; `older`: from its older half. Returns whether it is written again (CACHE-C7).
    pub(super) fn found(&mut self, bytes: u64, older: bool, demand: Demand) -> bool {
        if !older || demand == Demand::Scan {
            return false;
        }
        let left = self.again.checked_sub(bytes);
        self.again = left.unwrap_or(self.again);
        left.is_some()
    }
}

/// The data that was left out last.
#[derive(Debug, Default)]
struct LeftOut {
    order: VecDeque<(u64, u64)>,
    here: HashSet<u64>,
    bytes: u64,
    bytes_max: u64,
}

/// Data is fetched by the extent or page, whose first key this is. If two keys have the same mark, one of them is
/// written one fetch too early.
fn mark(key: &BlockKey) -> u64 {
    let random = key.object.random;
    random as u64 ^ (random >> 64) as u64 ^ u64::from(key.number).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl LeftOut {
    /// Whether the key was left out before, as far as remembered. If not, remembers it.
    fn again(&mut self, key: &BlockKey, bytes: u64) -> bool {
        let mark = mark(key);
        if !self.here.insert(mark) {
            return true;
        }
        self.order.push_back((mark, bytes));
        self.bytes = self.bytes.saturating_add(bytes);
        while self.bytes > self.bytes_max || self.order.len() > LEFT_OUT_MAX {
            let Some((oldest, bytes)) = self.order.pop_front() else { break };
            self.here.remove(&oldest);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::{MemberId, ObjectId, Term};
    use proptest::prelude::*;

    const EXTENT: u64 = 100_000;
    const DISK: u64 = 1000 * EXTENT;

    fn key(number: u32) -> BlockKey {
        let random = u128::from(number / 128).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C834);
        BlockKey::first(ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }, number)
    }

    /// The number of these keys that are written.
    fn go_in(admission: &mut Admission, keys: std::ops::Range<u32>, demand: Demand) -> usize {
        keys.filter(|number| admission.fetched(&key(*number), EXTENT, demand)).count()
    }

    #[test]
    fn c5_a_scan_goes_in_the_second_time_and_a_point_read_at_once() {
        let mut admission = Admission::new(DISK);
        assert_eq!(go_in(&mut admission, 0..100, Demand::Point), 100);
        assert_eq!(go_in(&mut admission, 500..600, Demand::Scan), 0);
        assert_eq!(go_in(&mut admission, 500..600, Demand::Scan), 100, "a small scan becomes warm");
        assert_eq!(go_in(&mut admission, 700..800, Demand::Scan), 0);
        assert_eq!(
            go_in(&mut admission, 700..800, Demand::Point),
            100,
            "left-out data is written when a point read fetches it"
        );
    }

    #[test]
    fn c6_a_scan_larger_than_its_share_never_goes_in_however_often_it_comes_round() {
        let mut admission = Admission::new(DISK);
        for round in 0..5 {
            let larger = u32::try_from(DISK / LEFT_OUT_SHARE / EXTENT).expect("few") + 1;
            assert_eq!(go_in(&mut admission, 0..larger, Demand::Scan), 0, "round {round}");
        }
    }

    #[test]
    fn c6_what_is_remembered_is_bounded_in_number_too() {
        let mut admission = Admission::new(u64::MAX);
        let many = u32::try_from(LEFT_OUT_MAX).expect("few") + 1000;
        assert_eq!((0..many).filter(|number| admission.fetched(&key(*number), 1, Demand::Scan)).count(), 0);
        assert_eq!(admission.left_out.order.len(), LEFT_OUT_MAX);
        assert_eq!(admission.left_out.here.len(), LEFT_OUT_MAX);
        assert!(admission.fetched(&key(many - 1), 1, Demand::Scan) && !admission.fetched(&key(0), 1, Demand::Scan));
    }

    #[test]
    fn c7_what_is_read_from_the_older_half_goes_in_once_more_as_far_as_other_things_came_in() {
        let mut admission = Admission::new(DISK);
        assert!(!admission.found(EXTENT, true, Demand::Point), "nothing came in, so nothing is pushed out");
        admission.came_in(EXTENT);
        assert!(!admission.found(EXTENT, false, Demand::Point), "it is not near eviction");
        assert!(!admission.found(EXTENT, true, Demand::Scan), "a scan does not come back");
        assert!(admission.found(EXTENT, true, Demand::Point));
        assert!(!admission.found(EXTENT, true, Demand::Point), "new data pays for one rewrite only");
        admission.came_in(EXTENT);
        admission.behind();
        assert!(!admission.found(EXTENT, true, Demand::Point), "no rewrites on a disk that is too slow");
        // Holds after an import of any size.
        admission.came_in(u64::MAX);
        let again = (0..2000).filter(|_| admission.found(EXTENT, true, Demand::Point)).count() as u64;
        assert_eq!(again, DISK / AGAIN_SHARE / EXTENT);
    }

    proptest! {
        /// Holds for any reads: the memory for left-out keys is bounded and consistent, and rewrites never exceed new
        /// data.
        #[test]
        fn bounded_whatever_is_read(reads in prop::collection::vec((0_u32..300, 1_u64..4 * EXTENT, 0_u8..5), 1..400)) {
            let mut admission = Admission::new(100 * EXTENT);
            let (mut came_in, mut again) = (0, 0);
            for (number, bytes, how) in reads {
                let key = key(number);
                match how {
                    0 => came_in += u64::from(admission.fetched(&key, bytes, Demand::Point)) * bytes,
                    1 => came_in += u64::from(admission.fetched(&key, bytes, Demand::Scan)) * bytes,
                    2 => again += u64::from(admission.found(bytes, true, Demand::Point)) * bytes,
                    3 => {
                        admission.came_in(bytes);
                        came_in += bytes;
                    }
                    _ => admission.behind(),
                }
                let LeftOut { order, here, bytes, bytes_max } = &admission.left_out;
                prop_assert!(again <= came_in);
                prop_assert!(bytes <= bytes_max);
                prop_assert_eq!(order.iter().map(|(_, bytes)| bytes).sum::<u64>(), *bytes);
                prop_assert_eq!(order.iter().map(|(mark, _)| *mark).collect::<HashSet<u64>>(), here.clone());
                prop_assert_eq!(order.len(), here.len());
            }
        }
    }
}
