//! Interprets scanned files: decides which bad bytes are a torn tail and which are corruption, and rebuilds the groups.
//!
//! A batch is *known synced* if a later one says so (JOURNAL-J1): one of the same file, or the first of the next. Bad
//! bytes that are known synced are corruption; others are a torn tail and are cut, batch by batch (JOURNAL-J6). Valid
//! records that are not known synced are *uncertain*: they may have been in a page cache only, so they are rewritten
//! before use (JOURNAL-J4).
//!
//! Payloads that are not known synced are also decrypted at every start: a payload with correct checksums that was not
//! sealed here is no torn tail, and could not be written again. It damages its group, not the start of the others.
//! Other payloads are authenticated when an entry is read.

use crate::catalog::{Catalog, JournalFile, file_name};
use crate::format::{FILE_HEADER_BYTES, Kind, RecordHeader};
use crate::index::{Ledger, Place};
use crate::read::read_record;
use crate::scan::{Bad, Piece, Scanned, ScannedBatch, ScannedFile};
use crate::{CorruptRecord, ReadError, RecoverError};
use holdfast_types::GroupId;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A torn tail that was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Name of the file.
    pub file: String,
    /// First byte cut.
    pub offset: u64,
    /// Why it is invalid.
    pub found: String,
}

/// Effect of uncertain records on a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Lowest index that was written or truncated.
    pub low: Option<u64>,
    /// The group was dropped.
    pub dropped: bool,
}

/// A bad payload; damage only if it is still live at the end.
struct BadEntry {
    group: GroupId,
    index: u64,
    place: Place,
    corrupt: CorruptRecord,
}

/// Replays files, oldest first.
pub(crate) struct Replay {
    pub catalog: Arc<Catalog>,
    pub ledger: Ledger,
    pub cuts: Vec<Cut>,
    pub corrupt: Vec<CorruptRecord>,
    pub records: u64,
    /// Uncertain records by group, and where they begin.
    pub touched: BTreeMap<GroupId, Touched>,
    pub uncertain_from: Place,
    /// Counts records: gives their order.
    clock: u64,
    /// The last loss of records whose groups are not known.
    lost: Option<(u64, CorruptRecord)>,
    dropped_at: BTreeMap<GroupId, u64>,
    bad_entries: Vec<BadEntry>,
    bad_votes: BTreeMap<GroupId, CorruptRecord>,
    misfits: BTreeMap<GroupId, CorruptRecord>,
}

impl Replay {
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self {
            catalog,
            ledger: Ledger::default(),
            cuts: Vec::new(),
            corrupt: Vec::new(),
            records: 0,
            touched: BTreeMap::new(),
            uncertain_from: Place { file: 0, offset: 0 },
            clock: 0,
            lost: None,
            dropped_at: BTreeMap::new(),
            bad_entries: Vec::new(),
            bad_votes: BTreeMap::new(),
            misfits: BTreeMap::new(),
        }
    }

    /// A whole file is missing or unreadable.
    pub fn lose_file(&mut self, corrupt: CorruptRecord) {
        self.lose(corrupt);
    }

    fn lose(&mut self, corrupt: CorruptRecord) {
        self.clock += 1;
        self.corrupt.push(corrupt.clone());
        self.lost = Some((self.clock, corrupt));
    }

    /// Replays one file. `synced` is its known synced offset, also from the file after it.
    ///
    /// # Errors
    /// The disk did not return again what it returned before: its content is unknown then.
    pub fn file(&mut self, file: &JournalFile, scanned: &ScannedFile, synced: u64) -> Result<(), RecoverError> {
        let corrupt = |bad: &Bad| CorruptRecord {
            file: file.name.clone(),
            offset: bad.offset,
            expected: bad.expected.clone(),
            found: bad.found.clone(),
        };
        // A batch of this file is known synced: so are all files before, or they were rewritten here (JOURNAL-J4).
        if synced > FILE_HEADER_BYTES {
            self.touched.clear();
            self.uncertain_from = Place { file: file.number, offset: synced as u32 };
        }
        for (at, piece) in scanned.pieces.iter().enumerate() {
            match piece {
                Piece::Gap { from, to, last } => {
                    // Idle markers are not synced by themselves: the batch behind shows whether there was more.
                    let meant = match scanned.pieces.get(at + 1) {
                        Some(Piece::Batch(batch)) => batch.header.synced,
                        _ => synced,
                    };
                    let found = match scanned.unreadable.iter().find(|block| (from..to).contains(block)) {
                        Some(block) => format!("no batch (the disk cannot read byte {block})"),
                        None => "no batch".to_string(),
                    };
                    if meant > *from {
                        let expected = format!("batches up to byte {meant}");
                        holdfast_reached::reached!("recovery: synced batches are gone");
                        self.lose(corrupt(&Bad { offset: *from, found, expected, whole: false }));
                    } else if !last {
                        holdfast_reached::reached!("recovery: a torn batch header is cut");
                        self.cuts.push(Cut { file: file.name.clone(), offset: *from, found });
                    }
                }
                Piece::Batch(batch) => {
                    let offset = batch.header.offset;
                    let known = synced > offset;
                    if let Some(bad) = batch.first_torn()
                        && !known
                    {
                        let found = format!("{} instead of {} at byte {}", bad.found, bad.expected, bad.offset);
                        holdfast_reached::reached!("recovery: a torn batch is cut");
                        self.cuts.push(Cut { file: file.name.clone(), offset, found });
                        continue;
                    }
                    self.batch(file, batch, known, &corrupt)?;
                }
            }
        }
        Ok(())
    }

    fn batch(
        &mut self,
        file: &JournalFile,
        batch: &ScannedBatch,
        known: bool,
        corrupt: &dyn Fn(&Bad) -> CorruptRecord,
    ) -> Result<(), RecoverError> {
        for record in &batch.records {
            self.clock += 1;
            self.records += 1;
            let place = Place { file: file.number, offset: record.header.offset as u32 };
            let bad = match &record.bad {
                Some(bad) => Some(corrupt(bad)),
                None if known => None,
                None => unsealed(file, place, &record.header)?,
            };
            self.corrupt.extend(bad.clone());
            self.record(place, record, bad);
            if !known {
                self.touch(record);
            }
        }
        if let Some(bad) = &batch.lost {
            holdfast_reached::reached!("recovery: the rest of a synced batch is lost");
            self.lose(corrupt(bad));
        }
        Ok(())
    }

    fn record(&mut self, place: Place, record: &Scanned, bad: Option<CorruptRecord>) {
        let (header, group) = (&record.header, record.header.group);
        match (header.kind, bad) {
            (Kind::Vote, Some(corrupt)) => {
                holdfast_reached::reached!("recovery: a vote is damaged");
                self.bad_votes.insert(group, corrupt);
                return;
            }
            (Kind::Vote, None) => {
                self.bad_votes.remove(&group);
            }
            (Kind::Entry, Some(corrupt)) => {
                holdfast_reached::reached!("recovery: an entry is damaged");
                self.bad_entries.push(BadEntry { group, index: header.id.index.0, place, corrupt });
            }
            (Kind::DropGroup, _) => {
                self.dropped_at.insert(group, self.clock);
                self.bad_votes.remove(&group);
                self.misfits.remove(&group);
            }
            _ => {}
        }
        let index = self.catalog.index(group);
        let result = index.locked().apply(group, &header.change(&record.payload), place, &mut self.ledger);
        if let Err(found) = result {
            let expected = "entries without a gap".to_string();
            let misfit =
                CorruptRecord { file: file_name(place.file), offset: u64::from(place.offset), expected, found };
            holdfast_reached::reached!("recovery: an entry leaves a gap");
            self.misfits.entry(group).or_insert(misfit);
        }
    }

    fn touch(&mut self, record: &Scanned) {
        let header = &record.header;
        let touched = self.touched.entry(header.group).or_default();
        match header.kind {
            Kind::Entry if !header.carried => touched.lower(header.id.index.0),
            Kind::Truncate => touched.lower(header.id.index.0),
            Kind::DropGroup => *touched = Touched { low: None, dropped: true },
            _ => {}
        }
    }

    /// The last loss of records whose groups are not known.
    pub fn lost(&self) -> Option<CorruptRecord> {
        self.lost.as_ref().map(|(_, corrupt)| corrupt.clone())
    }

    /// After the last file: marks the damaged groups.
    pub fn finish(&mut self) -> BTreeMap<GroupId, CorruptRecord> {
        let mut damaged = std::mem::take(&mut self.bad_votes);
        for bad in std::mem::take(&mut self.bad_entries) {
            let index = self.catalog.index(bad.group);
            if index.locked().entry(bad.index).is_some_and(|entry| entry.place == bad.place) {
                holdfast_reached::reached!("recovery: a damaged entry is still needed");
                damaged.entry(bad.group).or_insert(bad.corrupt);
            }
        }
        for group in self.catalog.groups() {
            let index = self.catalog.index(group);
            let mut index = index.locked();
            let dropped_at = self.dropped_at.get(&group).copied().unwrap_or(0);
            if let Some((_, corrupt)) = self.lost.as_ref().filter(|(lost_at, _)| *lost_at > dropped_at) {
                holdfast_reached::reached!("recovery: a group may have lost records");
                damaged.entry(group).or_insert_with(|| corrupt.clone());
            }
            let holes = index.close_holes(group, &mut self.ledger);
            if let Err(found) = holes {
                let first = index.places().next().map(|(_, entry)| entry.place);
                let (file, offset) =
                    first.map_or((String::new(), 0), |place| (file_name(place.file), u64::from(place.offset)));
                let expected = "entries without a gap".to_string();
                self.misfits.entry(group).or_insert(CorruptRecord { file, offset, expected, found });
            }
        }
        for (group, misfit) in std::mem::take(&mut self.misfits) {
            if let std::collections::btree_map::Entry::Vacant(place) = damaged.entry(group) {
                self.corrupt.push(misfit.clone());
                place.insert(misfit);
            }
        }
        for (group, corrupt) in &damaged {
            self.catalog.index(*group).locked().damaged = Some(corrupt.clone());
        }
        damaged
    }
}

/// The fault of an entry beside its checksums. If the disk does not answer, its content is unknown: the start fails,
/// and the next one tries again. A group marked as damaged stays so until its peers heal it.
fn unsealed(file: &JournalFile, place: Place, header: &RecordHeader) -> Result<Option<CorruptRecord>, RecoverError> {
    if header.kind != Kind::Entry || file.key.is_none() {
        return Ok(None);
    }
    match read_record(file, place, Kind::Entry, header.group, header.id, header.len) {
        Ok(_) => Ok(None),
        Err(ReadError::Corrupt(corrupt)) => Ok(Some(corrupt)),
        Err(ReadError::Io(source)) => Err(RecoverError::Io { what: format!("read of {}", file.name), source }),
        Err(other) => Err(other.into()),
    }
}

impl Touched {
    fn lower(&mut self, index: u64) {
        self.low = Some(self.low.map_or(index, |low| low.min(index)));
    }
}
