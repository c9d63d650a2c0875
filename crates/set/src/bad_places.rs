//! Places of this gateway's journal that did not read back, as the readers of one set report them. `bad_reads` reads
//! them again.

use holdfast_raft::{ReadLogError, ReadPlace};
use holdfast_types::LogIndex;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of remembered places. One read call has no more places than this (asserted in `reader`): after a
/// failed call all of them are read again, and the bad one is among them. Further bad ones will be found again.
pub(crate) const PLACES_MAX: usize = 512;

/// Index, offset, length.
pub(crate) type Place = (LogIndex, u32, usize);

#[derive(Default)]
pub(crate) struct Inner {
    /// Unresolved places. With text: the record is good but holds another operation; and when that was last found.
    pub(crate) places: BTreeMap<Place, Option<(Instant, String)>>,
    /// Result of the second read, as text for users.
    pub(crate) found: Option<String>,
}

/// Bad reads of one set. Shared by its readers and the task that reads again.
#[derive(Default)]
pub struct BadPlaces {
    inner: Mutex<Inner>,
    pub(crate) met: Notify,
}

impl BadPlaces {
    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    fn insert(&self, places: &[ReadPlace], odd: Option<&str>) {
        {
            let mut inner = self.inner();
            for at in places {
                let place = (at.index, at.offset, at.len);
                if inner.places.len() < PLACES_MAX || inner.places.contains_key(&place) {
                    inner.places.insert(place, odd.map(|why| (Instant::now(), why.to_string())));
                }
            }
        }
        self.met.notify_one();
    }

    /// Reports that one of `places` could not be read. Purged places do not count.
    pub fn unread(&self, places: &[ReadPlace], error: &ReadLogError) {
        match error {
            ReadLogError::Purged { .. } | ReadLogError::Missing { .. } => {}
            ReadLogError::Corrupt(_) | ReadLogError::Io(_) | ReadLogError::OutOfBounds { .. } => {
                self.insert(places, None);
            }
        }
    }

    /// Reports a good record without the operation that the index expects.
    pub fn odd(&self, place: ReadPlace, why: &str) {
        self.insert(&[place], Some(why));
    }

    /// The damage in this gateway's journal, as found by one of the set's readers and confirmed by a second read.
    pub fn trouble(&self) -> Option<String> {
        self.inner().found.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64) -> ReadPlace {
        ReadPlace { index: LogIndex(index), offset: 0, len: 512 }
    }

    #[test]
    fn what_was_purged_is_no_suspect_and_their_number_is_bounded() {
        let bad_places = BadPlaces::default();
        let known = || bad_places.inner().places.len();
        bad_places.unread(&[at(1)], &ReadLogError::Purged { index: 1, purged: 7 });
        bad_places.unread(&[at(1)], &ReadLogError::Missing { index: 1, next: 0 });
        assert_eq!(known(), 0);
        bad_places.unread(&[at(1), at(2)], &ReadLogError::Io(std::io::Error::other("EIO")));
        assert_eq!(known(), 2);
        for index in 0..2 * PLACES_MAX as u64 {
            bad_places.odd(at(index), "of another volume");
        }
        assert_eq!(known(), PLACES_MAX);
        assert_eq!(bad_places.trouble(), None, "nothing is reported before the second read");
    }
}
