//! The read path below the lease: pieces from the journal, from segments through the cache, or zeroes.
//!
//! A piece of the journal may be purged between lookup and read, because a checkpoint moved it to the store. The place is
//! then looked up again: what was there is still there, elsewhere (R1).

use crate::set::host::SetHost;
use crate::set::mapping::{MapError, Mapping};
use bytes::Bytes;
use holdfast_control::set::RootRef;
use holdfast_raft::{Group, ReadLogError};
use holdfast_types::limits::ENTRY_BYTES_MAX;
use holdfast_types::{Lba, Sectors, VolumeId};
use holdfast_volume::entry::read_piece;
use holdfast_volume::index::{JournalRef, Piece, Source};
use std::sync::Arc;

/// How often a place that was purged meanwhile is looked up again. Each time a whole checkpoint must have passed between.
const LOOKUPS_MAX: u32 = 8;

/// One part of what was read.
#[derive(Clone, Debug)]
pub enum Part {
    /// Bytes as written.
    Data(Bytes),
    /// Never written, or trimmed.
    Zeroes(Sectors),
}

/// A read that cannot be answered. None of them is told to a client (R8): the connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A bad record (R9).
    #[error("journal: {0}")]
    Journal(#[source] ReadLogError),
    /// An entry's operation does not check (R9).
    #[error("journal entry {index}: {reason}")]
    Operation {
        /// Its place.
        index: holdfast_types::LogIndex,
        /// What was found and expected.
        reason: String,
    },
    /// Map or segment.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The place kept moving.
    #[error("place moved {LOOKUPS_MAX} times while it was read")]
    Moving,
}

/// Reads committed data of one set on this node. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    group: Group,
    host: Arc<SetHost>,
    mapping: Arc<Mapping>,
}

impl Reader {
    /// A reader of `host`'s state.
    pub fn new(group: Group, host: Arc<SetHost>, mapping: Arc<Mapping>) -> Self {
        Self { group, host, mapping }
    }

    /// What is at the range, as of some moment during the call.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Result<Vec<Part>, ReadError> {
        for _ in 0..LOOKUPS_MAX {
            let (pieces, root) = self.host.lookup(volume, lba, sectors);
            match self.read_pieces(volume, &pieces, root).await {
                // A checkpoint, or a snapshot from the leader, took the entry's place meanwhile.
                Err(ReadError::Journal(ReadLogError::Purged { .. } | ReadLogError::Missing { .. })) => continue,
                other => return other,
            }
        }
        Err(ReadError::Moving)
    }

    async fn read_pieces(
        &self,
        volume: VolumeId,
        pieces: &[Piece],
        root: Option<RootRef>,
    ) -> Result<Vec<Part>, ReadError> {
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match (piece.source, root) {
                (Source::Journal(place), _) => {
                    parts.push(Part::Data(self.read_journal(volume, piece.lba, piece.sectors, place).await?))
                }
                (Source::Zero, _) | (Source::Map, None) => parts.push(Part::Zeroes(piece.sectors)),
                (Source::Map, Some(root)) => {
                    self.mapping.read(root, volume, piece.lba, piece.sectors, &mut parts).await?;
                }
            }
        }
        Ok(parts)
    }

    /// A piece of one operation's data. The whole operation is read, because its checksum covers the whole.
    ///
    /// # Errors
    /// [`ReadError`]; R9: also where the journal holds another operation at that place than the index meant.
    pub async fn read_journal(
        &self,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        place: JournalRef,
    ) -> Result<Bytes, ReadError> {
        let (offset, len) = place.byte_range();
        assert!(len <= ENTRY_BYTES_MAX, "R5: the index names an operation of {len} bytes");
        let bytes = self.group.read_log(place.index, offset, len).await.map_err(ReadError::Journal)?;
        read_piece(volume, lba, sectors, &place, &bytes)
            .map_err(|e| ReadError::Operation { index: place.index, reason: e.to_string() })
    }
}
