//! The read path below the lease: pieces come from the journal, from segments through the cache, or are zeroes.
//!
//! A piece in the journal may be purged between lookup and read, because a checkpoint moved it to the store. Then the
//! location is looked up again: the data still exists, elsewhere (R1).

use crate::ahead::{Ahead, Of};
use crate::bad_places::{BadPlaces, PLACES_MAX};
use crate::host::SetHost;
pub use crate::mapping::Part;
use crate::mapping::{MapError, Mapping};
use bytes::Bytes;
use fetched::{Call, Use, Wants, alone};
pub(crate) use fetched::{Fetched, Odd};
use futures_util::{StreamExt, stream};
use holdfast_cache::Demand;
use holdfast_control::set::RootRef;
use holdfast_raft::{Group, ReadLogError, ReadPlace};
use holdfast_store::Disposition;
use holdfast_types::limits::ENTRY_BYTES_MAX;
use holdfast_types::{Lba, LogIndex, Sectors, VolumeId};
use holdfast_volume::entry::{ENTRY_HEADER_BYTES, EntryError, read_piece};
use holdfast_volume::index::{JournalRef, Piece, Source};
use holdfast_volume::plan::PlannedExtent;
use std::collections::BTreeMap;
use std::sync::Arc;

mod fetched;

/// How often a purged location is looked up again. Between two lookups a whole checkpoint must have finished.
const LOOKUPS_MAX: u32 = 8;

/// Concurrent journal reads for one batch of a checkpoint, or for one read of a client.
const BATCH_READS: usize = 8;

/// How much one read call asks for at most; in bytes, the last operation may exceed it.
#[derive(Clone, Copy)]
struct CallSize {
    bytes: usize,
    places: usize,
}

/// A client waits: several calls run at once.
const FOR_CLIENT: CallSize = CallSize { bytes: 128 << 10, places: PLACES_MAX };
/// Of a checkpoint, large operations in a row share a call, and those of one entry a read of the disk. Small ones,
/// which lie apart, are spread over about as many calls as those of a client.
const FOR_UPLOAD: CallSize = CallSize { bytes: 512 << 10, places: 64 };
// R9: what a failed call leaves to be read again.
const _: () = assert!(FOR_CLIENT.places <= PLACES_MAX && FOR_UPLOAD.places <= PLACES_MAX);

/// An operation that begins within so many bytes of its entry is read together with the entry's header.
const NEAR_BYTES: u32 = 4 << 10;

/// A read that cannot be answered. The client never gets these errors (R8): the connection is closed, or the read
/// waits.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A bad record (R9).
    #[error("journal: {0}")]
    Journal(#[source] ReadLogError),
    /// An operation's checksum in an entry does not match (R9).
    #[error("journal entry {index}: {reason}")]
    Operation {
        /// Its index.
        index: holdfast_types::LogIndex,
        /// The found and expected values.
        reason: String,
    },
    /// An error of the map or a segment.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The location kept changing.
    #[error("place moved {LOOKUPS_MAX} times while it was read")]
    Moving,
}

/// An extent's content, read from the journal and checked.
#[derive(Clone, Debug)]
pub struct RawExtent {
    /// Its volume.
    pub volume: VolumeId,
    /// Its first sector.
    pub lba: Lba,
    /// The content, in order, without gaps.
    pub parts: Vec<Bytes>,
}

/// The places of one read call.
#[derive(Default)]
struct Reads {
    places: Vec<ReadPlace>,
    wants: Vec<Wants>,
}

impl Reads {
    /// Adds an operation; those of one entry come one after the other. Returns how many bytes more are read.
    fn add(&mut self, index: LogIndex, offset: u32, len: usize, uses: Vec<Use>) -> usize {
        let next = self.places.len();
        let known = self.wants.last().map(|last| last.head).filter(|head| self.places[*head].index == index);
        if known.is_none() && offset <= NEAR_BYTES {
            let skip = offset as usize;
            self.places.push(ReadPlace { index, offset: 0, len: skip + len });
            self.wants.push(Wants { head: next, block: next, skip, uses });
            return skip + len;
        }
        let head = known.unwrap_or(next);
        if known.is_none() {
            self.places.push(ReadPlace { index, offset: 0, len: ENTRY_HEADER_BYTES });
        }
        self.wants.push(Wants { head, block: self.places.len(), skip: 0, uses });
        self.places.push(ReadPlace { index, offset, len });
        len + if known.is_none() { ENTRY_HEADER_BYTES } else { 0 }
    }
}

/// Reads committed data of one set on this node. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    group: Group,
    host: Arc<SetHost>,
    mapping: Arc<Mapping>,
    bad_places: Arc<BadPlaces>,
    ahead: Arc<Ahead>,
}

impl Reader {
    /// Creates a reader of `host`'s state.
    pub fn new(group: Group, host: Arc<SetHost>, mapping: Arc<Mapping>) -> Self {
        let ahead = Arc::new(Ahead::new(mapping.read_ahead));
        Self { group, host, mapping, bad_places: Arc::default(), ahead }
    }

    /// Journal records that could not be read.
    pub fn bad_places(&self) -> &BadPlaces {
        &self.bad_places
    }

    /// A read of `places` failed. Another task reads them again; the caller does not wait for that.
    fn unread(&self, places: &[ReadPlace], error: ReadLogError) -> ReadError {
        holdfast_reached::reached!(
            "read: the entry was purged meanwhile",
            matches!(error, ReadLogError::Purged { .. } | ReadLogError::Missing { .. })
        );
        self.bad_places.unread(places, &error);
        ReadError::Journal(error)
    }

    /// Reports a client's read, so that the following data may be prefetched into the cache. Returns whether it is a
    /// scan.
    pub(super) fn client_reads(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Demand {
        self.ahead.reads(&self.mapping, &Of::Now(self.host.clone()), volume, lba, sectors)
    }

    /// A client announces a read of this range (NBD_CMD_CACHE).
    pub(super) fn client_will_read(&self, volume: VolumeId, lba: Lba, sectors: Sectors) {
        self.ahead.will_read(&self.mapping, &Of::Now(self.host.clone()), volume, lba, sectors);
    }

    /// Like `client_will_read`, for exports of a snapshot, each of which has its own readers.
    pub(super) fn ahead_of_root(&self) -> Ahead {
        Ahead::new(self.mapping.read_ahead)
    }

    /// The map of the data in the store.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Reads the range, as of some moment during the call.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read(
        &self,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        demand: Demand,
    ) -> Result<Vec<Part>, ReadError> {
        for _ in 0..LOOKUPS_MAX {
            let (pieces, root) = self.host.lookup(volume, lba, sectors);
            if let Some(root) = root {
                self.mapping.note_current(root);
            }
            match self.read_pieces(volume, &pieces, root, demand).await {
                // A checkpoint, or a snapshot from the leader, replaced the entry meanwhile.
                Err(ReadError::Journal(ReadLogError::Purged { .. } | ReadLogError::Missing { .. })) => continue,
                // The objects of a replaced root are deleted after a grace time, and this read took longer.
                Err(ReadError::Map(MapError::Store(e)))
                    if matches!(e.disposition(), Disposition::NotFound) && self.host.root() != root =>
                {
                    continue;
                }
                Err(ReadError::Map(e)) => {
                    self.mapping.note_object_trouble(&e);
                    return Err(e.into());
                }
                other => return other,
            }
        }
        holdfast_reached::reached!("read: the data moved again and again");
        Err(ReadError::Moving)
    }

    /// Reads the range as of `root`.
    ///
    /// # Errors
    /// [`ReadError::Map`].
    pub async fn read_root(
        &self,
        root: RootRef,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        demand: Demand,
    ) -> Result<Vec<Part>, ReadError> {
        let mut parts = Vec::new();
        self.mapping.read(root, volume, lba, sectors, demand, &mut parts).await?;
        Ok(parts)
    }

    async fn read_pieces(
        &self,
        volume: VolumeId,
        pieces: &[Piece],
        root: Option<RootRef>,
        demand: Demand,
    ) -> Result<Vec<Part>, ReadError> {
        let mut from_journal = self.read_scattered(volume, pieces).await?.into_iter();
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match (piece.source, root) {
                (Source::Journal(place), _) => {
                    let data = match from_journal.next() {
                        Some(data) => data,
                        None => self.read_journal(volume, piece.lba, piece.sectors, place).await?,
                    };
                    parts.push(Part::Data(data));
                    self.mapping.note_journal();
                }
                (Source::Zero, _) | (Source::Map, None) => parts.push(Part::Zeroes(piece.sectors)),
                (Source::Map, Some(root)) => {
                    self.mapping.read(root, volume, piece.lba, piece.sectors, demand, &mut parts).await?;
                }
            }
        }
        Ok(parts)
    }

    /// The pieces that lie in the journal, several read at once; empty if it is at most one. A large read of data that
    /// was written in small pieces has up to one for each block: read one after the other, they would take as many disk
    /// accesses in a row.
    async fn read_scattered(&self, volume: VolumeId, pieces: &[Piece]) -> Result<Vec<Bytes>, ReadError> {
        let planned = |piece: &Piece| match piece.source {
            Source::Journal(place) => {
                Some(PlannedExtent { volume, lba: piece.lba, parts: vec![(piece.sectors, place)] })
            }
            Source::Zero | Source::Map => None,
        };
        if pieces.iter().filter(|piece| matches!(piece.source, Source::Journal(_))).count() < 2 {
            return Ok(Vec::new());
        }
        let read = self.read_batch(pieces.iter().filter_map(planned).collect()).await?;
        Ok(read.into_iter().flat_map(|extent| extent.parts).collect())
    }

    /// Reads a piece of one operation's data. The whole operation is read, because its checksum covers all of it; what
    /// the piece touches of it is opened.
    ///
    /// # Errors
    /// [`ReadError`]; R9: also if the journal holds another operation there than the index says.
    pub async fn read_journal(
        &self,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        place: JournalRef,
    ) -> Result<Bytes, ReadError> {
        let (offset, len) = place.byte_range();
        assert!(len <= ENTRY_BYTES_MAX, "R5: the index names an operation of {len} bytes");
        let mut reads = Reads::default();
        reads.add(place.index, offset, len, Vec::new());
        let read = match reads.places.as_slice() {
            [one] => self.group.read_log(one.index, one.offset, one.len).await.map(|bytes| vec![bytes]),
            several => self.group.read_log_many(several.to_vec()).await,
        };
        let bytes = read.map_err(|e| self.unread(&reads.places, e))?;
        let Wants { head, block, skip, .. } = &reads.wants[0];
        let piece = read_piece(volume, lba, sectors, &place, &bytes[*head], &bytes[*block].slice(*skip..));
        piece.map(|piece| alone(piece, &bytes[*block])).map_err(|e| {
            holdfast_reached::reached!("read: the journal holds another operation");
            self.odd(place, &e)
        })
    }

    /// The journal does not hold the operation of `place`.
    fn odd(&self, place: JournalRef, error: &EntryError) -> ReadError {
        let (index, reason, (offset, len)) = (place.index, error.to_string(), place.byte_range());
        self.bad_places.odd(ReadPlace { index, offset, len }, &reason);
        ReadError::Operation { index, reason }
    }

    /// An operation of a batch is not the one that the index refers to, or is damaged.
    pub(crate) fn odd_in_batch(&self, odd: &Odd) -> ReadError {
        self.odd(odd.place, &odd.error)
    }

    /// Reads the content of planned extents. Each operation is read and checked once, even if several extents use it,
    /// and several are read at once: a checkpoint of scattered blocks would otherwise wait for one small read after
    /// another.
    ///
    /// # Errors
    /// As [`Reader::read_journal`].
    pub async fn read_batch(&self, extents: Vec<PlannedExtent>) -> Result<Vec<RawExtent>, ReadError> {
        let empty = |extent: &PlannedExtent| {
            let parts = vec![Bytes::new(); extent.parts.len()];
            RawExtent { volume: extent.volume, lba: extent.lba, parts }
        };
        let mut raw: Vec<RawExtent> = extents.iter().map(empty).collect();
        let take = |call: Call| -> Result<(), Odd> {
            for (at, piece) in call.pieces(&extents)? {
                raw[at.extent].parts[at.part] = piece;
            }
            Ok(())
        };
        self.operations(wanted(&extents), FOR_CLIENT, take).await?;
        Ok(raw)
    }

    /// Like `read_batch`, for a checkpoint, which checks and opens elsewhere what was read.
    ///
    /// # Errors
    /// As [`Reader::read_journal`], for what could not be read.
    pub(crate) async fn fetch_batch(&self, extents: Vec<PlannedExtent>) -> Result<Fetched, ReadError> {
        let wanted = wanted(&extents);
        let mut fetched = Fetched::new(extents);
        self.operations(wanted, FOR_UPLOAD, |call| fetched.add(call)).await?;
        Ok(fetched)
    }

    /// Reads each of the operations once, and hands over what each call has read as soon as it is there: all of them at
    /// once may be much more than what is wanted of them.
    async fn operations(
        &self,
        wanted: Wanted,
        size: CallSize,
        mut take: impl FnMut(Call) -> Result<(), Odd>,
    ) -> Result<(), ReadError> {
        let mut reads = stream::iter(in_reads(wanted, size))
            .map(|Reads { places, wants }| async move {
                let read = self.group.read_log_many(places.clone()).await;
                read.map(|bytes| Call::new(&bytes, wants)).map_err(|e| self.unread(&places, e))
            })
            .buffer_unordered(BATCH_READS);
        while let Some(call) = reads.next().await {
            take(call?).map_err(|odd| self.odd_in_batch(&odd))?;
        }
        Ok(())
    }
}

/// The operations that these extents use, each once.
fn wanted(extents: &[PlannedExtent]) -> Wanted {
    let mut wanted = Wanted::new();
    for (number, extent) in extents.iter().enumerate() {
        let mut lba = extent.lba;
        for (part, (sectors, place)) in extent.parts.iter().enumerate() {
            let (offset, len) = place.byte_range();
            assert!(len <= ENTRY_BYTES_MAX, "R5: the index names an operation of {len} bytes");
            let wanted = wanted.entry((place.index, offset, len)).or_default();
            wanted.push(Use { extent: number, part, lba, sectors: *sectors, place: *place });
            lba.0 += sectors.0;
        }
    }
    wanted
}

type Wanted = BTreeMap<(LogIndex, u32, usize), Vec<Use>>;

/// Operations in journal order, grouped by read call.
fn in_reads(wanted: Wanted, size: CallSize) -> Vec<Reads> {
    let mut reads: Vec<Reads> = Vec::new();
    let mut bytes = 0;
    for ((index, offset, len), uses) in wanted {
        // An operation adds up to two places.
        if reads.last().is_none_or(|last| bytes >= size.bytes || last.places.len() + 2 > size.places) {
            reads.push(Reads::default());
            bytes = 0;
        }
        if let Some(last) = reads.last_mut() {
            bytes += last.add(index, offset, len, uses);
        }
    }
    reads
}

#[cfg(test)]
mod tests;
