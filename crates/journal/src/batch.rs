//! One batch: its bytes, and what follows once they are durable. A batch may be begun and ended apart, so that nobody
//! waits for the disk between.

use crate::format::{BATCH_HEADER_BYTES, BatchHeader, Kind, RecordHeader};
use crate::index::Place;
use crate::item::{Flight, Item};
use crate::write::Journal;
use crate::{AlignedBuf, BLOCK_BYTES, Disk, Op, WriteError};
use holdfast_types::sync::LockExt;
use std::collections::VecDeque;
use std::io;

impl<D: Disk> Journal<D> {
    /// Begins a batch of the first of `ops` and returns without waiting for the disk; [`Journal::ended`] tells its end.
    /// `false`, and nothing is begun, if only [`Journal::write`] can write them: the disk takes no writes to begin, the
    /// next file is needed, the batch before is an idle marker (JOURNAL-J1), or the journal has failed.
    ///
    /// Until its end nothing else of the journal is written: a caller MUST NOT call `write`, `tidy`, `mark_idle`,
    /// `finish` or `purge_ahead` before.
    pub fn begin(&mut self, ops: &VecDeque<Op>) -> bool {
        if self.failed || self.refused || self.flight.is_some() || self.current.synced != self.current.end {
            return false;
        }
        let items = self.next_items(ops);
        if items.is_empty() {
            return false;
        }
        let (mut buf, places) = self.encoded(&items);
        let end = self.complete(&mut buf, items.len() as u32, false);
        match self.current.file.file.begin_synced_at(buf, self.current.end) {
            Ok(()) => self.flight = Some(Flight { items, places, end }),
            Err(buf) => {
                // Nothing was written, so the place is still free: JOURNAL-J9 holds for the batch that takes it.
                self.buf = buf;
                self.refused = true;
            }
        }
        !self.refused
    }

    /// Whether a batch was begun whose end was not told yet.
    pub fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// The end of the batch that was begun: how many of the operations are durable, the first ones. `None` while the
    /// disk writes it, and if there is none. `wait`: waits for the disk.
    ///
    /// # Errors
    /// Inside: final (JOURNAL-J2).
    pub fn ended(&mut self, wait: bool) -> Option<Result<usize, WriteError>> {
        self.flight.as_ref()?;
        let (buf, result) = match self.disk.ended(wait) {
            Some(ended) => ended,
            None if wait => (AlignedBuf::default(), Err(io::Error::other("the disk does not know the write"))),
            None => return None,
        };
        let Flight { items, places, end } = self.flight.take()?;
        self.buf = buf;
        if let Err(error) = result {
            return Some(Err(self.fail("write and sync", error)));
        }
        self.advance(end, false);
        self.note_durable(&items, places);
        Some(Ok(items.len()))
    }

    /// The records of `items` behind an empty batch header, for the end of the current file, and their places.
    pub(crate) fn encoded(&mut self, items: &[Item]) -> (AlignedBuf, Vec<Place>) {
        let base = self.current.end;
        let file = self.current.file.clone();
        let mut buf = std::mem::take(&mut self.buf);
        buf.clear();
        buf.resize(BATCH_HEADER_BYTES);
        let mut places = Vec::with_capacity(items.len());
        for item in items {
            let offset = base + buf.len() as u64;
            places.push(Place { file: file.number, offset: offset as u32 });
            let header = RecordHeader {
                kind: item.kind,
                carried: item.carried,
                group: item.group,
                id: item.id,
                len: item.payload.len() as u32,
                given: if file.key.is_some() { self.given_bytes(item) } else { 0 },
                offset,
            };
            header.append(file.seed, file.key.as_ref(), &item.payload, &mut buf);
        }
        (buf, places)
    }

    /// Updates the index: the records of `items` are durable at `places`.
    pub(crate) fn note_durable(&mut self, items: &[Item], places: Vec<Place>) {
        let mut last = None;
        for (item, place) in items.iter().zip(places) {
            // Many records of one group in a row are common: one look-up for all of them.
            let index = match last.take() {
                Some((group, index)) if group == item.group => index,
                _ => self.catalog.index(item.group),
            };
            let mut guard = index.locked();
            let takes = item.kind != Kind::Entry || guard.takes(item.id.index.0);
            assert!(takes, "JOURNAL-J5: {} of {} leaves a hole after {}", item.id, item.group, guard.next());
            if let Err(what) = guard.apply(item.group, &item.change(), place, &mut self.ledger) {
                panic!("JOURNAL-J5: {} of {}: {what}", item.id, item.group);
            }
            drop(guard);
            if item.kind == Kind::DropGroup {
                self.damaged.remove(&item.group);
            }
            last = Some((item.group, index));
        }
    }

    /// Completes a batch for the end of the current file: padding and header. Returns the offset behind it.
    pub(crate) fn complete(&self, buf: &mut AlignedBuf, records: u32, idle: bool) -> u64 {
        assert!(self.flight.is_none(), "JOURNAL-J1: a batch behind one that is under way");
        let used = buf.len() as u64;
        buf.pad_to(BLOCK_BYTES);
        let header = BatchHeader {
            offset: self.current.end,
            bytes: buf.len() as u64,
            records,
            idle,
            synced: self.current.synced,
            synced_before: self.current.synced_before,
            used,
        };
        header.encode_into(self.current.file.seed, buf);
        let end = self.current.end + buf.len() as u64;
        assert!(
            end <= self.params.file_bytes,
            "JOURNAL-J6: a batch up to {end} in a file of {} bytes",
            self.params.file_bytes
        );
        end
    }

    /// The batch up to `end` was written, and synced unless it is an idle marker.
    pub(crate) fn advance(&mut self, end: u64, idle: bool) {
        self.current.end = end;
        if !idle {
            self.current.synced = end;
        }
        self.marked = idle;
    }

    /// Bytes at the end of an item's payload that came sealed (JOURNAL-J9).
    fn given_bytes(&self, item: &Item) -> u32 {
        let Some(sealing) = self.sealing.as_ref().filter(|_| item.kind == Kind::Entry) else { return 0 };
        (item.payload.len() - (sealing.clear_bytes)(&item.payload).min(item.payload.len())) as u32
    }
}
