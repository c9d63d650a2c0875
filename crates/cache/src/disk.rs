//! The disk tier: sealed bytes in foyer's block files. Every error here counts as a miss.
//!
//! ```text
//!   DIR/layout      sizes that the files were made for; other sizes, or none: the files are dropped
//!   DIR/blocks/     foyer's files
//! ```

use super::admission::{Admission, Demand};
use crate::key::BlockKey;
use crate::several::Wanted;
use bytes::Bytes;
use foyer::{
    Age, BlockEngineConfig, Code, DeviceBuilder, EvictionInfo, EvictionPicker, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, HybridCachePolicy, Load, PsyncIoEngineConfig, RecoverMode,
};
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, ObjectId, Term, limits};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Memory in bytes that the disk tier takes in addition to the cache's own: buffers that are filled and written, and
/// the queue for them. Data that arrives faster than the disk takes it is dropped.
pub const DISK_BUFFER_BYTES: usize = 2 * POOL_BYTES + QUEUE_BYTES;
const POOL_BYTES: usize = 8 << 20;
const QUEUE_BYTES: usize = 8 << 20;

/// Data that was made here goes to disk in pieces of this size, one after the other. The queue has room for one piece
/// in addition to the data of reads.
const KEEP_BYTES: usize = 2 << 20;

/// How long the disk may take for data that was made here. Meanwhile the data stays in memory, and a checkpoint waits.
/// Tests wait longer, here and below, so that their results do not depend on the machine.
const KEEP_TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 2 });

/// Foyer's unit on disk in bytes: each entry takes whole units.
const UNIT_BYTES: usize = 4096;

/// Foyer's header of an entry in bytes; key and value follow.
const HEADER_BYTES: usize = 36;

/// If the disk takes longer, the store is asked instead: it is not much slower.
const LOAD_TIME_MAX: Duration = Duration::from_millis(if cfg!(test) { 600_000 } else { 500 });

/// Maximum number of files; each is kept open.
const BLOCKS_MAX: u64 = 256;
/// Unit of eviction, in bytes, of a small tier; many extents must fit.
const BLOCK_BYTES_MIN: u64 = 1 << 20;
/// Foyer needs some blocks to write to while others are evicted.
const BLOCKS_MIN: u64 = 16;

const _: () = assert!(BLOCK_BYTES_MIN as usize >= 4 * limits::EXTENT_BYTES_MAX);

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    hybrid: HybridCache<BlockKey, Bytes>,
    admission: Mutex<Admission>,
    /// Held while data is passed to foyer, see [`Disk::hand_over`].
    handing: Mutex<()>,
    errors: AtomicU64,
    /// Held by the caller whose pieces are being written ([`KEEP_BYTES`]).
    turn: tokio::sync::Mutex<()>,
}

/// Space of an entry on the disk, in bytes. A small entry takes far more than its own length. Counted by that length,
/// thousands of them could be written again for one extent.
pub(super) fn room(key: &BlockKey, sealed: &Bytes) -> u64 {
    room_of(key, std::slice::from_ref(sealed))
}

/// Like `room`, of one in pieces.
fn room_of(key: &BlockKey, sealed: &[Bytes]) -> u64 {
    let value = Bytes::new().estimated_size() + sealed.iter().map(Bytes::len).sum::<usize>();
    (HEADER_BYTES + key.estimated_size() + value).next_multiple_of(UNIT_BYTES) as u64
}

/// Data read from the disk.
#[derive(Debug)]
pub(super) struct Found {
    /// As it was stored.
    pub(super) sealed: Bytes,
    /// It is in the older half of the disk.
    older: bool,
}

/// The order in which blocks are evicted: as they were filled. A block is old once half the disk was filled after it;
/// data read from an old block is written again (CACHE-C7). With a smaller part than half, fewer of the rarely read
/// entries would be caught. Foyer's own picker of this kind reports nothing before the first block is evicted.
#[derive(Debug, Default)]
struct Round {
    filled: VecDeque<u32>,
    blocks: usize,
}

impl EvictionPicker for Round {
    fn init(&mut self, blocks: &[u32], _block_bytes: usize) {
        self.blocks = blocks.len();
    }

    fn pick(&mut self, info: EvictionInfo<'_>) -> Option<u32> {
        // Foyer panics if it gets a block that it cannot evict; if it gets none, it chooses any.
        self.filled.iter().copied().find(|block| info.evictable.contains(block))
    }

    fn on_block_evictable(&mut self, info: EvictionInfo<'_>, block: u32) {
        self.filled.push_back(block);
        let old = self.filled.len().saturating_sub(self.blocks / 2);
        for block in self.filled.iter().take(old).filter_map(|block| info.blocks.get(*block as usize)) {
            // Foyer resets it when the block has been evicted.
            block.statistics().probation.store(true, Relaxed);
        }
    }

    fn on_block_evict(&mut self, _: EvictionInfo<'_>, block: u32) {
        self.filled.retain(|filled| *filled != block);
    }
}

impl Code for BlockKey {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        let mut text = [0; 48];
        text[..8].copy_from_slice(&self.object.term.0.to_le_bytes());
        text[8..16].copy_from_slice(&self.object.member.0.to_le_bytes());
        text[16..24].copy_from_slice(&self.object.boot.to_le_bytes());
        text[24..40].copy_from_slice(&self.object.random.to_le_bytes());
        text[40..44].copy_from_slice(&self.number.to_le_bytes());
        text[44..].copy_from_slice(&self.block.to_le_bytes());
        writer.write_all(&text).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let mut word = || -> foyer::Result<u64> {
            let mut bytes = [0; 8];
            reader.read_exact(&mut bytes).map_err(foyer::Error::io_error)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let (term, member, boot) = (Term(word()?), MemberId(word()?), word()?);
        let random = u128::from(word()?) | u128::from(word()?) << 64;
        let mut half = || -> foyer::Result<u32> {
            let mut bytes = [0; 4];
            reader.read_exact(&mut bytes).map_err(foyer::Error::io_error)?;
            Ok(u32::from_le_bytes(bytes))
        };
        let (number, block) = (half()?, half()?);
        Ok(Self { object: ObjectId { term, member, boot, random }, number, block })
    }

    fn estimated_size(&self) -> usize {
        48
    }
}

/// Sizes of the files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    block: u64,
    whole: u64,
}

impl Layout {
    /// `None` if `bytes` is too small to be of use.
    fn of(bytes: u64) -> Option<Self> {
        let block = (bytes / 64).clamp(BLOCK_BYTES_MIN, 256 << 20).max(bytes.div_ceil(BLOCKS_MAX));
        let block = block.next_multiple_of(4096);
        let whole = bytes - bytes % block;
        (whole / block >= BLOCKS_MIN).then_some(Self { block, whole })
    }

    fn text(self) -> String {
        format!("holdfast read cache, version 2: {} bytes in blocks of {}\n", self.whole, self.block)
    }
}

impl Disk {
    /// Opens the tier with at most `bytes` of files below `dir`. Returns `None`, with a warning, if that fails.
    pub(super) async fn open(dir: PathBuf, bytes: u64) -> Option<Self> {
        let Some(layout) = Layout::of(bytes) else {
            tracing::warn!(
                bytes,
                expected = BLOCKS_MIN * BLOCK_BYTES_MIN,
                "cache disk: too small; continuing without it"
            );
            return None;
        };
        match Self::try_open(&dir, layout).await {
            Ok(disk) => return Some(disk),
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "cache disk: cannot be opened; dropping its files")
            }
        }
        let again = match drop_files(&dir) {
            Ok(()) => Self::try_open(&dir, layout).await,
            Err(error) => Err(error),
        };
        again
            .inspect_err(|error| tracing::warn!(dir = %dir.display(), %error, "cache disk: continuing without it"))
            .ok()
    }

    async fn try_open(dir: &Path, layout: Layout) -> io::Result<Self> {
        let (blocks, note) = (dir.join("blocks"), dir.join("layout"));
        if std::fs::read_to_string(&note).ok() != Some(layout.text()) {
            drop_files(dir)?;
            std::fs::create_dir_all(&blocks)?;
            std::fs::write(&note, layout.text())?;
        }
        std::fs::create_dir_all(&blocks)?;
        // Bypass the page cache, which would hold everything twice and write it back beside the journal's syncs. Not
        // every file system supports that.
        let hybrid = match build(&blocks, layout, true).await {
            Ok(hybrid) => hybrid,
            Err(_) => build(&blocks, layout, false).await.map_err(|error| io::Error::other(error.to_string()))?,
        };
        let (admission, handing) = (Mutex::new(Admission::new(layout.whole)), Mutex::default());
        Ok(Self { hybrid, admission, handing, errors: AtomicU64::new(0), turn: tokio::sync::Mutex::default() })
    }

    /// The sealed bytes, if they are here and arrive in time.
    pub(super) async fn load(&self, key: &BlockKey) -> Option<Found> {
        match tokio::time::timeout(LOAD_TIME_MAX, self.hybrid.storage().load(key)).await {
            Ok(Ok(Load::Entry { value, populated, .. })) => {
                Some(Found { sealed: value, older: populated.age == Age::Old })
            }
            // Still in the write queue.
            Ok(Ok(Load::Piece { piece, .. })) => Some(Found { sealed: piece.value().clone(), older: false }),
            Ok(Ok(Load::Miss | Load::Throttled)) => None,
            Ok(Err(error)) => {
                self.errors.fetch_add(1, Relaxed);
                tracing::debug!(%error, "cache disk: read failed");
                None
            }
            Err(_) => {
                self.errors.fetch_add(1, Relaxed);
                self.admit(Admission::behind);
                None
            }
        }
    }

    fn admit<T>(&self, decide: impl FnOnce(&mut Admission) -> T) -> T {
        decide(&mut self.admission.locked())
    }

    /// Stores fetched sealed bytes if admission allows, and returns whether it does. If the disk is too slow, they are
    /// dropped.
    pub(super) fn fetched(&self, key: BlockKey, sealed: Bytes, demand: Demand) -> bool {
        let goes_in = self.admit(|admission| admission.fetched(&key, room(&key, &sealed), demand));
        if goes_in {
            self.hand_over(key, sealed);
        }
        goes_in
    }

    /// As [`Disk::fetched`], for the entries of what was fetched as a whole: either all that are missing are stored, or
    /// none. Returns their bytes too.
    pub(super) fn fetched_apart(
        &self,
        wanted: &Wanted<'_>,
        mut entries: Vec<(BlockKey, [Bytes; 2])>,
        demand: Demand,
    ) -> (bool, u64) {
        let several = entries.len() > 1;
        // The wanted entry is missing even if the disk has it: it could not be read, or not in time.
        entries.retain(|(key, _)| *key == wanted.entry || !self.has(key));
        let bytes: u64 = entries.iter().flat_map(|(_, sealed)| sealed).map(|piece| piece.len() as u64).sum();
        if entries.is_empty() {
            return (false, bytes);
        }
        let taken: u64 = entries.iter().map(|(key, sealed)| room_of(key, sealed)).sum();
        let goes_in = self.admit(|admission| admission.fetched(&wanted.whole, taken, demand));
        if goes_in {
            for (key, [head, rest]) in entries {
                // As a slice, the last of them would keep all that was fetched in memory.
                let copied = several || !head.is_empty();
                self.hand_over(key, if copied { [&head[..], &rest[..]].concat().into() } else { rest });
            }
        }
        (goes_in, bytes)
    }

    /// Data that was read from here has opened. Writes it again if it should stay longer, and returns whether it does.
    pub(super) fn keep_longer(&self, key: BlockKey, found: Found, demand: Demand) -> bool {
        let again = self.admit(|admission| admission.found(room(&key, &found.sealed), found.older, demand));
        if again {
            self.hand_over(key, found.sealed);
        }
        again
    }

    /// Passes data to foyer, one caller at a time. Foyer numbers entries before it queues them, and at a start it reads
    /// each block only up to the first entry with a lower number than the one before. (So foyer's own reinsertion,
    /// which keeps the old numbers, is not used.)
    fn hand_over(&self, key: BlockKey, sealed: Bytes) {
        // A slice of a larger buffer would keep all of it in memory while it waits to be written.
        let sealed = if sealed.is_unique() { sealed } else { Bytes::copy_from_slice(&sealed) };
        self.hand_over_as_it_is(key, sealed);
    }

    /// Like `hand_over`, without a copy of a slice.
    fn hand_over_as_it_is(&self, key: BlockKey, sealed: Bytes) {
        let _handing = self.handing.locked();
        self.hybrid.storage_writer(key).insert(sealed);
    }

    /// Stores all the pieces, at the disk's pace, and returns how many bytes. Pieces that are not written after
    /// [`KEEP_TIME_MAX`] are dropped. Otherwise none is in use here any more on return: the memory that they are slices
    /// of may be used again.
    pub(super) async fn keep(&self, pieces: impl IntoIterator<Item = (BlockKey, Bytes)>) -> u64 {
        let mut kept = 0;
        let mut pieces = pieces.into_iter().peekable();
        let whole = async {
            while pieces.peek().is_some() {
                let _turn = self.turn.lock().await;
                // Also for what an earlier caller has left, if the disk was too slow for it.
                self.hybrid.storage().wait().await;
                let mut taken = 0;
                while let Some((key, sealed)) = pieces.next_if(|_| taken < KEEP_BYTES) {
                    taken += sealed.len().next_multiple_of(UNIT_BYTES);
                    kept += sealed.len() as u64;
                    self.admit(|admission| admission.came_in(room(&key, &sealed)));
                    // Not copied: parts of an object share its memory. If the time is over first, one such piece at
                    // most is left in the queue, and with it one object stays in memory until it is written.
                    self.hand_over_as_it_is(key, sealed);
                }
            }
            if kept > 0 {
                self.hybrid.storage().wait().await;
            }
        };
        if tokio::time::timeout(KEEP_TIME_MAX, whole).await.is_err() {
            tracing::debug!("cache disk: too slow; some uploaded data is not kept");
        }
        kept
    }

    /// Whether the key's bytes are probably here.
    pub(super) fn has(&self, key: &BlockKey) -> bool {
        self.hybrid.storage().may_contains(key)
    }

    /// Drops the bytes.
    pub(super) fn forget(&self, key: &BlockKey) {
        self.hybrid.remove(key);
    }

    /// Reads that failed or took too long.
    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub(super) async fn close(&self) {
        self.hybrid.storage().wait().await;
        if let Err(error) = self.hybrid.close().await {
            tracing::debug!(%error, "cache disk: closing failed");
        }
    }

    /// Waits until everything stored so far is on disk.
    #[cfg(test)]
    pub(super) async fn settle(&self) {
        self.hybrid.storage().wait().await;
    }
}

/// Removes the cache's files below `dir`, and `dir` itself if it is not a directory.
fn drop_files(dir: &Path) -> io::Result<()> {
    for gone in [std::fs::remove_file(dir.join("layout")), std::fs::remove_dir_all(dir.join("blocks"))] {
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn build(dir: &Path, layout: Layout, direct: bool) -> foyer::Result<HybridCache<BlockKey, Bytes>> {
    let (block, whole) = (layout.block as usize, layout.whole as usize);
    let device = FsDeviceBuilder::new(dir).with_capacity(whole).with_direct(direct).build()?;
    let next: Vec<Box<dyn EvictionPicker>> = vec![Box::new(Round::default())];
    HybridCacheBuilder::new()
        .with_name("holdfast-disk")
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        // This memory holds nothing: stored data goes to disk only, loaded data is opened and kept above.
        .memory(1 << 20)
        .with_shards(1)
        .with_weighter(|_: &BlockKey, sealed: &Bytes| sealed.len())
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(
            BlockEngineConfig::new(device)
                .with_block_size(block)
                .with_eviction_pickers(next)
                .with_buffer_pool_size(POOL_BYTES)
                .with_submit_queue_size_threshold(QUEUE_BYTES),
        )
        // Objects never change (CACHE-C1), so any recovered data that opens is correct.
        .with_recover_mode(RecoverMode::Quiet)
        .build()
        .await
}
