//! [`Consensus`]: the interface of a group for everything above Raft. `RaftGroup` implements it with openraft; a
//! simulation implements it in memory and runs thousands of short histories in seconds (ADR 0017).
//!
//! Every implementation promises what Raft promises: one order of entries; each entry is applied once and in that
//! order; only the one leader of a term appends in that term; no later leader contradicts an acknowledgement time.

use crate::config::RaftTiming;
use crate::status::{Acked, GroupStatus, Leadership};
use crate::wire::MEMBERSHIP_MARK;
use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use holdfast_log::{ReadError, ReadPlace};
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Handle to a group. Cheap to clone.
pub type Group = Arc<dyn Consensus>;

/// An entry that was committed and applied here.
#[derive(Clone, Debug)]
pub struct Proposed {
    /// Its place in the log.
    pub id: LogId,
    /// The state machine's answer.
    pub answer: Bytes,
}

/// A proposal was not confirmed as applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Never appended anywhere: this member does not lead, or not in the requested term.
    #[error("not the leader; the leader is {}", .leader.map_or("unknown".to_string(), |m| m.to_string()))]
    NotLeader {
        /// The leader, if known.
        leader: Option<MemberId>,
    },
    /// It may have happened or may still happen (R12).
    #[error("outcome unknown: {reason}")]
    Unknown {
        /// The reason.
        reason: String,
    },
    /// The group has stopped on this member.
    #[error("group stopped: {reason}")]
    Stopped {
        /// The reason.
        reason: String,
    },
    /// State machines never get such a payload.
    #[error("payload: found first byte {found:?}, expected at least one byte, the first not {MEMBERSHIP_MARK:#04x}")]
    BadPayload {
        /// The first byte.
        found: Option<u8>,
    },
}

/// A change of members or leader did not happen.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The group refused or has stopped.
    #[error("group {group}: {reason}")]
    Refused {
        /// The group.
        group: GroupId,
        /// The reason.
        reason: String,
    },
    /// It was not done within the limit; it may still happen.
    #[error("group {group}: {what} not done within {limit:?}; it may still happen")]
    Late {
        /// The group.
        group: GroupId,
        /// The requested change.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
}

/// The outcome of a proposal.
pub type Outcome = Result<Proposed, ProposeError>;

fn dropped() -> ProposeError {
    ProposeError::Unknown { reason: "the group dropped the proposal".to_string() }
}

/// Takes the outcome of one proposal. Called exactly once, in whichever task knows the outcome first: usually the one
/// that has just applied the entry, so that no other task has to wake for it. If it is dropped, the outcome is unknown
/// (R12).
///
/// The replies to several proposals come in any order: a refusal is known at once, while earlier entries are still on
/// their way. A reply may come before [`Consensus::submit`] has returned. What it calls MUST return at once, and MUST
/// NOT call the group.
pub struct Reply(Option<Box<dyn FnOnce(Outcome) + Send>>);

impl Reply {
    /// A reply that calls `told`.
    pub fn new(told: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self(Some(Box::new(told)))
    }

    /// Tells the outcome.
    pub fn send(mut self, outcome: Outcome) {
        if let Some(told) = self.0.take() {
            told(outcome);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            told(Err(dropped()));
        }
    }
}

/// One Raft group as seen from one member.
///
/// The methods from [`Consensus::transfer_leader`] on have defaults for a group whose members and leader cannot be
/// changed.
pub trait Consensus: Send + Sync + 'static {
    /// The group's id.
    fn id(&self) -> GroupId;

    /// This member.
    fn me(&self) -> MemberId;

    /// The leader; changes wake the receiver.
    fn leadership(&self) -> watch::Receiver<Leadership>;

    /// The term in which this member leads, as far as it knows; not a permission to serve (see `control::serve`).
    ///
    /// Never the term in which this process started (R6), and nothing once the group has stopped here.
    fn leading_term(&self) -> Option<Term>;

    /// The term in which this member leads, and the *send* time of the newest heartbeats that a quorum acknowledged in
    /// it; in a joint membership a quorum of each set.
    fn quorum_acked(&self) -> Option<(Term, MonoTime)>;

    /// Like `quorum_acked`, with what the quorum has promised (R3). `read_lease`: from the sending of a heartbeat on,
    /// in a group that does not say it with each answer.
    fn quorum_promised(&self, read_lease: Duration) -> Option<(Term, Acked)> {
        let (term, sent) = self.quorum_acked()?;
        Some((term, Acked::new(sent, sent.saturating_add(read_lease))))
    }

    /// From now on the group has these times here; never longer ones than it was started with. What was promised before
    /// is kept. Members may have different times meanwhile (ADR 0058). To say the same again does nothing.
    fn set_times(&self, _times: RaftTiming) {}

    /// The last entry applied here.
    fn applied(&self) -> LogId;

    /// As [`Consensus::leading_term`], once this member has applied an entry of that term: so it knows all that was
    /// committed before.
    fn ready_term(&self) -> Option<Term> {
        self.leading_term().filter(|term| self.applied().term == *term)
    }

    /// The last entry that the newest snapshot here covers.
    fn snapshot_last(&self) -> Option<LogId>;

    /// The reason why the newest snapshot here could not be written to disk yet. It is retried; nothing is purged
    /// meanwhile.
    fn unsaved_snapshot(&self) -> Option<String> {
        None
    }

    /// Bytes of the log that are live here.
    fn live_bytes(&self) -> u64;

    /// Whether data is to be sealed before it is submitted: this member's journal is sealed, and stores sealed data as
    /// it came.
    fn seals(&self) -> bool {
        false
    }

    /// Passes an entry to the group; with `term`, only if this member leads in exactly that term. `reply` gets the
    /// entry's outcome, also if this returns an error. Once this has returned, nothing withdraws the entry. Entries
    /// are appended in the order in which their futures end.
    ///
    /// # Errors
    /// `Stopped`, or `BadPayload` before anything happened.
    fn submit(&self, term: Option<Term>, payload: Bytes, reply: Reply) -> BoxFuture<'_, Result<(), ProposeError>>;

    /// [`Consensus::submit`], then waits at most `limit`.
    ///
    /// # Errors
    /// [`ProposeError`]; `Unknown` after `limit`.
    fn propose(&self, term: Option<Term>, payload: Bytes, limit: Duration) -> BoxFuture<'_, Outcome> {
        let all = async move {
            let (sender, outcome) = oneshot::channel();
            // Fails if nobody waits any more.
            self.submit(term, payload, Reply::new(move |outcome| drop(sender.send(outcome)))).await?;
            outcome.await.unwrap_or_else(|_| Err(dropped()))
        };
        Box::pin(async move {
            tokio::time::timeout(limit, all)
                .await
                .unwrap_or_else(|_| Err(ProposeError::Unknown { reason: format!("no answer within {limit:?}") }))
        })
    }

    /// Part of one entry's payload, from memory or from the journal, checked (R9).
    ///
    /// # Errors
    /// The entry was purged meanwhile (look up its place again), is corrupt, or an I/O error.
    fn read_log(&self, index: LogIndex, offset: u32, len: usize) -> BoxFuture<'_, Result<Bytes, ReadError>>;

    /// Like [`Consensus::read_log`] for each of `places`, in their order; cheaper than one by one.
    ///
    /// # Errors
    /// The first error.
    fn read_log_many(&self, places: Vec<ReadPlace>) -> BoxFuture<'_, Result<Vec<Bytes>, ReadError>> {
        Box::pin(async move {
            let mut found = Vec::with_capacity(places.len());
            for ReadPlace { index, offset, len } in places {
                found.push(self.read_log(index, offset, len).await?);
            }
            Ok(found)
        })
    }

    /// Builds a snapshot if the state machine has a newer one, and purges what it covers. Returns at once.
    ///
    /// # Errors
    /// The group has stopped.
    fn trigger_snapshot(&self) -> BoxFuture<'_, Result<(), GroupError>>;

    /// The group as this member sees it.
    fn status(&self) -> GroupStatus;

    /// Asks `to` to take over. The caller MUST have stopped serving in this term before (design, "Who serves").
    /// Returns at once.
    ///
    /// # Errors
    /// The group has stopped.
    fn transfer_leader(&self, _to: MemberId) -> BoxFuture<'_, Result<(), GroupError>> {
        fixed(self.id())
    }

    /// Stands for election now, with a pre-vote.
    ///
    /// # Errors
    /// The group has stopped.
    fn stand_for_election(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        fixed(self.id())
    }

    /// Gives a group its first members. Safe to call at several of them with the same list; without effect once done.
    ///
    /// # Errors
    /// The list is refused.
    fn initialize<'a>(&'a self, _members: &'a BTreeMap<MemberId, String>) -> BoxFuture<'a, Result<(), GroupError>> {
        fixed(self.id())
    }

    /// Whether the group has ever had members here.
    ///
    /// # Errors
    /// The group has stopped.
    fn is_initialized(&self) -> BoxFuture<'_, Result<bool, GroupError>> {
        Box::pin(ready(Ok(true)))
    }

    /// With `aside`, this member stands for no election from now on. It still votes, and keeps a leadership that it
    /// has.
    fn stand_aside(&self, _aside: bool) {}

    /// Time since a leader was last heard here; zero while this member leads.
    fn unheard(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether a change of members that this process began is under way. Its intermediate states must not be judged.
    fn is_changing(&self) -> bool {
        false
    }

    /// Whether the other members that answer could remove this member from the group and continue. Only the leader
    /// knows.
    fn may_do_without_me(&self) -> bool {
        false
    }

    /// Adds learners, at their addresses. Only at the leader, and only while entry `seen` is the newest membership.
    ///
    /// # Errors
    /// `Refused` if this member does not lead, the membership is newer than `seen`, or another change is under way;
    /// `Late` after `limit`: then the change continues.
    fn add_learners<'a>(
        &'a self,
        _members: &'a BTreeMap<MemberId, String>,
        _seen: Option<LogId>,
        _limit: Duration,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        fixed(self.id())
    }

    /// Removes learners. Only at the leader.
    ///
    /// # Errors
    /// As [`Consensus::add_learners`].
    fn drop_learners<'a>(
        &'a self,
        _members: &'a BTreeSet<MemberId>,
        _seen: Option<LogId>,
        _limit: Duration,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        fixed(self.id())
    }

    /// Makes `voters` the voters, through a joint membership. A voter that is not in the list leaves the group. Only at
    /// the leader. It MUST know that a majority of the old and of the new voters answers, because the change cannot be
    /// undone.
    ///
    /// # Errors
    /// As [`Consensus::add_learners`].
    fn change_voters<'a>(
        &'a self,
        _voters: &'a BTreeSet<MemberId>,
        _seen: Option<LogId>,
        _limit: Duration,
    ) -> BoxFuture<'a, Result<(), GroupError>> {
        fixed(self.id())
    }

    /// Ends the joint membership that entry `seen` began and that no leader has ended: from then on only the newer set
    /// decides. This is the entry that the leader of the change would have proposed next. Only at the leader.
    ///
    /// # Errors
    /// As [`Consensus::add_learners`].
    fn end_change(&self, _seen: Option<LogId>, _limit: Duration) -> BoxFuture<'_, Result<(), GroupError>> {
        fixed(self.id())
    }
}

fn fixed<T: Send + 'static>(group: GroupId) -> BoxFuture<'static, Result<T, GroupError>> {
    let reason = "members and leader of this group cannot be changed through it".to_string();
    Box::pin(ready(Err(GroupError::Refused { group, reason })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// R12: who waits must hear that nothing is known, and never wait for ever.
    #[test]
    fn a_reply_is_told_once_and_a_dropped_one_says_that_nothing_is_known() {
        let (told, heard) = mpsc::channel();
        let reply = || {
            let told = told.clone();
            Reply::new(move |outcome: Outcome| told.send(outcome.err()).expect("the test listens"))
        };
        reply().send(Err(ProposeError::NotLeader { leader: None }));
        drop(reply());
        drop(told);
        let heard: Vec<_> = heard.iter().collect();
        assert_eq!(heard, [Some(ProposeError::NotLeader { leader: None }), Some(dropped())]);
    }
}
