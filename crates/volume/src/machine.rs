//! The state machine of one volume set: applies committed log entries, with the same result at every replica.
//!
//! ```text
//!   entries:     .. | X0+1 ..  sealed  .. X | X+1 ..  active .. applied |        index grows ->
//!                   ^ map in the store      ^ last CheckpointBegin
//! ```
//! It combines the replicated state ([`SetState`], small) with the derived journal index (large). The caller bounds the
//! index: it reads [`SetMachine::extents`] and [`SetMachine::data_bytes`], makes checkpoints, and slows writers down.
//!
//! MACHINE-M1  Only an entry that `SetState` admitted changes the index. A refused or repeated entry changes no lookup
//!     (R2).
//! MACHINE-M2  An op outside of its volume has no effect (R5), and the entry's answer names it. The other ops of the
//!     entry, for which other clients wait, are applied. Such an op was in flight while its volume was shrunk or
//!     deleted (ADR 0022).
//! MACHINE-M3  A lookup finds the newest applied write of each sector: active over sealed over map (R3).
//! MACHINE-M4  After `CheckpointEnd`, state and content are the same whether replayed from the snapshot or applied
//!     without one.
//! MACHINE-M5  Apply reads nothing but the entry: no clock, no randomness, no I/O.
//! MACHINE-M6  A rollback's entry drops everything written before it: the active memtable, the memtable sealed for an
//!     unfinished checkpoint, and the copy of the state for that checkpoint's end. From then on lookups use the
//!     snapshot's root.
//! MACHINE-M7  A range that a shrink or a deletion discards reads as zeroes from its entry on, up to the largest
//!     possible volume. The next checkpoint's map omits it, so a volume that grows again does not show it.

use crate::entry::{self, EntryError, EntryPayload, OpKind, WritesView};
use crate::index::{JournalRef, Memtable, Piece, Source, push_piece};
use bytes::Bytes;
use holdfast_control::set::{Admit, RootRef, SetAnswer, SetCommand, SetRefusal, SetState};
use holdfast_types::limits::VOLUME_SECTORS_MAX;
use holdfast_types::{Epoch, Lba, LogId, LogIndex, MemberId, SECTOR_BYTES, Sectors, VolumeId, WriteSeq};
use std::collections::VecDeque;
use std::sync::Arc;

mod snapshot;
pub use snapshot::{SNAPSHOT_BYTES_MAX, SnapshotError};

/// Number of shrinks remembered, for hosts with devices of the volumes: far more than are requested between two
/// renewals of a lease.
const CUTS_REMEMBERED: usize = 64;

/// Effect of an applied entry on this node, besides the answer to the proposer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new epoch was granted; `gateway` may serve it.
    GrantApplied {
        /// The epoch granted.
        epoch: Epoch,
        /// The gateway with the new lease.
        gateway: MemberId,
    },
    /// The lease was released; nobody may write.
    Released,
    /// A volume was created, changed or deleted.
    VolumesChanged,
    /// Snapshots or retired objects have changed.
    SpaceChanged,
    /// The set's group has other times.
    Retimed,
    /// The set was rolled back to a snapshot; nobody holds its lease.
    RolledBack,
    /// The active memtable was sealed: [`SetMachine::sealed`] is to be uploaded.
    CheckpointBegun {
        /// The checkpoint will cover the log up to here.
        at: LogId,
    },
    /// The store holds everything up to here. [`SetMachine::snapshot`] is new; the log may be purged up to it.
    Checkpointed {
        /// The last entry that the checkpoint covers.
        upto: LogId,
    },
}

/// Result of applying an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// For the proposer.
    pub answer: SetAnswer,
    /// For this node.
    pub event: Option<Event>,
    /// The memtable of a finished checkpoint. Freeing a million extents takes milliseconds: drop it outside of locks
    /// and of the write path.
    pub retired: Option<Arc<Memtable>>,
}

/// A range that is not inside its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// No such volume in this set.
    #[error("the set has no volume {volume}")]
    NoSuchVolume {
        /// As asked for.
        volume: VolumeId,
    },
    /// It begins or ends behind the volume's end.
    #[error("{sectors} sectors at {lba} of {volume}, which has {size} sectors")]
    OutOfBounds {
        /// The volume.
        volume: VolumeId,
        /// Begin of the range.
        lba: Lba,
        /// Its length.
        sectors: Sectors,
        /// The volume's size.
        size: Sectors,
    },
}

/// A shrink or deletion of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The epoch that a grant at the cut's entry would have had.
    pub at: Epoch,
    /// The volume.
    pub volume: VolumeId,
    /// The volume's new size.
    pub size: Sectors,
}

/// The state machine of one set at one replica. Not `Clone`: that would copy the whole index.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub struct SetMachine {
    state: SetState,
    active: Memtable,
    sealed: Option<(LogId, Arc<Memtable>)>,
    /// The state as of the last begin. Its end makes this the snapshot.
    copy: Option<(LogId, SetState)>,
    snapshot: Option<(LogId, SetState)>,
    applied: Option<LogId>,
    data_bytes: u64,
    /// The last epoch in which an entry was applied in part. Not replicated: only the process that applied it asks (see
    /// `apply_writes`).
    partly: Option<Epoch>,
    /// The last cuts. Not part of the state: within one epoch the same process applies them and is asked for them (R6).
    cuts: VecDeque<Cut>,
}

impl SetMachine {
    /// The machine of a new set, before its first entry.
    pub fn new(state: SetState) -> Self {
        Self {
            state,
            active: Memtable::new(),
            sealed: None,
            copy: None,
            snapshot: None,
            applied: None,
            data_bytes: 0,
            partly: None,
            cuts: VecDeque::new(),
        }
    }

    /// The machine as of `upto`, from the bytes of [`SetMachine::snapshot`]. The entries behind `upto` are to be
    /// applied next.
    ///
    /// # Errors
    /// When the bytes are no valid snapshot, or not the one of `upto` (R9).
    pub fn from_snapshot(upto: LogId, bytes: &[u8]) -> Result<Self, SnapshotError> {
        let state = snapshot::decode(upto, bytes)?;
        Ok(Self { snapshot: Some((upto, state.clone())), applied: Some(upto), ..Self::new(state) })
    }

    /// Applies the committed entry `id`. No I/O and no copy of data: the index refers to the journal.
    ///
    /// # Errors
    /// When no gateway would write this payload: this replica's log is damaged, or of a version that it cannot read.
    /// Nothing was changed, and nothing may be applied after it: the node must stop (R9, R11).
    ///
    /// # Panics
    /// When `id` is not behind everything applied (R4).
    pub fn apply(&mut self, id: LogId, payload: &Bytes) -> Result<Applied, EntryError> {
        entry::decode(payload).map(|entry| self.apply_decoded(id, &entry))
    }

    /// [`SetMachine::apply`] for an entry that was decoded before. A large entry costs mostly its checksums, which
    /// `decode` has checked, so a caller can decode outside of its lock around the machine.
    ///
    /// # Panics
    /// When `id` is not behind everything applied (R4).
    pub fn apply_decoded(&mut self, id: LogId, entry: &EntryPayload) -> Applied {
        if let Some(applied) = self.applied {
            assert!(id.index > applied.index, "R4: apply of {id} after {applied}");
        }
        self.applied = Some(id);
        match entry {
            EntryPayload::Writes(writes) => {
                self.data_bytes += writes.bytes() as u64;
                Applied { answer: self.apply_writes(id, writes), event: None, retired: None }
            }
            EntryPayload::Control(command) => self.apply_command(id, command),
        }
    }

    fn apply_writes(&mut self, id: LogId, writes: &WritesView) -> SetAnswer {
        match self.state.admit_write(id, writes.epoch, writes.seq) {
            Admit::Refused(refusal) => return SetAnswer::Refused(refusal),
            // The machine does not remember which ops were left out. No sequencer submits an entry twice; if one did,
            // it must not be told that all ops were written.
            Admit::Duplicate if self.partly == Some(writes.epoch) => {
                holdfast_reached::reached!("machine: a copy of an entry that was applied in part");
                let expected = WriteSeq(self.state.last_seq.0.saturating_add(1));
                return SetAnswer::Refused(SetRefusal::SeqGap { found: writes.seq, expected });
            }
            Admit::Duplicate => return SetAnswer::Written,
            Admit::Apply => {}
        }
        let mut outside = Vec::new();
        for (number, (header_offset, op)) in (0u32..).zip(writes.headers()) {
            if self.check_range(op.volume, op.lba, op.sectors).is_err() {
                holdfast_reached::reached!("machine: an operation is outside of its volume");
                outside.push(number);
                continue;
            }
            let source = match op.kind {
                // A write's length was bounded by `decode`: it fits 32 bits.
                OpKind::Write => Source::Journal(JournalRef {
                    index: id.index,
                    header_offset,
                    op_sectors: op.sectors.0 as u32,
                    skip: 0,
                }),
                OpKind::Trim | OpKind::Zero => Source::Zero,
            };
            self.active.insert(op.volume, op.lba, op.sectors, source);
        }
        if outside.is_empty() {
            return SetAnswer::Written;
        }
        self.partly = Some(writes.epoch);
        SetAnswer::WrittenExcept { outside }
    }

    /// MACHINE-M7. Counts as a sector of data, so that a checkpoint follows and frees the space without any further
    /// write.
    fn discard(&mut self, volume: VolumeId, from: Lba) {
        holdfast_reached::reached!("machine: data of a shrunk or deleted volume is discarded");
        let sectors = Sectors(VOLUME_SECTORS_MAX.saturating_sub(from.0));
        self.active.insert(volume, from, sectors, Source::Zero);
        self.data_bytes += SECTOR_BYTES;
    }

    fn note_cut(&mut self, id: LogId, volume: VolumeId, end: Lba) {
        if self.cuts.len() >= CUTS_REMEMBERED {
            self.cuts.pop_front();
        }
        let at = self.place_of(id.index);
        self.cuts.push_back(Cut { at, volume, size: Sectors(end.0) });
    }

    /// The epoch that a grant at this entry would have; comparable with all grants, also of earlier lives of the set.
    fn place_of(&self, index: LogIndex) -> Epoch {
        Epoch(self.state.base_epoch.0.saturating_add(index.0))
    }

    /// Position up to which the state and [`SetMachine::cuts`] are applied, comparable with [`Cut::at`].
    pub fn place(&self) -> Epoch {
        self.place_of(self.applied.map_or(LogIndex(0), |id| id.index))
    }

    /// The last shrinks and deletions that this process applied, oldest first; a bounded number. At the gateway with
    /// the last granted epoch, those since that grant are included. Older ones may be missing after a start or a state
    /// snapshot.
    pub fn cuts(&self) -> impl Iterator<Item = &Cut> {
        self.cuts.iter()
    }

    fn apply_command(&mut self, id: LogId, command: &SetCommand) -> Applied {
        let epoch_before = self.state.epoch;
        let answer = self.state.apply(id, command);
        let mut retired = None;
        let event = match &answer {
            SetAnswer::VolumeChanged { volume, discarded } => {
                if let Some(from) = discarded {
                    self.discard(*volume, *from);
                    self.note_cut(id, *volume, *from);
                }
                Some(Event::VolumesChanged)
            }
            SetAnswer::LimitSet => Some(Event::VolumesChanged),
            // A repeated request gets the same grant as answer, but grants nothing.
            SetAnswer::Granted(lease) if lease.epoch != epoch_before => {
                Some(Event::GrantApplied { epoch: lease.epoch, gateway: lease.gateway })
            }
            SetAnswer::Released => Some(Event::Released),
            SetAnswer::SnapshotAsked
            | SetAnswer::SnapshotDeleted { .. }
            | SetAnswer::ScheduleSet
            | SetAnswer::Retired
            | SetAnswer::DeletionNoted
            | SetAnswer::Pinned { .. }
            | SetAnswer::Unpinned => Some(Event::SpaceChanged),
            SetAnswer::Retimed => Some(Event::Retimed),
            SetAnswer::RolledBack { now: true } => {
                retired = self.forget_unsaved();
                Some(Event::RolledBack)
            }
            SetAnswer::CheckpointBegun { at } => {
                self.seal(*at);
                Some(Event::CheckpointBegun { at: *at })
            }
            SetAnswer::CheckpointEnded => match command {
                SetCommand::CheckpointEnd { begin, root, .. } => {
                    self.keep_snapshot(*begin, *root);
                    retired = self.sealed.take().map(|(_, memtable)| memtable);
                    Some(Event::Checkpointed { upto: *begin })
                }
                _ => None,
            },
            _ => None,
        };
        Applied { answer, event, retired }
    }

    /// Bytes of data that no checkpoint has brought to the store yet: those being uploaded, and newer ones.
    pub fn backlog_bytes(&self) -> u64 {
        self.data_bytes + self.sealed.as_ref().map_or(0, |(_, memtable)| memtable.data_bytes())
    }

    /// Seals the writes up to `at`, together with those of an earlier begin without an end.
    fn seal(&mut self, at: LogId) {
        let mut memtable = std::mem::take(&mut self.active);
        if let Some((_, older)) = self.sealed.take() {
            holdfast_reached::reached!("machine: an unfinished checkpoint joins the next one");
            memtable.merge_under(&older);
        }
        self.sealed = Some((at, Arc::new(memtable)));
        self.copy = Some((at, self.state.clone()));
        self.data_bytes = 0;
    }

    /// MACHINE-M6. The bytes in the log stay counted until the next checkpoint.
    fn forget_unsaved(&mut self) -> Option<Arc<Memtable>> {
        holdfast_reached::reached!("machine: a rollback discards what is not in the store", self.extents() > 0);
        self.active = Memtable::new();
        self.copy = None;
        self.sealed.take().map(|(_, memtable)| memtable)
    }

    /// Makes the state's copy, with `root`, the new snapshot.
    fn keep_snapshot(&mut self, upto: LogId, root: RootRef) {
        if let Some((at, copy)) = self.copy.take() {
            assert!(at == upto, "R4: found the end of the checkpoint at {upto}, expected the last begin, {at}");
            self.snapshot = Some((upto, SetState::after_checkpoint(&copy, root, upto)));
            return;
        }
        holdfast_reached::reached!("machine: a replay passes the end of its own snapshot");
        // A replay from this snapshot passes its end again; any other end has its begin before it.
        let known = self.snapshot_upto();
        assert!(
            known == Some(upto),
            "R4: found the end of the checkpoint at {upto} without its begin, expected that of the snapshot, {known:?}"
        );
    }

    /// Whether a range lies inside its volume, as of the last applied entry. A rollback can shrink or remove volumes of
    /// a set without a lease; a shrink or deletion can do so while the set is served. So a range that was inside may be
    /// outside now.
    ///
    /// # Errors
    /// When it does not: such an op would have no effect (MACHINE-M2).
    pub fn check_range(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Result<(), RangeError> {
        let found = self.state.volumes.get(&volume).ok_or(RangeError::NoSuchVolume { volume })?;
        if lba.checked_add(sectors).is_some_and(|end| end.0 <= found.size.0) {
            return Ok(());
        }
        Err(RangeError::OutOfBounds { volume, lba, sectors, size: found.size })
    }

    /// The newest applied content of a range: pieces in order, without gap or overlap (MACHINE-M3). [`Source::Map`]
    /// appears only after the first checkpoint. Does not check the range; see [`SetMachine::check_range`].
    pub fn lookup(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<Piece> {
        self.lookup_prefix(volume, lba, sectors, usize::MAX)
    }

    /// [`SetMachine::lookup`] that stops after `pieces_max` pieces, for ranges of any number of pieces. The pieces
    /// cover a prefix of the range.
    pub fn lookup_prefix(&self, volume: VolumeId, lba: Lba, sectors: Sectors, pieces_max: usize) -> Vec<Piece> {
        let unknown = if self.state.checkpoint.is_some() { Source::Map } else { Source::Zero };
        let mut pieces = Vec::new();
        for top in self.active.pieces(volume, lba, sectors) {
            match (top.source, &self.sealed) {
                (Source::Map, Some((_, sealed))) => {
                    for below in sealed.pieces(volume, top.lba, top.sectors) {
                        let source = if below.source == Source::Map { unknown } else { below.source };
                        push_piece(&mut pieces, Piece { source, ..below });
                        if pieces.len() > pieces_max {
                            break;
                        }
                    }
                }
                (Source::Map, None) => push_piece(&mut pieces, Piece { source: unknown, ..top }),
                _ => push_piece(&mut pieces, top),
            }
            if pieces.len() > pieces_max {
                break;
            }
        }
        pieces.truncate(pieces_max);
        pieces
    }

    /// The replicated state, as of the last entry applied.
    pub fn state(&self) -> &SetState {
        &self.state
    }

    /// The last applied entry (entries that carry nothing for a set do not come here).
    pub fn applied(&self) -> Option<LogId> {
        self.applied
    }

    /// The memtable to upload: everything up to the log id that the store's checkpoint lacks. `None` without an
    /// unfinished checkpoint, also after a replay that began at that checkpoint's own snapshot.
    pub fn sealed(&self) -> Option<(LogId, Arc<Memtable>)> {
        self.sealed.clone()
    }

    /// The state as of the last begin, until its end: the content of the checkpoint in progress.
    pub fn begun(&self) -> Option<(LogId, &SetState)> {
        self.copy.as_ref().map(|(at, state)| (*at, state))
    }

    /// The state's snapshot: the last entry that it covers, and its bytes. `None` before the first checkpoint has
    /// ended.
    pub fn snapshot(&self) -> Option<(LogId, Vec<u8>)> {
        self.snapshot.as_ref().map(|(upto, state)| (*upto, snapshot::encode(*upto, state)))
    }

    /// The last entry that [`SetMachine::snapshot`] covers, without writing it out.
    pub fn snapshot_upto(&self) -> Option<LogId> {
        self.snapshot.as_ref().map(|(upto, _)| *upto)
    }

    /// Extents in the index, active and sealed; they determine its memory.
    pub fn extents(&self) -> usize {
        self.active.extents() + self.sealed.as_ref().map_or(0, |(_, sealed)| sealed.extents())
    }

    /// Bytes of write entries in the log since the last begin, overwritten and refused ones included, and one sector
    /// per discarded volume. The next checkpoint releases them.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// What a checkpoint that begins now would upload: bytes, and extents of the index.
    pub fn to_upload(&self) -> (u64, usize) {
        (self.active.data_bytes(), self.active.extents())
    }

    /// No lookup returns an entry below this one. `None` where none refers to the journal. A lower bound: overwritten
    /// entries count.
    pub fn first_live_index(&self) -> Option<LogIndex> {
        let sealed = self.sealed.as_ref().and_then(|(_, sealed)| sealed.first_index());
        let active = self.active.first_index();
        // Sealed entries are all before the active ones.
        sealed.or(active)
    }
}

#[cfg(test)]
mod tests;
