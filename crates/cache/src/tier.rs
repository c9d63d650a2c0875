//! The disk tier that siblings share: there is none until it is open.

use crate::disk::Disk;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tier {
    /// Set by the first call that opens it: a second one would find the folder locked by the first.
    begun: AtomicBool,
    disk: OnceLock<Disk>,
}

impl Tier {
    /// The tier, once it is open.
    pub(crate) fn get(&self) -> Option<&Disk> {
        self.disk.get()
    }

    /// Whether the caller is the one to open it.
    pub(crate) fn begin(&self) -> bool {
        !self.begun.swap(true, Relaxed)
    }

    /// The caller that began did not get its folder; a later one may.
    pub(crate) fn give_up(&self) {
        self.begun.store(false, Relaxed);
    }

    /// It is open from now on.
    pub(crate) fn put(&self, disk: Disk) {
        // Set once: only one caller begins.
        let _ = self.disk.set(disk);
    }
}

#[cfg(test)]
mod tests {
    use crate::{BlockKey, Cache, CacheError, MEMORY_BYTES_MIN};
    use bytes::Bytes;
    use holdfast_types::{MemberId, ObjectId, Term};
    use std::os::unix::fs::MetadataExt;

    const DISK_BYTES: u64 = 64 << 20;

    fn key() -> BlockKey {
        BlockKey::first(ObjectId { term: Term(3), member: MemberId(1), boot: 9, random: 7 }, 0)
    }

    /// CACHE-C8: another size would drop the files of the cache that uses them.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn c8_a_folder_that_is_in_use_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = dir.path().to_owned();
        let first = Cache::open(MEMORY_BYTES_MIN, Some((place.clone(), DISK_BYTES))).await.expect("open");
        first.keep_sealed([(key(), Bytes::from_static(b"sealed"))]).await;
        let ring = || {
            let meta = std::fs::metadata(dir.path().join("ring")).expect("the ring");
            (meta.ino(), meta.len())
        };
        let before = ring();
        let second = Cache::open(MEMORY_BYTES_MIN, None).await.expect("open");
        let refused = second.begin_disk(place.clone(), DISK_BYTES / 2).map(drop);
        assert_eq!(refused, Err(CacheError::Locked { dir: place.clone() }));
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("found its lock held") && why.contains("stop the other gateway"), "{why}");
        assert_eq!(ring(), before, "its file is still there");
        assert!(first.has_sealed(&key()) && first.stats().disk && !second.stats().disk);
        first.close().await;
        drop(first);
        // Once the other one has ended, the folder can be taken.
        second.begin_disk(place.clone(), DISK_BYTES).expect("it is free").await;
        assert!(second.stats().disk && second.has_sealed(&key()));
        second.begin_disk(place, DISK_BYTES).expect("a repeated call does nothing").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cache_works_while_its_disk_is_being_opened() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let cache = Cache::open(MEMORY_BYTES_MIN, None).await.expect("open");
        let sibling = cache.sibling(MEMORY_BYTES_MIN, Bytes::len).expect("a sibling");
        let opening = cache.begin_disk(dir.path().to_owned(), DISK_BYTES).expect("it is free");
        cache.keep_sealed([(key(), Bytes::from_static(b"sealed"))]).await;
        assert!(!cache.has_sealed(&key()) && !cache.stats().disk);
        opening.await;
        cache.keep_sealed([(key(), Bytes::from_static(b"sealed"))]).await;
        assert!(cache.has_sealed(&key()) && sibling.has_sealed(&key()), "siblings made before have the disk as well");
    }
}
