//! Writes the journal: batches, rotation, carrying records forward, dropping files.

use crate::catalog::{Catalog, JournalFile, file_name};
use crate::format::{BATCH_HEADER_BYTES, FILE_HEADER_BYTES, FileHeader, Kind, batch_bytes, record_bytes};
use crate::index::{Ledger, Place};
use crate::item::{Flight, Item};
use crate::read::read_record;
use crate::{AlignedBuf, BLOCK_BYTES, Disk, DiskFile, Op, ReadError, WriteError};
use bytes::Bytes;
use holdfast_seal::NodeKey;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

/// Sizes and identity, given by the opener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Size of a file in bytes: whole blocks, below 4 GiB.
    pub file_bytes: u64,
    /// Target for the bytes of all files: the closer to it, the more eagerly records are carried forward.
    pub room_bytes: u64,
    /// The node's disk uuid; 0 if it is not checked.
    pub disk_uuid: u128,
    /// The node's boot counter.
    pub boot: u64,
}

/// Largest batch in bytes, or a quarter of a file if less: larger ones would only delay the callbacks of their first
/// jobs.
const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Bytes carried forward at a time, so that appends wait little.
const CARRY_BYTES_MAX: usize = 1 << 20;

/// Bytes kept free at the end of a file while the next cannot be created, for the purges that free a full disk; in a
/// small file a sixteenth.
const PURGE_ROOM_BYTES_MAX: u64 = 64 << 10;

/// Files dropped, or parts of one carried forward, per turn.
const TIDY_TURNS: u32 = 4;

/// The node key, and its use.
#[derive(Clone, Debug)]
pub struct Sealing {
    /// Opens files that were sealed under it.
    pub key: NodeKey,
    /// Whether files begun from now on are sealed.
    pub new_files: bool,
    /// Whether files in clear are read although new ones are sealed (JOURNAL-J10): they are of the time before.
    pub reads_clear: bool,
    /// How many of the first bytes of an entry's payload are in clear. The rest came sealed, and is stored as it is
    /// (JOURNAL-J9). What is in clear contains what opens the rest and binds it to the entry.
    pub clear_bytes: fn(&[u8]) -> usize,
}

impl Sealing {
    /// A key for payloads that come in clear, all of them. Where new files are sealed, those in clear are refused.
    pub fn new(key: NodeKey, new_files: bool) -> Self {
        Self { key, new_files, reads_clear: false, clear_bytes: <[u8]>::len }
    }

    /// JOURNAL-J10: whether a file in clear is refused.
    pub fn refuses_clear(&self) -> bool {
        self.new_files && !self.reads_clear
    }

    /// The key that new files are sealed under.
    fn of_new(this: Option<&Sealing>) -> Option<&NodeKey> {
        this.filter(|sealing| sealing.new_files).map(|sealing| &sealing.key)
    }
}

/// Where new file uuids come from.
pub type UuidSource = Box<dyn FnMut() -> u128 + Send>;

/// The file being written.
pub(crate) struct Current {
    pub file: Arc<JournalFile>,
    /// Where the next batch goes.
    pub end: u64,
    /// Everything below was synced.
    pub synced: u64,
    /// Like `synced`, of the file before.
    pub synced_before: u64,
}

/// The journal of one node. One owner; readers use the [`Catalog`].
pub struct Journal<D: Disk> {
    pub(crate) disk: D,
    pub(crate) params: Params,
    pub(crate) sealing: Option<Sealing>,
    pub(crate) uuids: UuidSource,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) ledger: Ledger,
    pub(crate) current: Current,
    /// Created ahead, so that rotation cannot fail for lack of space.
    pub(crate) next: Option<Arc<JournalFile>>,
    pub(crate) buf: AlignedBuf,
    /// The batch that the disk is writing, if one was begun.
    pub(crate) flight: Option<Flight>,
    /// The disk takes no writes to begin: then none is offered again.
    pub(crate) refused: bool,
    pub(crate) failed: bool,
    /// Whether the disk has a note that everything synced is.
    pub(crate) marked: bool,
    pub(crate) untidy: bool,
    /// JOURNAL-J8: while there are any, no file is dropped and nothing carried forward.
    pub(crate) damaged: BTreeSet<GroupId>,
    /// Files with a bad header: they are dropped in order, like others.
    pub(crate) lost_files: BTreeSet<u64>,
    /// A file that cannot be carried forward because of a bad record, and its live bytes at that time: tried again once
    /// they are fewer.
    pub(crate) blocked: Option<(u64, u64, ReadError)>,
}

impl<D: Disk> std::fmt::Debug for Journal<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("file", &self.current.file.name)
            .field("end", &self.current.end)
            .finish_non_exhaustive()
    }
}

/// Creates file `number`: allocated, header durable, only then named (JOURNAL-J3).
pub(crate) fn begin_file<D: Disk>(
    disk: &D,
    params: &Params,
    sealing: Option<&Sealing>,
    file_uuid: u128,
    number: u64,
) -> Result<Arc<JournalFile>, WriteError> {
    let key = Sealing::of_new(sealing);
    let name = file_name(number);
    let early = format!("begin-{number:016x}");
    let file = disk.create(&early, params.file_bytes).map_err(|error| WriteError::of_create(&name, error))?;
    let failed = |what, source| WriteError::Failed { file: name.clone(), what, source };
    let header = FileHeader {
        file_uuid,
        disk_uuid: params.disk_uuid,
        number,
        boot: params.boot,
        bytes: params.file_bytes,
        key: key.map(NodeKey::fingerprint),
    };
    file.write_at(&header.encode(), 0).map_err(|error| failed("write of the header", error))?;
    file.sync_data().map_err(|error| failed("sync of the header", error))?;
    disk.rename(&early, &name).map_err(|error| failed("rename", error))?;
    disk.sync_dir().map_err(|error| failed("sync of the folder", error))?;
    let (seed, key) = (header.seed(), key.map(|key| key.file(file_uuid)));
    Ok(Arc::new(JournalFile { number, name, seed, key, bytes: params.file_bytes, file: Box::new(file) }))
}

impl<D: Disk> Journal<D> {
    /// The readers' part.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.clone()
    }

    /// Bytes of the files in use; for the one being written, its written bytes.
    pub fn used_bytes(&self) -> u64 {
        (self.catalog.file_count() + self.lost_files.len() - 1) as u64 * self.params.file_bytes + self.current.end
    }

    /// Most bytes of records in one batch; a larger record gets a batch of its own.
    pub fn batch_bytes_max(&self) -> u64 {
        BATCH_BYTES_MAX.min(self.params.file_bytes / 4)
    }

    /// The bad record that keeps the oldest file from being dropped, if there is one.
    pub fn blocked(&self) -> Option<&ReadError> {
        self.blocked.as_ref().map(|(_, _, error)| error)
    }

    /// Makes `ops` durable, in order, in as many batches as needed; removes the durable ones. Empty on success.
    ///
    /// # Errors
    /// [`WriteError::NoRoom`]: the rest may be retried; any other error is final (JOURNAL-J2).
    pub fn write(&mut self, ops: &mut VecDeque<Op>) -> Result<(), WriteError> {
        while !ops.is_empty() {
            let items = self.next_items(ops);
            if items.is_empty() {
                let found = ops.front().map_or(0, |op| record_bytes(op.payload_len()));
                let max = (self.params.file_bytes - FILE_HEADER_BYTES - self.purge_room_max()) as usize;
                let max = max - BATCH_HEADER_BYTES;
                if found > max {
                    return Err(WriteError::TooLarge { found, max });
                }
                self.rotate()?;
                continue;
            }
            self.write_batch(&items)?;
            ops.drain(..items.len());
        }
        Ok(())
    }

    /// The first of `ops`, as many as fit into one batch in the current file.
    pub(crate) fn next_items(&self, ops: &VecDeque<Op>) -> Vec<Item> {
        let mut items = Vec::new();
        let mut bytes = 0;
        for op in ops {
            let size = record_bytes(op.payload_len());
            if !items.is_empty() && (bytes + size) as u64 > self.batch_bytes_max() {
                break;
            }
            if !self.fits(bytes + size) {
                break;
            }
            bytes += size;
            items.push(Item::of(op));
        }
        items
    }

    /// One batch or an error, for items that must stay together (JOURNAL-J6).
    pub(crate) fn write_whole(&mut self, items: &[Item]) -> Result<(), WriteError> {
        let found = items.iter().map(Item::bytes).sum();
        if !self.fits_at_all(found) {
            let max = (self.params.file_bytes - self.current.end) as usize - BATCH_HEADER_BYTES;
            return Err(WriteError::TooLarge { found, max });
        }
        self.write_batch(items)
    }

    fn fits(&self, records: usize) -> bool {
        let kept = if self.next.is_some() { 0 } else { self.purge_room_max() };
        self.current.end + batch_bytes(records) as u64 + kept <= self.params.file_bytes
    }

    /// Whether it fits, using also the space kept for purges.
    fn fits_at_all(&self, records: usize) -> bool {
        self.current.end + batch_bytes(records) as u64 <= self.params.file_bytes
    }

    fn purge_room_max(&self) -> u64 {
        let block = BLOCK_BYTES as u64;
        PURGE_ROOM_BYTES_MAX.min(self.params.file_bytes / 16) / block * block
    }

    /// Makes those of `purges` durable that drop durable entries, ahead of all waiting operations: on a full disk
    /// nothing else would ever free space for those. True if any was written; the same purge in its turn then changes
    /// nothing.
    ///
    /// Waiting operations of the same group may go back behind `upto`: a truncation and entries of one leader, and
    /// those of the next. Entries up to a durable purge take no place, so after a crash the group begins where the
    /// purge ends.
    ///
    /// # Errors
    /// Final (JOURNAL-J2).
    pub fn purge_ahead(&mut self, purges: impl IntoIterator<Item = (GroupId, LogId)>) -> Result<bool, WriteError> {
        let mut items = Vec::new();
        for (group, upto) in purges {
            let index = self.catalog.index(group);
            let held = index.locked().entry(upto.index.0).is_some_and(|entry| entry.term == upto.term);
            let op = Op::Purge { group, upto };
            if held && self.fits_at_all(items.iter().map(Item::bytes).sum::<usize>() + record_bytes(0)) {
                items.push(Item::of(&op));
            }
        }
        if items.is_empty() {
            return Ok(false);
        }
        self.write_batch(&items).map(|()| true)
    }

    /// One batch: encode, write and sync; only then update the index (JOURNAL-J1, JOURNAL-J2).
    pub(crate) fn write_batch(&mut self, items: &[Item]) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::FailedEarlier);
        }
        let (mut buf, places) = self.encoded(items);
        let result = self.put(&mut buf, items.len() as u32, false);
        self.buf = buf;
        result?;
        self.note_durable(items, places);
        Ok(())
    }

    /// Writes a batch at the end of the current file; durably, unless it is an idle marker.
    fn put(&mut self, buf: &mut AlignedBuf, records: u32, idle: bool) -> Result<(), WriteError> {
        let end = self.complete(buf, records, idle);
        let (file, at) = (&self.current.file.file, self.current.end);
        let result = if idle {
            file.write_at(buf, at)
        } else if self.current.synced == at {
            file.write_synced_at(buf, at)
        } else {
            // JOURNAL-J1: before it is a marker, which the next batches will call synced.
            file.write_at(buf, at).and_then(|()| file.sync_data())
        };
        result.map_err(|error| self.fail(if idle { "write" } else { "write and sync" }, error))?;
        self.advance(end, idle);
        Ok(())
    }

    pub(crate) fn fail(&mut self, what: &'static str, source: io::Error) -> WriteError {
        self.failed = true;
        WriteError::Failed { file: self.current.file.name.clone(), what, source }
    }

    /// Continues in the next file. Everything in the one before is synced by then (JOURNAL-J1).
    fn rotate(&mut self) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::FailedEarlier);
        }
        self.begin_next()?;
        let Some(next) = self.next.take() else { return Ok(()) };
        self.catalog.add_file(next.clone());
        let synced_before = self.current.synced;
        self.current = Current { file: next, end: FILE_HEADER_BYTES, synced: FILE_HEADER_BYTES, synced_before };
        Ok(())
    }

    /// Creates the file after the current one, unless that was done before.
    fn begin_next(&mut self) -> Result<(), WriteError> {
        if self.next.is_some() {
            return Ok(());
        }
        let begun =
            begin_file(&self.disk, &self.params, self.sealing.as_ref(), (self.uuids)(), self.current.file.number + 1);
        if let Err(error) = &begun {
            self.failed |= !matches!(error, WriteError::NoRoom(_));
        }
        self.next = Some(begun?);
        Ok(())
    }

    /// Whether [`Journal::mark_idle`] has something to say.
    pub fn wants_idle(&self) -> bool {
        !self.marked && !self.failed
    }

    /// Notes on disk that the last batch was synced, without a sync of its own: a bad record in it then counts as
    /// corruption, not as a torn tail. Costs one block per pause.
    ///
    /// # Errors
    /// Final (JOURNAL-J2).
    pub fn mark_idle(&mut self) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::FailedEarlier);
        }
        if self.marked {
            return Ok(());
        }
        if !self.fits(0) {
            match self.rotate() {
                // Then the note is omitted, and nothing is lost.
                Err(WriteError::NoRoom(_)) => {
                    self.marked = true;
                    return Ok(());
                }
                rotated => rotated?,
            }
        }
        let mut buf = std::mem::take(&mut self.buf);
        buf.clear();
        buf.resize(BATCH_HEADER_BYTES);
        let result = self.put(&mut buf, 0, true);
        self.buf = buf;
        result
    }

    /// Ends a clean run: writes the idle marker durably, twice, in two blocks. Damage at the end of the last batch may
    /// also hit its neighbour, and would then pass for a torn tail.
    ///
    /// # Errors
    /// Final (JOURNAL-J2).
    pub fn finish(&mut self) -> Result<(), WriteError> {
        self.mark_idle()?;
        self.marked = false;
        self.mark_idle()?;
        let result = self.current.file.file.sync_data();
        result.map_err(|error| self.fail("sync", error))?;
        self.current.synced = self.current.end;
        Ok(())
    }

    /// Whether [`Journal::tidy`] stopped early in favour of appends, and needs another turn.
    pub fn wants_tidy(&self) -> bool {
        self.untidy && !self.failed
    }

    /// Whether [`Journal::tidy`] has anything to do: it may wait for the disk then.
    pub fn has_tidying(&self) -> bool {
        let old = self.catalog.oldest().filter(|oldest| oldest.number != self.current.file.number);
        let drops = |number: u64| {
            let lost = self.lost_files.first().is_some_and(|lost| *lost < number);
            lost || self.ledger.bytes(number) == 0 || self.worth_carrying(number)
        };
        let drops = self.damaged.is_empty() && old.is_some_and(|oldest| drops(oldest.number));
        !self.failed && (self.untidy || self.next.is_none() || drops)
    }

    /// Housekeeping, a few steps at a time: drops old files without live records, carries live records forward, creates
    /// the next file.
    ///
    /// # Errors
    /// [`WriteError::NoRoom`] when the next file could not be created, which may be retried; others are final
    /// (JOURNAL-J2).
    pub fn tidy(&mut self) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::FailedEarlier);
        }
        let mut turns = TIDY_TURNS;
        self.untidy = false;
        while self.damaged.is_empty()
            && let Some(oldest) = self.catalog.oldest().filter(|oldest| oldest.number != self.current.file.number)
        {
            let number = oldest.number;
            if let Some(lost) = self.lost_files.first().copied().filter(|lost| *lost < number) {
                self.remove_name(&file_name(lost))?;
                self.lost_files.remove(&lost);
                continue;
            }
            let empty = self.ledger.bytes(number) == 0;
            if !empty && !self.worth_carrying(number) {
                break;
            }
            if turns == 0 {
                self.untidy = true;
                break;
            }
            turns -= 1;
            if !empty && !self.carry(&oldest)? {
                continue;
            }
            drop(oldest);
            self.blocked = None;
            self.drop_file(number)?;
        }
        self.begin_next()
    }

    /// Whether emptying a file pays: the less of it is live and the less space is left, the sooner.
    fn worth_carrying(&self, number: u64) -> bool {
        let (live, file, used, room) =
            (self.ledger.bytes(number), self.params.file_bytes, self.used_bytes(), self.params.room_bytes);
        if self.blocked.as_ref().is_some_and(|(blocked, then, _)| *blocked == number && *then == live) {
            return false;
        }
        let most = if used > room {
            file / 4 * 3
        } else if used > room / 2 {
            file / 4
        } else {
            file / 16
        };
        live <= most && self.current.file.number - number >= 2
    }

    /// Rewrites some of the live records of `file`; true once none is left.
    fn carry(&mut self, file: &Arc<JournalFile>) -> Result<bool, WriteError> {
        let items = match self.live_items(file) {
            Ok(items) => items,
            Err(error) => {
                self.blocked = Some((file.number, self.ledger.bytes(file.number), error));
                return Ok(false);
            }
        };
        if !self.fits(items.iter().map(Item::bytes).sum()) {
            self.rotate()?;
        }
        self.write_batch(&items)?;
        Ok(self.ledger.bytes(file.number) == 0)
    }

    /// Live records of `file`: about [`CARRY_BYTES_MAX`], or one larger record.
    fn live_items(&self, file: &JournalFile) -> Result<Vec<Item>, ReadError> {
        let (mut items, mut bytes, mut full) = (Vec::new(), 0, false);
        let most = CARRY_BYTES_MAX.min(self.batch_bytes_max() as usize);
        for group in self.ledger.groups(file.number) {
            let index = self.catalog.index(group);
            let index = index.locked();
            let mut places = Vec::new();
            let mut wanted = self.ledger.records(file.number, group);
            for (_, note) in notes(group, &index).into_iter().filter(|(place, _)| place.file == file.number) {
                bytes += note.bytes();
                items.push(note);
                wanted -= 1;
            }
            for (at, entry) in index.places().filter(|(_, entry)| entry.place.file == file.number) {
                let size = record_bytes(entry.len as usize);
                let any = !items.is_empty() || !places.is_empty();
                if wanted == 0 || (any && bytes + size > most) {
                    full = wanted > 0;
                    break;
                }
                wanted -= 1;
                bytes += size;
                places.push((LogId { term: entry.term, index: LogIndex(at) }, entry));
            }
            drop(index);
            for (id, entry) in places {
                let payload = read_record(file, entry.place, Kind::Entry, group, id, entry.len)?;
                items.push(Item { kind: Kind::Entry, carried: true, group, id, payload });
            }
            if full {
                break;
            }
        }
        Ok(items)
    }

    fn drop_file(&mut self, number: u64) -> Result<(), WriteError> {
        assert_eq!(self.ledger.bytes(number), 0, "JOURNAL-J5: file {number} holds live records");
        let Some(file) = self.catalog.remove_file(number) else { return Ok(()) };
        let name = file.name.clone();
        // Our handle goes first: the disk may reuse the space only when no reader has one either.
        drop(file);
        self.remove_name(&name)
    }

    fn remove_name(&mut self, name: &str) -> Result<(), WriteError> {
        let result = self.disk.remove(name);
        result.map_err(|error| self.fail("remove", error))?;
        // One by one: a later file must not be gone while an earlier one remains (JOURNAL-J5).
        let result = self.disk.sync_dir();
        result.map_err(|error| self.fail("sync of the folder", error))
    }
}

/// Live records of a group other than entries, with their places.
pub(crate) fn notes(group: GroupId, index: &crate::GroupIndex) -> Vec<(Place, Item)> {
    let item = |kind, id, payload| Item { kind, carried: false, group, id, payload };
    let purged = index.purged_place().map(|(id, place)| (place, item(Kind::Purge, id, Bytes::new())));
    let vote = index.vote_place().map(|(vote, place)| (place, item(Kind::Vote, LogId::default(), vote)));
    let committed = index.committed_place().map(|(id, place)| (place, item(Kind::Committed, id, Bytes::new())));
    purged.into_iter().chain(vote).chain(committed).collect()
}
