//! The disk tier: sealed bytes in foyer's block files. Anything that goes wrong here is a miss.
//!
//! ```text
//!   DIR/layout      sizes that the files were made for; other sizes, or none: the files are dropped
//!   DIR/blocks/     foyer's files
//! ```

use super::BlockKey;
use super::admission::{Admission, Demand};
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

/// Memory in bytes that the disk tier takes beside the cache's own: buffers being filled and written, and what waits for
/// them. What comes faster than the disk takes it is not kept.
pub const DISK_BUFFER_BYTES: usize = 2 * POOL_BYTES + QUEUE_BYTES;
const POOL_BYTES: usize = 8 << 20;
const QUEUE_BYTES: usize = 8 << 20;

/// What was made here goes to the disk in pieces of so many bytes, one after the other: with what reads store beside it the queue has room for it.
const KEEP_BYTES: usize = 2 << 20;

/// How long the disk may take for what was made here. It is kept in memory meanwhile, and a checkpoint waits. In tests as long as it takes, as below: what they
/// find must not depend on the machine.
const KEEP_TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 2 });

/// Foyer's unit on disk in bytes: whatever is kept takes whole ones.
const UNIT_BYTES: usize = 4096;

/// Foyer's header of an entry in bytes; key and value follow.
const HEADER_BYTES: usize = 36;

/// A disk slower than this is not asked: the store is not much slower.
const LOAD_TIME_MAX: Duration = Duration::from_millis(if cfg!(test) { 600_000 } else { 500 });

/// Files of the tier at most: each is held open.
const BLOCKS_MAX: u64 = 256;
/// Unit of eviction in bytes where the tier is small; many extents must fit.
const BLOCK_BYTES_MIN: u64 = 1 << 20;
/// Foyer needs some blocks to write to while others are evicted.
const BLOCKS_MIN: u64 = 16;

const _: () = assert!(BLOCK_BYTES_MIN as usize >= 4 * limits::EXTENT_BYTES_MAX);

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    hybrid: HybridCache<BlockKey, Bytes>,
    admission: Mutex<Admission>,
    /// Held while something is handed to foyer, see [`Disk::hand_over`].
    handing: Mutex<()>,
    errors: AtomicU64,
    /// Held by whose pieces are on their way ([`KEEP_BYTES`]).
    turn: tokio::sync::Mutex<()>,
}

/// What an entry takes on the disk, in bytes. A small one takes far more than it has: by its own length, thousands could be written once more for one extent.
pub(super) fn room(key: &BlockKey, sealed: &Bytes) -> u64 {
    (HEADER_BYTES + key.estimated_size() + sealed.estimated_size()).next_multiple_of(UNIT_BYTES) as u64
}

/// What was read from the disk.
#[derive(Debug)]
pub(super) struct Found {
    /// As it was stored.
    pub(super) sealed: Bytes,
    /// It is in the older half of the disk.
    older: bool,
}

/// The order in which blocks go: as they were filled. A block is old once half the disk was filled after it: what is read from it is written once more (C7). In a
/// smaller part than half, fewer of those entries would be met that are read now and then. Foyer's own picker of this kind tells nobody before the first block
/// goes.
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
        // Foyer panics over a block that it cannot take; over none it takes any.
        self.filled.iter().copied().find(|block| info.evictable.contains(block))
    }

    fn on_block_evictable(&mut self, info: EvictionInfo<'_>, block: u32) {
        self.filled.push_back(block);
        let old = self.filled.len().saturating_sub(self.blocks / 2);
        for block in self.filled.iter().take(old).filter_map(|block| info.blocks.get(*block as usize)) {
            // Foyer takes it back when the block has gone.
            block.statistics().probation.store(true, Relaxed);
        }
    }

    fn on_block_evict(&mut self, _: EvictionInfo<'_>, block: u32) {
        self.filled.retain(|filled| *filled != block);
    }
}

impl Code for BlockKey {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        let mut text = [0; 44];
        text[..8].copy_from_slice(&self.object.term.0.to_le_bytes());
        text[8..16].copy_from_slice(&self.object.member.0.to_le_bytes());
        text[16..24].copy_from_slice(&self.object.boot.to_le_bytes());
        text[24..40].copy_from_slice(&self.object.random.to_le_bytes());
        text[40..].copy_from_slice(&self.number.to_le_bytes());
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
        let mut number = [0; 4];
        reader.read_exact(&mut number).map_err(foyer::Error::io_error)?;
        Ok(Self { object: ObjectId { term, member, boot, random }, number: u32::from_le_bytes(number) })
    }

    fn estimated_size(&self) -> usize {
        44
    }
}

/// Sizes of the files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    block: u64,
    whole: u64,
}

impl Layout {
    /// `None` where `bytes` is too little to be of use.
    fn of(bytes: u64) -> Option<Self> {
        let block = (bytes / 64).clamp(BLOCK_BYTES_MIN, 256 << 20).max(bytes.div_ceil(BLOCKS_MAX));
        let block = block.next_multiple_of(4096);
        let whole = bytes - bytes % block;
        (whole / block >= BLOCKS_MIN).then_some(Self { block, whole })
    }

    fn text(self) -> String {
        format!("holdfast read cache, version 1: {} bytes in blocks of {}\n", self.whole, self.block)
    }
}

impl Disk {
    /// Opens the tier with at most `bytes` of files below `dir`. `None`, with a warning, when that cannot be done.
    pub(super) async fn open(dir: PathBuf, bytes: u64) -> Option<Self> {
        let Some(layout) = Layout::of(bytes) else {
            tracing::warn!(bytes, expected = BLOCKS_MIN * BLOCK_BYTES_MIN, "cache disk: too small, going without");
            return None;
        };
        match Self::try_open(&dir, layout).await {
            Ok(disk) => return Some(disk),
            Err(error) => tracing::warn!(dir = %dir.display(), %error, "cache disk: dropped, it could not be opened"),
        }
        let again = match drop_files(&dir) {
            Ok(()) => Self::try_open(&dir, layout).await,
            Err(error) => Err(error),
        };
        again.inspect_err(|error| tracing::warn!(dir = %dir.display(), %error, "cache disk: going without")).ok()
    }

    async fn try_open(dir: &Path, layout: Layout) -> io::Result<Self> {
        let (blocks, note) = (dir.join("blocks"), dir.join("layout"));
        if std::fs::read_to_string(&note).ok() != Some(layout.text()) {
            drop_files(dir)?;
            std::fs::create_dir_all(&blocks)?;
            std::fs::write(&note, layout.text())?;
        }
        std::fs::create_dir_all(&blocks)?;
        // Past the page cache, which would hold everything twice and write it back beside the journal's syncs; not every
        // file system can do that.
        let hybrid = match build(&blocks, layout, true).await {
            Ok(hybrid) => hybrid,
            Err(_) => build(&blocks, layout, false).await.map_err(|error| io::Error::other(error.to_string()))?,
        };
        let (admission, handing) = (Mutex::new(Admission::new(layout.whole)), Mutex::default());
        Ok(Self { hybrid, admission, handing, errors: AtomicU64::new(0), turn: tokio::sync::Mutex::default() })
    }

    /// The sealed bytes, if they are here and come in time.
    pub(super) async fn load(&self, key: &BlockKey) -> Option<Found> {
        match tokio::time::timeout(LOAD_TIME_MAX, self.hybrid.storage().load(key)).await {
            Ok(Ok(Load::Entry { value, populated, .. })) => {
                Some(Found { sealed: value, older: populated.age == Age::Old })
            }
            // On its way there.
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

    /// Keeps sealed bytes that were fetched, if they are to go in; whether they are. A disk that is behind drops them.
    pub(super) fn fetched(&self, key: BlockKey, sealed: Bytes, demand: Demand) -> bool {
        let goes_in = self.admit(|admission| admission.fetched(&key, room(&key, &sealed), demand));
        if goes_in {
            self.hand_over(key, sealed);
        }
        goes_in
    }

    /// What was read from here has opened: if it is to stay longer it is written once more; whether it is.
    pub(super) fn keep_longer(&self, key: BlockKey, found: Found, demand: Demand) -> bool {
        let again = self.admit(|admission| admission.found(room(&key, &found.sealed), found.older, demand));
        if again {
            self.hand_over(key, found.sealed);
        }
        again
    }

    /// To foyer, by one caller at a time: it numbers what it is given before it queues it, and a start reads each block only up to the first entry whose number is
    /// lower than that of the one before. (So its own reinsertion, which keeps the old numbers, is not used.)
    fn hand_over(&self, key: BlockKey, sealed: Bytes) {
        // A part of a larger buffer would keep all of it in memory while it waits to be written.
        let sealed = if sealed.is_unique() { sealed } else { Bytes::copy_from_slice(&sealed) };
        let _handing = self.handing.locked();
        self.hybrid.storage_writer(key).insert(sealed);
    }

    /// Keeps all the pieces, at the disk's pace; how many bytes of them. What the disk has not taken after [`KEEP_TIME_MAX`] is not kept.
    pub(super) async fn keep(&self, pieces: impl IntoIterator<Item = (BlockKey, Bytes)>) -> u64 {
        let mut kept = 0;
        let mut pieces = pieces.into_iter().peekable();
        let whole = async {
            while pieces.peek().is_some() {
                let _turn = self.turn.lock().await;
                // Before, not after: nobody waits for the last piece.
                self.hybrid.storage().wait().await;
                let mut taken = 0;
                while let Some((key, sealed)) = pieces.next_if(|_| taken < KEEP_BYTES) {
                    taken += sealed.len().next_multiple_of(UNIT_BYTES);
                    kept += sealed.len() as u64;
                    self.admit(|admission| admission.came_in(room(&key, &sealed)));
                    // Copied: the object's memory is used again, or given back, as soon as the store has it.
                    self.hand_over(key, Bytes::copy_from_slice(&sealed));
                }
            }
        };
        if tokio::time::timeout(KEEP_TIME_MAX, whole).await.is_err() {
            tracing::debug!("cache disk: behind; some of what was uploaded is not kept");
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

    /// Until everything stored so far is on disk.
    #[cfg(test)]
    pub(super) async fn settle(&self) {
        self.hybrid.storage().wait().await;
    }
}

/// Removes what is ours below `dir`, and `dir` itself where it is not a directory.
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
        // Nothing stays in this memory: what is stored goes to the disk only, what is loaded is opened and kept above.
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
        // Objects never change (C1), so whatever is recovered and can be opened is right.
        .with_recover_mode(RecoverMode::Quiet)
        .build()
        .await
}
