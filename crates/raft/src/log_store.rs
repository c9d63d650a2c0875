//! openraft's log storage over one group of the node's journal.

use crate::clock::promise_now;
use crate::config::TypeConfig;
use crate::stored::{Ticket, Tickets};
use crate::wire::{
    RaftEntryOf, RaftLogId, RaftVote, entry_from_parts, entry_to_log, id_from_raft, id_to_raft, ticket_of,
    vote_from_bytes, vote_to_bytes,
};
use holdfast_log::GroupLog;
use holdfast_types::limits::APPEND_BYTES_MAX;
use holdfast_types::{MonoTime, Term};
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::{Handle, RuntimeFlavor};

/// Cheap to clone; every clone reads and writes the same group.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: GroupLog,
    votes: Arc<VotedTerm>,
    tickets: Arc<Tickets>,
}

/// The highest term that this process has voted in. Set before the vote is written, and so before any answer to the
/// candidate. For a moment longer, openraft reports that this member leads the term before.
#[derive(Debug, Default)]
pub(crate) struct VotedTerm {
    term: AtomicU64,
    /// When that was.
    at: AtomicU64,
}

impl VotedTerm {
    fn raise(&self, term: Term) {
        if self.term.fetch_max(term.0, Ordering::AcqRel) < term.0 {
            self.at.store(promise_now().0, Ordering::Release);
        }
    }

    /// Whether the member has taken part in no election after this term.
    pub(crate) fn allows(&self, term: Term) -> bool {
        self.term.load(Ordering::Acquire) <= term.0
    }

    /// When the member last took part in an election, or learnt of one; the beginning of time if it has not.
    pub(crate) fn at(&self) -> MonoTime {
        MonoTime(self.at.load(Ordering::Acquire))
    }
}

/// Whether of the tasks that are woken here the last one runs first: so it is on a worker of tokio, which calls back if
/// the journal writes by io_uring. From any other thread they run in the order of their wake-ups.
fn last_woken_runs_first() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

impl LogStore {
    pub(crate) fn new(log: GroupLog, votes: Arc<VotedTerm>) -> Self {
        Self { log, votes, tickets: Arc::default() }
    }

    fn decode(entries: Vec<holdfast_log::Entry>) -> io::Result<Vec<RaftEntryOf>> {
        entries
            .into_iter()
            .map(|e| entry_from_parts(e.id, e.payload).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)))
            .collect()
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    /// Never returns fewer entries than requested: openraft treats a missing entry as a broken store.
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<RaftEntryOf>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(i) => *i,
            Bound::Excluded(i) => i.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let last = self.log.state().last.map_or(0, |id| id.index.0.saturating_add(1));
        let end = match range.end_bound() {
            Bound::Included(i) => i.saturating_add(1),
            Bound::Excluded(i) => *i,
            Bound::Unbounded => last,
        }
        .min(last);
        if start >= end {
            return Ok(Vec::new());
        }
        if let Some(entries) = self.log.entries_in_tail(start..end) {
            return Self::decode(entries);
        }
        let mut out = Vec::new();
        let purged = self.log.state().purged.map_or(0, |id| id.index.0.saturating_add(1));
        let mut next = start.max(purged);
        while next < end {
            let part = self.log.entries(next..end, APPEND_BYTES_MAX).await?;
            match part.last() {
                Some(tail) => next = tail.id.index.0.saturating_add(1),
                // Before the first entry that ever existed.
                None if out.is_empty() => next += 1,
                None => break,
            }
            out.extend(Self::decode(part)?);
        }
        Ok(out)
    }

    /// Limited in bytes too: openraft itself only counts entries.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<RaftEntryOf>, io::Error> {
        let part = self.log.entries(start..end, APPEND_BYTES_MAX).await?;
        Self::decode(part)
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        match self.log.state().vote {
            None => Ok(None),
            Some(bytes) => vote_from_bytes(&bytes).map(Some).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("vote record: found {} bytes, expected 17 ending in 0 or 1", bytes.len()),
                )
            }),
        }
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = self.log.state();
        Ok(LogState {
            last_purged_log_id: state.purged.map(id_to_raft),
            last_log_id: state.last.or(state.purged).map(id_to_raft),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        self.votes.raise(Term(vote.leader_id.term));
        self.log.save_vote(vote_to_bytes(vote)).await
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> Result<(), io::Error> {
        if let Some(id) = committed {
            self.log.save_committed(id_from_raft(&id));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<RaftLogId>, io::Error> {
        Ok(self.log.state().committed.map(id_to_raft))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntryOf> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut carried: Vec<Ticket> = Vec::new();
        let to_log = |mut entry: RaftEntryOf| {
            carried.extend(ticket_of(&mut entry).and_then(Option::take));
            entry_to_log(&entry)
        };
        let entries: Vec<_> = entries.into_iter().map(to_log).collect();
        let number = self.tickets.begin(carried);
        let tickets = self.tickets.clone();
        // openraft takes a completion for one of everything before it, too, and only ever reads the newest.
        self.log.append_upto(entries, move |result| {
            let durable = result.is_ok();
            // The answer to the leader is to be on its way before openraft's core wakes.
            if last_woken_runs_first() {
                callback.io_completed(result);
                tickets.settle(number, durable);
            } else {
                tickets.settle(number, durable);
                callback.io_completed(result);
            }
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> Result<(), io::Error> {
        self.log.truncate_after(last.as_ref().map(id_from_raft)).await
    }

    /// Does not wait for the disk: openraft awaits this in the loop that sends heartbeats, so a slow or full disk would
    /// cost the leadership. The purge need not be durable: the snapshot that covers it is, and `RaftNode::start_group`
    /// repeats a purge that was lost in a crash.
    async fn purge(&mut self, id: RaftLogId) -> Result<(), io::Error> {
        self.log.purge_later(id_from_raft(&id))
    }
}
