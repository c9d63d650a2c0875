//! What was read of the journal for extents, on its way to a client or into a segment.
//!
//! For a checkpoint, it is checked and opened where it is compressed and sealed, outside of the runtime's threads, and
//! into one buffer for all extents. An operation is read as a whole, whatever little the extents use of it. If a call
//! has read more than twice what is used, the pieces that are used are cut out at once, and no more is kept: of a
//! volume that is overwritten again and again, 1 MiB may be in 2,000 operations of 1 MiB each.

use bytes::Bytes;
use holdfast_types::{Lba, LogIndex, SECTOR_BYTES, Sectors};
use holdfast_volume::entry::{CheckedOp, EntryError, EntryHead};
use holdfast_volume::index::JournalRef;
use holdfast_volume::plan::PlannedExtent;
use std::collections::BTreeMap;

/// The target position in a batch of one piece of an operation.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) extent: usize,
    pub(super) part: usize,
    pub(super) lba: Lba,
    pub(super) sectors: Sectors,
    pub(super) place: JournalRef,
}

/// Where in the bytes of one read call an operation and the header of its entry are (ENTRY-E1).
pub(super) struct Wants {
    /// The place with the header, at its begin.
    pub(super) head: usize,
    /// The place with the operation's block.
    pub(super) block: usize,
    /// Bytes before the block there.
    pub(super) skip: usize,
    pub(super) uses: Vec<Use>,
}

/// `piece` of what was read, in memory of its own if it is a small part. A read is charged by its length: it must not
/// keep a large buffer, as that of an operation in clear that was read together with its entry's header.
pub(super) fn alone(piece: Bytes, read: &Bytes) -> Bytes {
    if piece.len() * 2 < read.len() { Bytes::copy_from_slice(&piece) } else { piece }
}

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

/// What one call has read: operations, with the parts of the extents that use them.
#[derive(Debug)]
pub(super) struct Call {
    operations: Vec<(JournalRef, ReadOp, Vec<Use>)>,
    /// Bytes that it has read.
    bytes: usize,
}

impl Call {
    /// `bytes`: of each place of the call.
    pub(super) fn new(bytes: &[Bytes], wants: Vec<Wants>) -> Self {
        let operation = |Wants { head, block, skip, uses }: Wants| {
            let place = uses.first()?.place;
            Some((place, ReadOp { head: bytes[head].clone(), read: bytes[block].clone(), skip }, uses))
        };
        let operations = wants.into_iter().filter_map(operation).collect();
        Self { operations, bytes: bytes.iter().map(Bytes::len).sum() }
    }

    /// Whether half of what was read is used, or more.
    fn is_dense(&self) -> bool {
        let used: u64 = self.operations.iter().flat_map(|(_, _, uses)| uses).map(|at| at.sectors.0).sum();
        used * SECTOR_BYTES * 2 >= self.bytes as u64
    }

    /// Checks each operation, and opens what `extents` use of it. The pieces do not keep much more in memory than they
    /// are.
    ///
    /// # Errors
    /// [`Odd`], for the first that is damaged or is not the one that the index refers to.
    pub(super) fn pieces(&self, extents: &[PlannedExtent]) -> Result<Vec<(&Use, Bytes)>, Odd> {
        let dense = self.is_dense();
        let mut pieces = Vec::new();
        for (place, read, uses) in &self.operations {
            let odd = |error| Odd { place: *place, error };
            let operation = read.check(place).map_err(odd)?;
            for at in uses {
                let volume = extents[at.extent].volume;
                let piece = operation.piece(volume, at.lba, at.sectors, &at.place).map_err(odd)?;
                // What was read by one call may share its memory.
                let shares = !dense && !operation.is_sealed();
                let piece = if shares { Bytes::copy_from_slice(&piece) } else { alone(piece, &read.read) };
                pieces.push((at, piece));
            }
        }
        Ok(pieces)
    }
}

/// Planned extents, and what was read for them.
#[derive(Debug)]
pub(crate) struct Fetched {
    extents: Vec<PlannedExtent>,
    /// Operations that they use, each once.
    pub(super) operations: Vec<(JournalRef, ReadOp)>,
    pub(super) cut: CutOut,
}

/// Pieces of other operations, checked and opened: by the number of the extent, and of its part.
type CutOut = BTreeMap<(usize, usize), Bytes>;

impl Fetched {
    /// Without anything read yet.
    pub(super) fn new(extents: Vec<PlannedExtent>) -> Self {
        Self { extents, operations: Vec::new(), cut: CutOut::new() }
    }

    /// Takes what a call has read.
    ///
    /// # Errors
    /// [`Odd`], as [`Fetched::check`].
    pub(super) fn add(&mut self, call: Call) -> Result<(), Odd> {
        if call.is_dense() {
            self.operations.extend(call.operations.into_iter().map(|(place, read, _)| (place, read)));
            return Ok(());
        }
        let pieces = call.pieces(&self.extents)?.into_iter();
        self.cut.extend(pieces.map(|(at, piece)| ((at.extent, at.part), piece)));
        Ok(())
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
        Ok(Checked { extents: self.extents, operations, cut: self.cut })
    }
}

/// Planned extents, and their operations with good checksums.
#[derive(Debug)]
pub(crate) struct Checked {
    extents: Vec<PlannedExtent>,
    /// By entry and place in it.
    operations: BTreeMap<(LogIndex, u32), CheckedOp>,
    cut: CutOut,
}

impl Checked {
    /// In their order.
    pub(crate) fn extents(&self) -> &[PlannedExtent] {
        &self.extents
    }

    /// Calls `with` with the content of the extent of this number. It is opened into `room`, which is for the next one
    /// again.
    ///
    /// # Errors
    /// [`Odd`], if an operation is not the one that the index refers to.
    pub(crate) fn with<T>(&self, number: usize, room: &mut Vec<u8>, with: impl FnOnce(&[u8]) -> T) -> Result<T, Odd> {
        room.clear();
        let extent = &self.extents[number];
        let mut lba = extent.lba;
        for (part, (sectors, place)) in extent.parts.iter().enumerate() {
            let odd = |error| Odd { place: *place, error };
            if let Some(piece) = self.cut.get(&(number, part)) {
                room.extend_from_slice(piece);
                lba.0 += sectors.0;
                continue;
            }
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
