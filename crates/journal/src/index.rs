//! Index of a group: the place of each live record, and the live bytes in each file.
//!
//! Writing and replay use the same [`GroupIndex::apply`], so they cannot diverge.

use crate::CorruptRecord;
use crate::format::record_bytes;
use bytes::Bytes;
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// Place of a record's header: file number and byte offset. Files count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the file.
    pub file: u64,
    /// Offset of the record's header in bytes.
    pub offset: u32,
}

impl Place {
    const NOWHERE: Place = Place { file: 0, offset: 0 };
}

/// An entry in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Term of the entry.
    pub term: Term,
    /// Where its record lies.
    pub place: Place,
    /// Payload in bytes.
    pub len: u32,
}

impl IndexEntry {
    /// A hole during replay: the record was carried forward and follows later, or is lost.
    const VACANT: IndexEntry = IndexEntry { term: Term(0), place: Place::NOWHERE, len: 0 };

    fn is_vacant(&self) -> bool {
        self.place.file == 0
    }
}

/// A group's index is read by any thread, and changed only by the journal's owner, never across I/O.
pub type SharedIndex = Arc<Mutex<GroupIndex>>;

/// One durable change, without the payload of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Entry {
        id: LogId,
        len: u32,
    },
    /// A live entry written again later in the log: takes its place in the index, ends no other record.
    Carried {
        id: LogId,
        len: u32,
    },
    Vote(Bytes),
    Truncate {
        from: u64,
    },
    Purge {
        upto: LogId,
    },
    Committed {
        id: LogId,
    },
    Drop,
}

/// Live records of one group in one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub records: u64,
    pub bytes: u64,
}

/// Live records by file and group: they must be carried forward before a file may be dropped (JOURNAL-J5).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    files: BTreeMap<u64, BTreeMap<GroupId, Live>>,
}

impl Ledger {
    fn add(&mut self, group: GroupId, place: Place, bytes: u64) {
        let live = self.files.entry(place.file).or_default().entry(group).or_default();
        live.records += 1;
        live.bytes += bytes;
    }

    fn sub(&mut self, group: GroupId, place: Place, bytes: u64) {
        let Some(groups) = self.files.get_mut(&place.file) else {
            panic!("JOURNAL-J5: {group} ends a record at {place:?}, expected a live record in that file")
        };
        let Some(live) = groups.get_mut(&group) else {
            panic!("JOURNAL-J5: {group} ends a record at {place:?}, expected a live record of the group in that file")
        };
        live.records = live.records.checked_sub(1).expect("JOURNAL-J5: fewer records live than ended");
        live.bytes = live.bytes.checked_sub(bytes).expect("JOURNAL-J5: fewer bytes live than ended");
        if live.records == 0 {
            groups.remove(&group);
        }
        if groups.is_empty() {
            self.files.remove(&place.file);
        }
    }

    /// Live bytes of a file.
    pub fn bytes(&self, file: u64) -> u64 {
        self.files.get(&file).map_or(0, |groups| groups.values().map(|live| live.bytes).sum())
    }

    /// Live records of one group in a file.
    pub fn records(&self, file: u64, group: GroupId) -> u64 {
        self.files.get(&file).and_then(|groups| groups.get(&group)).map_or(0, |live| live.records)
    }

    /// Groups that have live records in a file.
    pub fn groups(&self, file: u64) -> Vec<GroupId> {
        self.files.get(&file).map_or_else(Vec::new, |groups| groups.keys().copied().collect())
    }
}

/// Durable records of one group in the journal's files.
#[derive(Debug, Default)]
pub struct GroupIndex {
    /// Index of the first entry; of the next one if there is none.
    base: u64,
    entries: VecDeque<IndexEntry>,
    vote: Option<(Bytes, Place)>,
    committed: Option<(LogId, Place)>,
    purged: Option<(LogId, Place)>,
    pub(crate) damaged: Option<CorruptRecord>,
}

/// Largest hole in one group's log that replay keeps vacant entries for: a wider one is damage.
const HOLE_MAX: u64 = 1 << 24;

impl GroupIndex {
    /// The entry at `index`.
    pub fn entry(&self, index: u64) -> Option<IndexEntry> {
        let at = usize::try_from(index.checked_sub(self.base)?).ok()?;
        self.entries.get(at).copied().filter(|entry| !entry.is_vacant())
    }

    /// Last vote.
    pub fn vote(&self) -> Option<Bytes> {
        self.vote.as_ref().map(|(vote, _)| vote.clone())
    }

    /// Last log id noted as committed.
    pub fn committed(&self) -> Option<LogId> {
        self.committed.map(|(id, _)| id)
    }

    /// Last log id purged.
    pub fn purged(&self) -> Option<LogId> {
        self.purged.map(|(id, _)| id)
    }

    /// Last entry, else the last log id purged.
    pub fn last(&self) -> Option<LogId> {
        match self.entries.back() {
            Some(entry) => Some(LogId { term: entry.term, index: LogIndex(self.next() - 1) }),
            None => self.purged(),
        }
    }

    /// Index of the first entry; of the next one if there is none.
    pub fn first(&self) -> u64 {
        self.base
    }

    /// Index after the last entry.
    pub fn next(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// The group's damage, when recovery met any (R9).
    pub fn damaged(&self) -> Option<CorruptRecord> {
        self.damaged.clone()
    }

    /// Bytes of the live entries' records.
    pub fn live_bytes(&self) -> u64 {
        let live = self.entries.iter().filter(|entry| !entry.is_vacant());
        live.map(|entry| record_bytes(entry.len as usize) as u64).sum()
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, IndexEntry)> + '_ {
        self.entries
            .iter()
            .enumerate()
            .map(|(at, entry)| (self.base + at as u64, *entry))
            .filter(|(_, entry)| !entry.is_vacant())
    }

    pub(crate) fn vote_place(&self) -> Option<(Bytes, Place)> {
        self.vote.clone()
    }

    pub(crate) fn committed_place(&self) -> Option<(LogId, Place)> {
        self.committed
    }

    pub(crate) fn purged_place(&self) -> Option<(LogId, Place)> {
        self.purged
    }

    /// Whether an entry at `index` continues the log or overwrites its end: only replay may leave holes.
    pub(crate) fn takes(&self, index: u64) -> bool {
        self.entries.is_empty() || self.is_purged(index) || (self.base..=self.next()).contains(&index)
    }

    fn is_purged(&self, index: u64) -> bool {
        self.purged.is_some_and(|(purged, _)| index <= purged.index.0)
    }

    /// Applies one durable change. `Err` says what does not fit: only damage on disk causes that. The group then
    /// continues as far as possible, so that its state can be inspected.
    pub(crate) fn apply(
        &mut self,
        group: GroupId,
        change: &Change,
        place: Place,
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        match change {
            Change::Entry { id, len } => {
                self.drop_from(group, id.index.0, ledger);
                // A purge went ahead of it (`Journal::purge_ahead`): what it purged was written once more behind this
                // entry, which two changes of leader overwrote and wrote again. Nobody reads it.
                if self.is_purged(id.index.0) {
                    return Ok(());
                }
                return self.place(group, *id, *len, place, ledger);
            }
            Change::Carried { id, len } => return self.place(group, *id, *len, place, ledger),
            Change::Vote(vote) => {
                if let Some((old, old_place)) = self.vote.take() {
                    ledger.sub(group, old_place, record_bytes(old.len()) as u64);
                }
                ledger.add(group, place, record_bytes(vote.len()) as u64);
                self.vote = Some((vote.clone(), place));
            }
            Change::Truncate { from } => self.drop_from(group, *from, ledger),
            Change::Purge { upto } => self.purge(group, *upto, place, ledger),
            Change::Committed { id } => {
                if let Some((_, old_place)) = self.committed.take() {
                    ledger.sub(group, old_place, record_bytes(0) as u64);
                }
                ledger.add(group, place, record_bytes(0) as u64);
                self.committed = Some((*id, place));
            }
            Change::Drop => self.forget(group, ledger),
        }
        Ok(())
    }

    /// Puts an entry into its place. Replay may meet entries before their predecessors if these were carried forward
    /// out of dropped files: it leaves holes, which are filled later, or are damage at the end.
    fn place(&mut self, group: GroupId, id: LogId, len: u32, place: Place, ledger: &mut Ledger) -> Result<(), String> {
        let index = id.index.0;
        if self.entries.is_empty() {
            self.base = index;
        }
        let hole = self.base.saturating_sub(index).max(index.saturating_sub(self.next()));
        let mut result = Ok(());
        if hole > HOLE_MAX {
            result = Err(format!("an entry at index {index}, far from {} to {}", self.base, self.next()));
            self.drop_from(group, 0, ledger);
            self.base = index;
        }
        while index < self.base {
            self.entries.push_front(IndexEntry::VACANT);
            self.base -= 1;
        }
        while index >= self.next() {
            self.entries.push_back(IndexEntry::VACANT);
        }
        let entry = IndexEntry { term: id.term, place, len };
        let old = std::mem::replace(&mut self.entries[(index - self.base) as usize], entry);
        self.end(group, &old, ledger);
        ledger.add(group, place, record_bytes(len as usize) as u64);
        result
    }

    fn purge(&mut self, group: GroupId, upto: LogId, place: Place, ledger: &mut Ledger) {
        // A purge that was overtaken (`Journal::purge_ahead`). An equal one was carried forward.
        if self.purged.is_some_and(|(purged, _)| purged.index > upto.index) {
            return;
        }
        if let Some((_, old_place)) = self.purged.take() {
            ledger.sub(group, old_place, record_bytes(0) as u64);
        }
        ledger.add(group, place, record_bytes(0) as u64);
        self.purged = Some((upto, place));
        while self.base <= upto.index.0 {
            let Some(entry) = self.entries.pop_front() else { break };
            self.base += 1;
            self.end(group, &entry, ledger);
        }
        if self.entries.is_empty() {
            self.base = self.base.max(upto.index.0 + 1);
        }
    }

    fn drop_from(&mut self, group: GroupId, from: u64, ledger: &mut Ledger) {
        while self.next() > from {
            let Some(entry) = self.entries.pop_back() else { break };
            self.end(group, &entry, ledger);
        }
        if self.entries.is_empty() {
            self.base = self.base.min(from).max(self.purged.map_or(0, |(purged, _)| purged.index.0 + 1));
        }
    }

    /// Forgets everything but keeps the ledger right.
    pub(crate) fn forget(&mut self, group: GroupId, ledger: &mut Ledger) {
        self.drop_from(group, 0, ledger);
        if let Some((vote, place)) = self.vote.take() {
            ledger.sub(group, place, record_bytes(vote.len()) as u64);
        }
        for (_, place) in self.committed.take().into_iter().chain(self.purged.take()) {
            ledger.sub(group, place, record_bytes(0) as u64);
        }
        self.base = 0;
        self.damaged = None;
    }

    fn end(&self, group: GroupId, entry: &IndexEntry, ledger: &mut Ledger) {
        if !entry.is_vacant() {
            ledger.sub(group, entry.place, record_bytes(entry.len as usize) as u64);
        }
    }

    /// After replay: keeps the entries after the last hole, and reports the hole.
    pub(crate) fn close_holes(&mut self, group: GroupId, ledger: &mut Ledger) -> Result<(), String> {
        let mut result = Ok(());
        if let Some(hole) = self.entries.iter().rposition(IndexEntry::is_vacant) {
            result = Err(format!("no entry at index {}", self.base + hole as u64));
            for entry in self.entries.drain(..=hole).collect::<Vec<_>>() {
                self.end(group, &entry, ledger);
            }
            self.base += hole as u64 + 1;
        }
        match self.purged {
            Some((purged, _)) if !self.entries.is_empty() && self.base != purged.index.0 + 1 && result.is_ok() => {
                Err(format!("first entry at index {} after the purge of {purged}", self.base))
            }
            _ => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u32) -> Place {
        Place { file: 1, offset }
    }

    /// As after the snapshot of a leader: nothing is there, and the next entry is the one behind the purge.
    #[test]
    fn an_empty_group_goes_on_behind_its_purge() {
        let (group, mut index, mut ledger) = (GroupId(1), GroupIndex::default(), Ledger::default());
        let purge = Change::Purge { upto: LogId::new(3, 41) };
        index.apply(group, &purge, at(0), &mut ledger).expect("applies");
        assert_eq!((index.first(), index.next(), index.last()), (42, 42, Some(LogId::new(3, 41))));
        let next = Change::Entry { id: LogId::new(3, 42), len: 10 };
        index.apply(group, &next, at(1), &mut ledger).expect("continues");
        assert_eq!((index.first(), index.next()), (42, 43));
    }

    /// Only the live writer is asked: replay may leave holes for a while.
    #[test]
    fn an_entry_that_leaves_a_hole_is_not_taken() {
        let (group, mut index, mut ledger) = (GroupId(1), GroupIndex::default(), Ledger::default());
        let takes = |index: &GroupIndex| [3, 4, 5, 8, 9, 10].map(|at| index.takes(at));
        assert_eq!(takes(&index), [true; 6], "a log begins anywhere");
        for n in 5..9 {
            let entry = Change::Entry { id: LogId::new(1, n), len: 10 };
            index.apply(group, &entry, at(n as u32), &mut ledger).expect("continues");
        }
        assert_eq!(takes(&index), [false, false, true, true, true, false], "5 to 8 may be overwritten, 9 continues");
        let purge = Change::Purge { upto: LogId::new(1, 5) };
        index.apply(group, &purge, at(20), &mut ledger).expect("applies");
        assert_eq!(takes(&index), [true, true, true, true, true, false], "what was purged ahead of it changes nothing");
    }

    #[test]
    fn a_log_that_does_not_begin_behind_its_purge_is_reported() {
        let group = GroupId(1);
        let closed = |purged: Option<u64>, entries: &[u64]| {
            let (mut index, mut ledger) = (GroupIndex::default(), Ledger::default());
            let purge = purged.map(|upto| Change::Purge { upto: LogId::new(1, upto) });
            // Carried forward: replay takes them in any order, and leaves holes.
            let entries = entries.iter().map(|at| Change::Carried { id: LogId::new(2, *at), len: 10 });
            for (offset, change) in (0..).zip(purge.into_iter().chain(entries)) {
                index.apply(group, &change, at(offset), &mut ledger).expect("applies");
            }
            (index.close_holes(group, &mut ledger), index.first())
        };
        assert_eq!(closed(Some(5), &[6, 7]), (Ok(()), 6));
        assert_eq!(closed(Some(5), &[]), (Ok(()), 6), "nothing is there, and nothing is missing");
        assert_eq!(closed(None, &[8, 9]), (Ok(()), 8), "a log begins anywhere");
        let (late, first) = closed(Some(5), &[8, 9]);
        let late = late.expect_err("6 and 7 are missing");
        assert!(late.starts_with("first entry at index 8 after the purge") && first == 8, "{late}, from {first} on");
        // The hole is the reason, and what is behind it can be read.
        assert_eq!(closed(Some(5), &[6, 9, 8]), (Err("no entry at index 7".to_string()), 8));
    }

    /// A bad index must not make replay reserve entries for all that would be between.
    #[test]
    fn an_entry_far_from_the_others_is_reported_and_stands_alone() {
        let (group, mut index, mut ledger) = (GroupId(1), GroupIndex::default(), Ledger::default());
        let far = 10 + HOLE_MAX + 2;
        let carried = |at| Change::Carried { id: LogId::new(1, at), len: 10 };
        index.apply(group, &carried(10), at(0), &mut ledger).expect("the first");
        for (place, index_now) in [(1, far), (2, 10)] {
            let applied = index.apply(group, &carried(index_now), at(place), &mut ledger);
            let why = applied.expect_err("too far away");
            assert!(why.contains(&format!("an entry at index {index_now}, far from")), "{why}");
            assert_eq!((index.first(), index.next()), (index_now, index_now + 1));
            assert_eq!(ledger.records(1, group), 1, "the other one needs no file any more");
        }
    }

    /// On a full disk a purge is written ahead of others; the overtaken ones follow in order, and a crash may come in
    /// between.
    #[test]
    fn an_overtaken_purge_takes_nothing_back() {
        let (group, mut index, mut ledger) = (GroupId(1), GroupIndex::default(), Ledger::default());
        for n in 0..20 {
            let entry = Change::Entry { id: LogId::new(1, n), len: 10 };
            index.apply(group, &entry, at(n as u32), &mut ledger).expect("continues");
        }
        let mut purged = |upto, offset| {
            let purge = Change::Purge { upto: LogId::new(1, upto) };
            index.apply(group, &purge, at(offset), &mut ledger).expect("applies");
            (index.purged_place(), index.first())
        };
        let nine = Some((LogId::new(1, 9), at(100)));
        assert_eq!(purged(9, 100), (nine, 10));
        assert_eq!(purged(5, 101), (nine, 10), "overtaken");
        assert_eq!(
            purged(9, 102),
            (Some((LogId::new(1, 9), at(102))), 10),
            "carried, or its own turn: its record is the later one"
        );
        assert_eq!(purged(12, 103).1, 13);
    }
}
