//! One group's log, as the Raft adapter uses it.

use crate::memory::{Group, Memory, Misplaced, Removed};
use crate::queue::{Done, Evictable, Job, stopped};
use crate::shared::Shared;
use bytes::Bytes;
use holdfast_journal::{
    Catalog, CorruptRecord, Op, PAYLOAD_BYTES_MAX, ReadError, read_entries, read_part, record_bytes,
};
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A Raft entry; the payload is opaque here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Term and index.
    pub id: LogId,
    /// Its content.
    pub payload: Bytes,
}

/// The content of a group's log, appended or durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupLogState {
    /// Last vote saved.
    pub vote: Option<Bytes>,
    /// Last log id that was noted as committed. It is written lazily, so after a start it may be an older one.
    pub committed: Option<LogId>,
    /// Last log id purged.
    pub purged: Option<LogId>,
    /// Last entry, else the last log id purged.
    pub last: Option<LogId>,
    /// Index of the first entry, while there is one.
    pub first: Option<LogIndex>,
    /// R9: recovery found a bad record that belongs, or may belong, to this group. The group MUST NOT vote, lead or
    /// serve before it is rebuilt from peers ([`GroupLog::drop_group`] and start again).
    pub damaged: Option<CorruptRecord>,
    /// The journal has no record of the group: it is damaged only because the records that were lost may be its. Who
    /// knows that the group began after they were lost may drop it, and begin with an empty log.
    pub unknown: bool,
}

/// Handle of one group's log: cheap to clone, used from any thread.
#[derive(Clone)]
pub struct GroupLog {
    pub(crate) shared: Arc<Shared>,
    pub(crate) group: Arc<Group>,
}

impl std::fmt::Debug for GroupLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupLog").field("group", &self.group.id).finish_non_exhaustive()
    }
}

fn misplaced(error: Misplaced) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// A read error as an I/O error, with the read error as its source.
fn as_io(error: ReadError) -> io::Error {
    match error {
        ReadError::Io(error) => error,
        ReadError::Corrupt(_) => io::Error::new(io::ErrorKind::InvalidData, error),
        ReadError::Purged { .. } | ReadError::Missing { .. } => io::Error::new(io::ErrorKind::NotFound, error),
        ReadError::OutOfBounds { .. } => io::Error::new(io::ErrorKind::InvalidInput, error),
    }
}

/// Runs `work` off the runtime's threads, if there is a runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => match crate::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(ReadError::Io(io::Error::other(error))),
        },
        Err(_) => work(),
    }
}

/// Part of one entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlace {
    /// The entry.
    pub index: LogIndex,
    /// First byte in its payload.
    pub offset: u32,
    /// Bytes.
    pub len: usize,
}

fn read_from_disk(catalog: &Catalog, group: &Group, place: ReadPlace) -> Result<Bytes, ReadError> {
    let ReadPlace { index, offset, len } = place;
    match read_part(catalog, group.id, &group.index, index.0, offset, len) {
        // The entry was purged since memory was checked.
        Err(ReadError::Missing { index, next }) => match group.memory.locked().purged {
            Some(purged) if index <= purged.index.0 => Err(ReadError::Purged { index, purged: purged.index.0 }),
            _ => Err(ReadError::Missing { index, next }),
        },
        read => read,
    }
}

/// Places of one entry that are no further apart are read in one go: cheaper than a second read.
const NEAR_BYTES: usize = 64 << 10;

/// How many of `places`, from the first on, are read in one go: those in one entry that follow one another closely.
fn in_one_go(places: &[ReadPlace]) -> usize {
    let follows = |before: &ReadPlace, next: &ReadPlace| {
        let end = (before.offset as usize).saturating_add(before.len);
        before.index == next.index
            && before.offset <= next.offset
            && next.offset as usize <= end.saturating_add(NEAR_BYTES)
    };
    1 + places.windows(2).take_while(|pair| follows(&pair[0], &pair[1])).count()
}

/// Some places of one entry, by one read. If that fails, each by itself: damage between them is no error of theirs, and
/// that of one must be told of that one (R9).
fn read_together(catalog: &Catalog, group: &Group, places: &[ReadPlace]) -> Result<Vec<Bytes>, ReadError> {
    let one_by_one = || places.iter().map(|place| read_from_disk(catalog, group, *place)).collect();
    let [first, _, ..] = places else { return one_by_one() };
    let (index, offset, start) = (first.index, first.offset, first.offset as usize);
    let ends = places.iter().map(|place| (place.offset as usize).saturating_add(place.len));
    let len = ends.max().map_or(0, |end| end - start);
    let Ok(whole) = read_from_disk(catalog, group, ReadPlace { index, offset, len }) else { return one_by_one() };
    // As slices, they keep all that was read in memory: only if it is hardly more than they are.
    let shared = places.iter().map(|place| place.len).sum::<usize>() >= whole.len() / 4 * 3;
    let part = |place: &ReadPlace| {
        let from = place.offset as usize - start;
        let part = whole.slice(from..from + place.len);
        if shared { part } else { Bytes::copy_from_slice(&part) }
    };
    Ok(places.iter().map(part).collect())
}

/// `found`: those of `places` that were in memory. Reads the others.
fn read_missing(
    catalog: &Catalog,
    group: &Group,
    found: &[Option<Bytes>],
    places: &[ReadPlace],
) -> Result<Vec<Bytes>, ReadError> {
    let (mut all, mut at) = (Vec::with_capacity(places.len()), 0);
    while at < places.len() {
        if let Some(bytes) = &found[at] {
            all.push(bytes.clone());
            at += 1;
            continue;
        }
        let near = &found[at..at + in_one_go(&places[at..])];
        let missing = near.iter().take_while(|found| found.is_none()).count();
        all.extend(read_together(catalog, group, &places[at..at + missing])?);
        at += missing;
    }
    Ok(all)
}

impl GroupLog {
    /// The group's id.
    pub fn id(&self) -> GroupId {
        self.group.id
    }

    /// Whether the journal seals what it writes (R10).
    pub fn seals(&self) -> bool {
        self.shared.seals
    }

    /// The log as it is now, durable or not.
    pub fn state(&self) -> GroupLogState {
        let memory = self.group.memory.locked();
        GroupLogState {
            vote: memory.vote.clone(),
            committed: memory.committed,
            purged: memory.purged,
            last: memory.last(),
            first: (memory.first() < memory.next()).then(|| LogIndex(memory.first())),
            damaged: memory.damaged.clone(),
            unknown: memory.unknown,
        }
    }

    /// Bytes that the group's entries take in the journal.
    pub fn live_bytes(&self) -> u64 {
        self.group.memory.locked().live_bytes()
    }

    /// Appends entries, which must continue the log (at any index if the log never had an entry). They can be read at
    /// once. The writer calls `done` once they are durable, in the order of the calls over all groups (LOG-L1).
    /// It gets an error for entries that do not continue the log, for a payload that is too large, and if the journal
    /// has failed or is closed.
    pub fn append(&self, entries: Vec<Entry>, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.append_and_tell(entries, Done::each(done));
    }

    /// Like [`GroupLog::append`], for a caller to whom a call for these entries says that all earlier ones are durable
    /// too. If one batch makes several of these appends durable, `done` of the last is called, and the others are
    /// dropped; an error is told to each (LOG-L1).
    pub fn append_upto(&self, entries: Vec<Entry>, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.append_and_tell(entries, Done::Last(self.group.id, Box::new(done)));
    }

    fn append_and_tell(&self, entries: Vec<Entry>, done: Done) {
        let Some(first) = entries.first() else {
            return self.submit(Vec::new(), 0, None, done);
        };
        for (next, entry) in (first.id.index.0..).zip(&entries) {
            let sound = if entry.payload.len() > PAYLOAD_BYTES_MAX {
                Err(Misplaced::TooLarge { found: entry.payload.len(), max: PAYLOAD_BYTES_MAX })
            } else if entry.id.index.0 != next {
                Err(Misplaced::Append { found: entry.id.index.0, expected: next })
            } else {
                Ok(())
            };
            if let Err(error) = sound {
                return self.refuse(misplaced(error), done);
            }
        }
        let mut memory = self.group.memory.locked();
        if let Err(error) = memory.check_append(first.id.index.0) {
            holdfast_reached::reached!("log: an append that does not continue the log");
            drop(memory);
            return self.refuse(misplaced(error), done);
        }
        let append = memory.begin_append();
        let (mut bytes, mut payload_bytes) = (0, 0);
        let mut ops = Vec::with_capacity(entries.len());
        for Entry { id, payload } in entries {
            let size = record_bytes(payload.len()) as u64;
            bytes += size;
            payload_bytes += payload.len() as u64;
            memory.push(id, payload.clone(), append, size);
            ops.push(Op::Entry { group: self.group.id, id, payload });
        }
        self.shared.tail_bytes.fetch_add(payload_bytes, Ordering::Relaxed);
        let evictable = Some(Evictable { group: self.group.clone(), append });
        // Under the group's lock, so that the queue gets the group's changes in the order in which memory got them.
        let back = self.shared.queue.push(Job { ops, bytes, evictable, done });
        drop(memory);
        self.fail_back(back);
    }

    /// Saves the vote; durable on return.
    ///
    /// # Errors
    /// The journal has failed or is closed: the vote must not be used then.
    pub async fn save_vote(&self, vote: Bytes) -> io::Result<()> {
        if vote.len() > PAYLOAD_BYTES_MAX {
            return Err(misplaced(Misplaced::TooLarge { found: vote.len(), max: PAYLOAD_BYTES_MAX }));
        }
        self.change(|memory| {
            memory.vote = Some(vote.clone());
            Ok((Some(Op::Vote { group: self.group.id, payload: vote }), Removed::default()))
        })
        .await
    }

    /// Notes the last entry known as committed. It is written with the next batch, and causes none.
    pub fn save_committed(&self, id: LogId) {
        let mut memory = self.group.memory.locked();
        memory.committed = Some(id);
        self.shared.queue.note_committed(self.group.id, id);
    }

    /// Drops the entries with an index above that of `last`, or all of them if it is `None`; durable on return.
    ///
    /// # Errors
    /// `last` is below the last purged entry; or the journal has failed or is closed.
    pub async fn truncate_after(&self, last: Option<LogId>) -> io::Result<()> {
        let from = last.map_or(0, |id| id.index.0 + 1);
        self.change(|memory| {
            if let Some(purged) = memory.purged.filter(|purged| from <= purged.index.0) {
                holdfast_reached::reached!("log: a truncation below what is purged");
                return Err(misplaced(Misplaced::Truncate { found: last, purged }));
            }
            if from >= memory.next() {
                return Ok((None, Removed::default()));
            }
            holdfast_reached::reached!("log: entries of another leader are truncated");
            let gone = self.bytes_of(memory, from.max(memory.first())..memory.next());
            let removed = memory.truncate(from, last, gone);
            Ok((Some(Op::Truncate { group: self.group.id, from }), removed))
        })
        .await
    }

    /// Drops the entries with an index up to that of `upto`, which may be beyond the last entry; durable on return.
    /// Frees files.
    ///
    /// # Errors
    /// The journal has failed or is closed.
    pub async fn purge(&self, upto: LogId) -> io::Result<()> {
        self.change(|memory| Ok(self.purge_in(memory, upto))).await
    }

    /// Like [`GroupLog::purge`], but does not wait for the disk. If a crash undoes the purge, it can be repeated, and
    /// nothing that is appended later becomes durable before it (LOG-L1).
    ///
    /// # Errors
    /// The journal has failed or is closed. If it fails later, the next write returns the error.
    pub fn purge_later(&self, upto: LogId) -> io::Result<()> {
        if let Some(why) = self.shared.queue.failed() {
            return Err(stopped(Some(why)));
        }
        let group = self.group.id;
        let done = Done::each(move |result| {
            if let Err(error) = result {
                tracing::warn!(%group, %upto, %error, "journal: a purge is not durable; the next start repeats it");
            }
        });
        match self.queue_change(|memory| Ok(self.purge_in(memory, upto)), done)? {
            None => Ok(()),
            Some(closed) => {
                self.fail_back(Some(closed));
                Err(stopped(self.shared.queue.failed()))
            }
        }
    }

    fn purge_in(&self, memory: &mut Memory, upto: LogId) -> (Option<Op>, Removed) {
        if memory.purged.is_some_and(|purged| purged.index >= upto.index) {
            return (None, Removed::default());
        }
        let gone = self.bytes_of(memory, memory.first()..memory.next().min(upto.index.0 + 1));
        let removed = memory.purge(upto, gone);
        (Some(Op::Purge { group: self.group.id, upto }), removed)
    }

    /// Forgets the group: entries, vote, everything; durable on return. The handle can still be used, for an empty log.
    ///
    /// # Errors
    /// The journal has failed or is closed.
    pub async fn drop_group(&self) -> io::Result<()> {
        self.change(|memory| {
            holdfast_reached::reached!("log: a group is dropped");
            self.shared.queue.forget_committed(self.group.id);
            Ok((Some(Op::DropGroup { group: self.group.id }), memory.clear()))
        })
        .await
    }

    /// The entries from the start of `range`, in order and without gaps, until the end of `range`, the end of the log,
    /// or `max_bytes` of payload. The first one is returned whatever its size. Empty if there is no entry at the start
    /// of `range`. From memory without I/O if possible, otherwise read from disk and checked (R9), off the runtime's
    /// threads.
    ///
    /// # Errors
    /// `InvalidData` with a [`ReadError::Corrupt`] inside for a bad record; the disk's error.
    pub async fn entries(&self, range: Range<u64>, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let (mut found, mut bytes, mut at) = (Vec::new(), 0, range.start);
        loop {
            let on_disk = {
                let memory = self.group.memory.locked();
                let end = range.end.min(memory.next());
                if at < memory.first() || at >= end {
                    return Ok(found);
                }
                while let Some(entry) = memory.in_tail(at).filter(|_| at < end) {
                    if !found.is_empty() && bytes + entry.payload.len() > max_bytes {
                        return Ok(found);
                    }
                    bytes += entry.payload.len();
                    found.push(Entry {
                        id: LogId { term: entry.term, index: LogIndex(at) },
                        payload: entry.payload.clone(),
                    });
                    at += 1;
                }
                if at >= end {
                    return Ok(found);
                }
                at..end.min(memory.tail_first())
            };
            let (catalog, group) = (self.shared.catalog.clone(), self.group.clone());
            let room = max_bytes.saturating_sub(bytes);
            // Only the first entry may exceed the limit.
            let first = found.is_empty();
            let read =
                blocking(move || read_entries(&catalog, group.id, &group.index, on_disk, room)).await.map_err(as_io)?;
            if read.first().is_some_and(|(_, payload)| !first && payload.len() > room) {
                return Ok(found);
            }
            if read.is_empty() {
                return Ok(found);
            }
            at += read.len() as u64;
            for (id, payload) in read {
                bytes += payload.len();
                found.push(Entry { id, payload });
            }
            if bytes >= max_bytes {
                return Ok(found);
            }
        }
    }

    /// All entries of `range`, if all of them are in memory. No I/O, no waiting.
    pub fn entries_in_tail(&self, range: Range<u64>) -> Option<Vec<Entry>> {
        let memory = self.group.memory.locked();
        range
            .map(|index| {
                let entry = memory.in_tail(index)?;
                Some(Entry { id: LogId { term: entry.term, index: LogIndex(index) }, payload: entry.payload.clone() })
            })
            .collect()
    }

    /// `len` bytes at `offset` of the payload at `index`, checked against the record's header and checksums (R9).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, index: LogIndex, offset: u32, len: usize) -> Result<Bytes, ReadError> {
        let place = ReadPlace { index, offset, len };
        if let Some(bytes) = self.read_from_tail(place)? {
            return Ok(bytes);
        }
        let (catalog, group) = (self.shared.catalog.clone(), self.group.clone());
        blocking(move || read_from_disk(&catalog, &group, place)).await
    }

    /// As [`GroupLog::read`] for each of `places`, in their order. All entries that are not in memory are read in one
    /// call on a blocking thread; places in a row that are close to each other in one entry, by one read.
    ///
    /// # Errors
    /// The first error.
    pub async fn read_many(&self, places: Vec<ReadPlace>) -> Result<Vec<Bytes>, ReadError> {
        let found = places.iter().map(|place| self.read_from_tail(*place)).collect::<Result<Vec<_>, _>>()?;
        if found.iter().all(Option::is_some) {
            return Ok(found.into_iter().flatten().collect());
        }
        let (catalog, group) = (self.shared.catalog.clone(), self.group.clone());
        blocking(move || read_missing(&catalog, &group, &found, &places)).await
    }

    /// `None` if the entry is in the journal, but no longer in memory.
    fn read_from_tail(&self, place: ReadPlace) -> Result<Option<Bytes>, ReadError> {
        let ReadPlace { index, offset, len } = place;
        let memory = self.group.memory.locked();
        if let Some(purged) = memory.purged.filter(|purged| index <= purged.index) {
            holdfast_reached::reached!("log: a read of a purged entry");
            return Err(ReadError::Purged { index: index.0, purged: purged.index.0 });
        }
        if index.0 < memory.first() || index.0 >= memory.next() {
            return Err(ReadError::Missing { index: index.0, next: memory.next() });
        }
        let Some(entry) = memory.in_tail(index.0) else { return Ok(None) };
        let range = offset as usize..(offset as usize).saturating_add(len);
        if range.end > entry.payload.len() {
            let (wanted, len) = (len, entry.payload.len());
            return Err(ReadError::OutOfBounds { index: index.0, offset, wanted, len });
        }
        Ok(Some(entry.payload.slice(range)))
    }

    /// Term of the entry at `index`, or of the last purged entry.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        let memory = self.group.memory.locked();
        if let Some(term) = memory.term_at(index.0) {
            return Some(term);
        }
        if index.0 < memory.first() || index.0 >= memory.next() {
            return None;
        }
        self.group.index.locked().entry(index.0).map(|entry| entry.term)
    }

    /// Bytes on disk of the entries after `index`. `None`: these are more than `most` entries, or some of them are
    /// purged.
    pub fn bytes_after(&self, index: LogIndex, most: u64) -> Option<u64> {
        let memory = self.group.memory.locked();
        let range = index.0.saturating_add(1)..memory.next();
        let counts = range.is_empty() || range.start >= memory.first() && range.end - range.start <= most;
        counts.then(|| self.bytes_of(&memory, range))
    }

    /// Bytes on disk of the records of `range`. Lock order: memory before index.
    fn bytes_of(&self, memory: &Memory, range: Range<u64>) -> u64 {
        let index = self.group.index.locked();
        let len = |at: u64| match memory.in_tail(at) {
            Some(entry) => Some(entry.payload.len()),
            None => index.entry(at).map(|entry| entry.len as usize),
        };
        range.filter_map(len).map(|len| record_bytes(len) as u64).sum()
    }

    /// Changes memory and queues the record for the change, both under the group's lock; waits until it is durable.
    async fn change(&self, change: impl FnOnce(&mut Memory) -> io::Result<(Option<Op>, Removed)>) -> io::Result<()> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let done = Done::each(move |result| {
            // The caller may have stopped waiting.
            let _ = sender.send(result);
        });
        let back = self.queue_change(change, done)?;
        self.fail_back(back);
        receiver.await.unwrap_or_else(|_| Err(stopped(self.shared.queue.failed())))
    }

    /// Changes memory and queues the record for the change, both under the group's lock. Returns the job if it was not
    /// queued because the journal is closed.
    fn queue_change(
        &self,
        change: impl FnOnce(&mut Memory) -> io::Result<(Option<Op>, Removed)>,
        done: Done,
    ) -> io::Result<Option<Job>> {
        let (removed, back) = {
            let mut memory = self.group.memory.locked();
            let (op, removed) = change(&mut memory)?;
            let bytes = op.as_ref().map_or(0, |op| record_bytes(op.payload_len()) as u64);
            // This is queued even without an operation: it returns after everything that was queued before it (LOG-L1).
            let ops = op.into_iter().collect();
            (removed, self.shared.queue.push(Job { ops, bytes, evictable: None, done }))
        };
        self.shared.tail_bytes.fetch_sub(removed.bytes, Ordering::Relaxed);
        Ok(back)
    }

    fn submit(&self, ops: Vec<Op>, bytes: u64, evictable: Option<Evictable>, done: Done) {
        let back = self.shared.queue.push(Job { ops, bytes, evictable, done });
        self.fail_back(back);
    }

    /// An error for this caller only, delivered in the order of the calls.
    fn refuse(&self, error: io::Error, done: Done) {
        self.submit(Vec::new(), 0, None, Done::each(move |_| done.call(Err(error))));
    }

    fn fail_back(&self, back: Option<Job>) {
        if let Some(job) = back {
            job.done.call(Err(stopped(self.shared.queue.failed())));
        }
    }
}
