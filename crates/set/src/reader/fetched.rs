//! What a checkpoint uploads, on its way from the journal into a segment: read, and not looked at yet. It is checked and
//! opened where it is compressed and sealed, outside of the runtime's threads, and into one buffer for all extents.

use bytes::Bytes;
use holdfast_types::LogIndex;
use holdfast_volume::entry::{CheckedOp, EntryError, EntryHead};
use holdfast_volume::index::JournalRef;
use holdfast_volume::plan::PlannedExtent;
use std::collections::BTreeMap;

/// An operation as it was read.
#[derive(Debug)]
pub(super) struct ReadOp {
    /// Begins with the header of its entry.
    pub(super) head: Bytes,
    /// Has the operation's block from byte `skip` on.
    pub(super) read: Bytes,
    pub(super) skip: usize,
}

impl ReadOp {
    /// The operation, with a good checksum (R9).
    pub(super) fn check(&self, place: &JournalRef) -> Result<CheckedOp, EntryError> {
        CheckedOp::new(EntryHead::read(&self.head)?, place, self.read.slice(self.skip..))
    }
}

/// The journal holds another operation than the index says, or a damaged one (R9).
#[derive(Debug)]
pub(crate) struct Odd {
    pub(super) place: JournalRef,
    pub(super) error: EntryError,
}

/// Planned extents, and each operation that they use, once.
#[derive(Debug)]
pub(crate) struct Fetched {
    extents: Vec<PlannedExtent>,
    operations: Vec<(JournalRef, ReadOp)>,
}

impl Fetched {
    /// `operations`: all that the extents use.
    pub(super) fn new(extents: Vec<PlannedExtent>, operations: Vec<(JournalRef, ReadOp)>) -> Self {
        Self { extents, operations }
    }

    /// Checks each operation.
    ///
    /// # Errors
    /// [`Odd`], for the first that is damaged.
    pub(crate) fn check(self) -> Result<Checked, Odd> {
        let mut operations = BTreeMap::new();
        for (place, operation) in self.operations {
            let checked = operation.check(&place).map_err(|error| Odd { place, error })?;
            operations.insert((place.index, place.header_offset), checked);
        }
        Ok(Checked { extents: self.extents, operations })
    }
}

/// Planned extents, and their operations with good checksums.
#[derive(Debug)]
pub(crate) struct Checked {
    extents: Vec<PlannedExtent>,
    /// By entry and place in it.
    operations: BTreeMap<(LogIndex, u32), CheckedOp>,
}

impl Checked {
    /// In their order.
    pub(crate) fn extents(&self) -> &[PlannedExtent] {
        &self.extents
    }

    /// Calls `with` with the content of one of the extents. It is opened into `room`, which is for the next one again.
    ///
    /// # Errors
    /// [`Odd`], if an operation is not the one that the index refers to.
    pub(crate) fn with<T>(
        &self,
        extent: &PlannedExtent,
        room: &mut Vec<u8>,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Odd> {
        room.clear();
        let mut lba = extent.lba;
        for (sectors, place) in &extent.parts {
            let odd = |error| Odd { place: *place, error };
            let operation = self.operations.get(&(place.index, place.header_offset));
            let operation = operation.expect("R4: an operation of the plan was not read");
            if extent.parts.len() == 1 && !operation.is_sealed() {
                let whole = operation.piece(extent.volume, lba, *sectors, place).map_err(odd)?;
                return Ok(with(&whole[..]));
            }
            operation.append_piece(extent.volume, lba, *sectors, place, room).map_err(odd)?;
            lba.0 += sectors.0;
        }
        Ok(with(&room[..]))
    }
}
