//! One group's log as its readers see it: everything appended, durable or not.
//!
//! ```text
//!   | purged |  in the index only (on disk)  |  tail: payloads in memory  |   index grows ->
//!            ^ first                         ^ tail_first                 ^ next
//! ```
//! The journal's index of the group lags behind: it knows only durable records. Below `tail_first` both have the same
//! entries, because a payload leaves the tail only when its record is in the index (LOG-L3).

use bytes::Bytes;
use holdfast_journal::{CorruptRecord, GroupIndex, SharedIndex};
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use std::collections::VecDeque;
use std::sync::Mutex;

/// One group: its memory, and the journal's index of it.
pub(crate) struct Group {
    pub id: GroupId,
    pub memory: Mutex<Memory>,
    pub index: SharedIndex,
}

/// An entry whose payload is in memory.
#[derive(Clone, Debug)]
pub(crate) struct TailEntry {
    pub term: Term,
    pub payload: Bytes,
    /// Number of the append that added it. It grows within the group, and distinguishes this entry from a later one at
    /// the same index.
    pub append: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub vote: Option<Bytes>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
    pub damaged: Option<CorruptRecord>,
    /// It is damaged only because the journal does not know the group, and has lost records of unknown groups.
    pub unknown: bool,
    /// Last entry; `None` while there is none.
    last_entry: Option<LogId>,
    first: u64,
    tail_first: u64,
    tail: VecDeque<TailEntry>,
    appends: u64,
    live_bytes: u64,
}

/// Payloads removed from the tail, with their bytes. They are dropped outside the lock.
#[derive(Default)]
pub(crate) struct Removed {
    entries: Vec<TailEntry>,
    pub bytes: u64,
}

impl Removed {
    fn push(&mut self, entry: TailEntry) {
        self.bytes += entry.payload.len() as u64;
        self.entries.push(entry);
    }
}

/// An append does not continue the log, or a truncation or purge contradicts it: a mistake of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misplaced {
    #[error("append: found index {found}, expected {expected}")]
    Append { found: u64, expected: u64 },
    #[error("truncation: found last entry {found:?}, expected one after the purged {purged}")]
    Truncate { found: Option<LogId>, purged: LogId },
    #[error("payload: found {found} bytes, expected {max} at most")]
    TooLarge { found: usize, max: usize },
}

impl Memory {
    /// The state after recovery: the tail is empty.
    pub fn from_index(index: &GroupIndex) -> Self {
        let has_entries = index.first() < index.next();
        Self {
            vote: index.vote(),
            // Only a hint, written lazily: it must not name an entry that was truncated later or lost in a crash.
            committed: index
                .committed()
                .filter(|committed| index.last().is_some_and(|last| committed.index <= last.index)),
            purged: index.purged(),
            damaged: index.damaged(),
            last_entry: index.last().filter(|_| has_entries),
            first: index.first(),
            tail_first: index.next(),
            live_bytes: index.live_bytes(),
            ..Self::default()
        }
    }

    pub fn last(&self) -> Option<LogId> {
        self.last_entry.or(self.purged)
    }

    pub fn first(&self) -> u64 {
        self.first
    }

    /// The index of the next entry; `first` while there is none.
    pub fn next(&self) -> u64 {
        self.last_entry.map_or(self.first, |last| last.index.0 + 1)
    }

    pub fn tail_first(&self) -> u64 {
        self.tail_first
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The entry at `index`, if its payload is in memory.
    pub fn in_tail(&self, index: u64) -> Option<&TailEntry> {
        self.tail.get(usize::try_from(index.checked_sub(self.tail_first)?).ok()?)
    }

    /// Whether entries that begin at `index` continue the log. A log that is empty and was never purged may begin at
    /// any index.
    pub fn check_append(&self, index: u64) -> Result<(), Misplaced> {
        let anywhere = self.last_entry.is_none() && self.purged.is_none();
        if anywhere || index == self.next() {
            return Ok(());
        }
        Err(Misplaced::Append { found: index, expected: self.next() })
    }

    /// Number for the entries of the next append.
    pub fn begin_append(&mut self) -> u64 {
        self.appends += 1;
        self.appends
    }

    pub fn push(&mut self, id: LogId, payload: Bytes, append: u64, record_bytes: u64) {
        if self.last_entry.is_none() {
            self.first = id.index.0;
            self.tail_first = id.index.0;
        }
        self.tail.push_back(TailEntry { term: id.term, payload, append });
        self.last_entry = Some(id);
        self.live_bytes += record_bytes;
    }

    /// Drops entries from `from` on. `before` is the entry in front of it, if there is one. `gone` is their size on
    /// disk.
    pub fn truncate(&mut self, from: u64, before: Option<LogId>, gone: u64) -> Removed {
        let mut removed = Removed::default();
        self.live_bytes = self.live_bytes.saturating_sub(gone);
        while self.last_entry.is_some() && self.tail_first + self.tail.len() as u64 > from {
            let Some(entry) = self.tail.pop_back() else { break };
            removed.push(entry);
        }
        self.last_entry = before.filter(|id| id.index.0 >= self.first);
        if self.last_entry.is_none() {
            self.first = self.first.min(from);
        }
        self.tail_first = self.tail_first.min(self.next());
        removed
    }

    /// Drops entries up to and including `upto`, which may be beyond the last. `gone` is their size on disk.
    pub fn purge(&mut self, upto: LogId, gone: u64) -> Removed {
        let mut removed = Removed::default();
        let to = upto.index.0 + 1;
        self.live_bytes = self.live_bytes.saturating_sub(gone);
        while self.tail_first < to {
            let Some(entry) = self.tail.pop_front() else { break };
            self.tail_first += 1;
            removed.push(entry);
        }
        if self.next() <= to {
            self.last_entry = None;
        }
        self.first = self.first.max(to);
        self.tail_first = self.tail_first.max(self.first);
        self.purged = Some(upto);
        removed
    }

    /// Drops payloads up to append number `append` from memory. They are durable (LOG-L3).
    pub fn evict(&mut self, append: u64) -> Removed {
        let mut removed = Removed::default();
        while self.tail.front().is_some_and(|entry| entry.append <= append) {
            let Some(entry) = self.tail.pop_front() else { break };
            self.tail_first += 1;
            removed.push(entry);
        }
        removed
    }

    /// Whether payloads of append number `append` may be in the tail.
    pub fn holds(&self, append: u64) -> bool {
        self.tail.front().is_some_and(|first| first.append <= append)
            && self.tail.back().is_some_and(|last| last.append >= append)
    }

    /// Forgets everything but the append numbers.
    pub fn clear(&mut self) -> Removed {
        let mut removed = Removed::default();
        std::mem::take(&mut self.tail).into_iter().for_each(|entry| removed.push(entry));
        *self = Memory { appends: self.appends, ..Memory::default() };
        removed
    }

    /// Term of `index`, if memory knows it: of an entry in the tail, the last entry, or the last purged one.
    pub fn term_at(&self, index: u64) -> Option<Term> {
        let known = [self.last_entry, self.purged].into_iter().flatten().find(|id| id.index == LogIndex(index));
        known.map(|id| id.term).or_else(|| self.in_tail(index).map(|entry| entry.term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 7 to 9 by append 3, 10 and 11 by append 5.
    fn memory() -> Memory {
        let mut memory = Memory::default();
        for (index, append) in [(7, 3), (8, 3), (9, 3), (10, 5), (11, 5)] {
            memory.push(LogId::new(2, index), Bytes::from_static(b"four"), append, 8);
        }
        memory
    }

    /// LOG-L3: only what is durable leaves; and what the writer remembers of an append is forgotten once it has left.
    #[test]
    fn payloads_leave_by_their_append() {
        let mut memory = memory();
        let holds = |memory: &Memory| [2, 3, 4, 5, 6].map(|append| memory.holds(append));
        // It may hold some of append 4: it does not look.
        assert_eq!(holds(&memory), [false, true, true, true, false]);
        assert_eq!(memory.evict(2).bytes, 0);
        assert_eq!(memory.evict(4).bytes, 12);
        assert_eq!((memory.tail_first(), memory.first(), memory.next()), (10, 7, 12), "the journal has the others");
        assert_eq!(holds(&memory), [false, false, false, true, false]);
        assert_eq!(memory.evict(5).bytes, 8);
        assert_eq!(holds(&memory), [false; 5]);
    }

    /// A new leader truncates what has left memory, and appends: its entries are found under their own numbers.
    #[test]
    fn the_tail_begins_again_where_it_was_truncated() {
        let mut memory = memory();
        memory.evict(5);
        assert_eq!(memory.tail_first(), 12, "all of it is in the journal only");
        memory.truncate(9, Some(LogId::new(2, 8)), 24);
        memory.push(LogId::new(3, 9), Bytes::from_static(b"nine"), 6, 8);
        assert_eq!(memory.in_tail(9).map(|entry| (entry.term, &entry.payload[..])), Some((Term(3), &b"nine"[..])));
        assert!(memory.in_tail(8).is_none() && memory.in_tail(12).is_none());
    }
}
