//! What an uploader has: its settings, the state of collection and of the checkpoint under way, and why one fails.

use crate::head::KeepError;
use crate::host::SetHost;
use crate::live::Now;
use crate::mapping::{MapError, Mapping};
use crate::reader::{ReadError, Reader};
use crate::server::{SetError, SetServer};
use crate::set_key::SealingKey;
use holdfast_store::{ObjectStore, StoreError};
use holdfast_types::sync::LockExt;
use holdfast_types::{ObjectId, Sectors, VolumeId};
use holdfast_volume::map::{LeafShape, LiveError, MapExtent};
use holdfast_volume::segment::Codec;
use holdfast_volume::space::{MoveBudget, MoveLimits, Spared};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Map pages that are read from the store concurrently.
pub(super) const PAGES_AHEAD: usize = 32;

/// Leaves that are read concurrently when a caller goes through all of them in order.
pub(super) const LEAVES_AHEAD: usize = 16;

/// Maximum pause between two attempts after the store or the group did not answer.
pub(super) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// When and how to upload.
#[derive(Clone, Copy, Debug)]
pub struct UploadSettings {
    /// A checkpoint begins when the journal holds this many bytes of the set …
    pub bytes: u64,
    /// … or this many that were written in large pieces ([`UploadSettings::large_bytes_for`]) …
    pub large_bytes: u64,
    /// … or when the oldest of them reaches this age.
    pub interval: Duration,
    /// Number of segments written concurrently.
    pub parallel: usize,
    /// How extents are compressed.
    pub codec: Codec,
    /// Stored bytes for each 100 bytes in use; above this, segments are emptied.
    pub target_percent: u32,
    /// Limits for the store traffic of emptying segments.
    pub moves: MoveLimits,
    /// Whether uploaded data also goes into the disk cache.
    pub keep_uploaded: bool,
}

/// Data with extents of so many bytes, on an average, was written in large pieces: a checkpoint of it costs few
/// requests and little of the map.
const LARGE_EXTENT_BYTES: u64 = 64 << 10;

/// What was written since the last checkpoint began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Bytes of all of it.
    pub(super) bytes: u64,
    /// Bytes that are to be uploaded: of what was overwritten, only the newest.
    pub(super) live: u64,
    /// Extents that these are in.
    pub(super) extents: u64,
}

impl UploadSettings {
    /// For `bytes` and a journal that keeps its newest `tail` bytes in memory: half of these. While a checkpoint
    /// uploads them, about as much is written, and what it reads is still in memory. With a larger checkpoint it would
    /// read all of it back from the disk. Who sets `bytes` to more than twice `tail` wants large checkpoints.
    pub fn large_bytes_for(bytes: u64, tail: u64) -> u64 {
        if bytes / 2 <= tail { bytes.min(tail / 2) } else { bytes }
    }

    /// Whether enough was written for a checkpoint.
    pub(super) fn is_enough(&self, written: Written) -> bool {
        let Written { bytes, live, extents } = written;
        // Data that is overwritten soon is better uploaded later.
        let large = live >= bytes / 4 * 3 && live >= LARGE_EXTENT_BYTES.saturating_mul(extents);
        bytes >= self.bytes || large && bytes >= self.large_bytes
    }
}

/// Why a checkpoint failed. It is started again.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Head(#[from] KeepError),
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error("another leader has started")]
    Superseded,
    #[error("stopping")]
    Stopping,
    #[error("the store does not answer in time")]
    Late,
}

impl From<tokio::task::JoinError> for UploadError {
    /// A panic is passed on: a broken invariant must not be retried for ever as if the store were slow.
    fn from(ended: tokio::task::JoinError) -> Self {
        match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Self::Stopping,
        }
    }
}

/// Shape of the leaves of a new root; `None` to write it whole, for gateways whose build reads no leaves.
pub type InLeaves = Arc<dyn Fn() -> Option<LeafShape> + Send + Sync>;

/// What is known of the garbage in the store, and what was spent on its collection.
pub(super) struct Collection {
    /// The last checkpoint, perhaps an earlier leader's, left more garbage than the target allows.
    pub(super) due: AtomicBool,
    /// Segments that could not be emptied usefully.
    pub(super) spared: Mutex<Spared>,
    /// Budget of the store traffic for moves, in time since `begun`.
    pub(super) budget: Mutex<MoveBudget>,
    pub(super) begun: Instant,
    /// The last checkpoint moved less than necessary: because of the budget, of writers that waited for the journal, or
    /// of a rollback before it.
    pub(super) held: AtomicBool,
    /// The root's key for which collection was started, to move what earlier leaders left under older keys.
    pub(super) resealing: Mutex<Option<(u32, Instant)>>,
}

impl Collection {
    fn new(moves: MoveLimits) -> Self {
        Self {
            due: AtomicBool::new(false),
            spared: Mutex::default(),
            budget: Mutex::new(MoveBudget::new(moves)),
            begun: Instant::now(),
            held: AtomicBool::new(false),
            resealing: Mutex::default(),
        }
    }
}

/// What belongs to the checkpoint under way.
#[derive(Default)]
pub(super) struct Current {
    /// The key of everything in it. Its root claims it for objects that it does not list (UNDER-U1).
    pub(super) sealing: Mutex<Option<SealingKey>>,
    /// Its target, with its head: the set's stores as of its begin.
    pub(super) place: Mutex<Option<Arc<dyn ObjectStore>>>,
    /// Buffers of uploaded segments, which are used again, by the next checkpoint too if it comes soon; one more than
    /// are written concurrently.
    pub(super) bodies: Mutex<Vec<Vec<u8>>>,
}

/// Uploads one set while this gateway leads it.
pub struct Uploader {
    pub(super) server: Arc<SetServer>,
    pub(super) host: Arc<SetHost>,
    pub(super) reader: Reader,
    pub(super) mapping: Arc<Mapping>,
    pub(super) settings: UploadSettings,
    /// Where the settings come from while they can change.
    pub(super) now: Option<Now<UploadSettings>>,
    pub(super) boot: u64,
    pub(super) collection: Collection,
    pub(super) current: Current,
    /// How roots are divided, if every gateway can read divided ones.
    pub(super) in_leaves: InLeaves,
    pub(super) stop: CancellationToken,
}

impl Uploader {
    /// `boot`: this disk's start counter, part of every object's name.
    pub fn new(
        server: Arc<SetServer>,
        mapping: Arc<Mapping>,
        settings: UploadSettings,
        boot: u64,
        stop: CancellationToken,
    ) -> Self {
        let (host, reader) = (server.host.clone(), server.reader.clone());
        let collection = Collection::new(settings.moves);
        Self {
            server,
            host,
            reader,
            mapping,
            settings,
            now: None,
            boot,
            collection,
            current: Current::default(),
            in_leaves: Arc::new(|| None),
            stop,
        }
    }

    /// Uses the settings that `now` tells, from the next turn on.
    #[must_use]
    pub fn following(self, now: Now<UploadSettings>) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Takes the settings as they are now. Not while a checkpoint runs: it keeps its compression and its limits.
    pub(super) fn refresh(&mut self) {
        let Some(now) = &self.now else { return };
        self.settings = now();
        self.collection.budget.locked().limit(self.settings.moves);
    }

    /// Sets the callback that is asked for the shape of each root.
    #[must_use]
    pub fn in_leaves(self, in_leaves: InLeaves) -> Self {
        Self { in_leaves, ..self }
    }
}

/// What a checkpoint has uploaded: the extents of each page, and the segments with their bytes and sectors.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) extents: BTreeMap<(VolumeId, u32), Vec<MapExtent>>,
    pub(super) segments: Vec<(ObjectId, u64, Sectors)>,
}
