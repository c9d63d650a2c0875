//! Ends a group on this node for ever, because its set is deleted: what is removed, in which order, and the note that
//! keeps the group from ever starting again (docs/adr/0029-deletion-of-sets.md).
//!
//! ```text
//!   running, or not ──▶ note Ending ──▶ stopped ──▶ note Ending{voters} ──▶ snapshot, quarantine, log dropped ──▶ note Ended{voters}
//!                           │ no start from here on, also after a crash; done again from here
//! ```
//! END-E1  The note is durable before anything is dropped. An emptied log without a note would pass for a healthy new
//!     group, and a node that has not heard of the deletion could give it its first members again.
//! END-E2  This member reports the end only when nothing of the group is left here and nothing of it runs.
//! END-E3  The reported voters are those in the log when nothing was appended to it any more, so a member that agreed
//!     to a change of voters reports that change. One whose log is damaged, or was dropped for that, may have agreed to
//!     one that it knows no more. It reports an empty set of voters, of which no majority can have ended the group: so
//!     older voters, of a member that was behind, do not pass for the newest. The note stays: it takes a few dozen
//!     bytes, and a group's number is never used again.

use crate::end_marker::{self, Ended, Stage};
use crate::node::{NodeError, RaftNode};
use crate::peer_call::To;
use crate::proto;
use crate::quarantine::{self, Quarantine};
use crate::wire::{MEMBERSHIP_MARK, membership_from_bytes, vote_from_bytes, voters_in};
use crate::{left_note, snapshot_file};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_log::GroupLog;
use holdfast_types::{GroupId, LogId, MemberId};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// How long a peer may take to answer whether it has ended a group.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Number of entries read at once in search of a membership, from the newest on.
const LOOK_BACK: u64 = 64;

/// An entry that named voters, and these: one set, or two during a change.
type Voters = (LogId, Vec<BTreeSet<MemberId>>);

/// The newest membership entry of `log`, committed or not, as openraft counts it.
async fn newest_in(log: &GroupLog) -> io::Result<Option<Voters>> {
    let state = log.state();
    let (Some(first), Some(last)) = (state.first, state.last) else { return Ok(None) };
    let mut end = last.index.0 + 1;
    while end > first.0 {
        let begin = end.saturating_sub(LOOK_BACK).max(first.0);
        let mut at = begin;
        let mut found = None;
        while at < end {
            let entries = log.entries(at..end, usize::MAX).await?;
            let Some(newest) = entries.last().map(|entry| entry.id.index.0) else { break };
            for entry in entries.iter().filter(|entry| entry.payload.first() == Some(&MEMBERSHIP_MARK)) {
                let membership = membership_from_bytes(entry.payload.get(1..).unwrap_or_default())
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
                found = Some((entry.id, voters_in(&membership)));
            }
            at = newest + 1;
        }
        if found.is_some() {
            return Ok(found);
        }
        end = begin;
    }
    Ok(None)
}

impl RaftNode {
    /// The voters of a group that no longer runs here (END-E3).
    async fn voters_of(&self, id: GroupId) -> Ended {
        self.told_voters(id).await.map_or_else(
            |error| {
                tracing::warn!(group = %id, %error, "the voters of an ended group cannot be read here");
                Ended::unknown()
            },
            |voters| Ended { voters },
        )
    }

    /// What log, snapshot and notes say of the voters.
    async fn told_voters(&self, id: GroupId) -> io::Result<Option<Voters>> {
        let (dir, log) = (self.snapshots_dir(), self.log().group(id));
        let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        // The log that was dropped may have had any voters, up to those without this member.
        let lost = match quarantine::load(dir, id)? {
            Some(Quarantine { stage: quarantine::Stage::Out, record }) => return Err(bad(record.to_string())),
            Some(Quarantine { stage: quarantine::Stage::Rejoining { since }, .. }) => {
                Ended::unknown_up_to(since).voters
            }
            None => None,
        };
        // A member that had left knows the voters of then: it may have agreed to them, and its log is gone (VOTERS-V4).
        let left = left_note::load(dir, id)?.transpose().map_err(bad)?;
        // The log alone may show older voters than the snapshot.
        let stored = snapshot_file::load(dir, id, self.config().sealing.as_ref())?;
        // Where a member was leaving, a part may be gone; its note knows better.
        let whole = left.as_ref().is_none_or(|left| left.stage == left_note::Stage::Gone);
        let covered = stored.as_ref().and_then(snapshot_file::StoredSnapshot::last);
        let vote = |bytes: &Bytes| vote_from_bytes(bytes).is_some();
        if whole && let Some(record) = quarantine::unsound(id, &log.state(), covered, vote) {
            return Err(bad(record.to_string()));
        }
        let in_log = newest_in(&log).await?;
        let in_snapshot = || {
            let membership = stored?.meta.last_membership;
            Some((membership.log_id().as_ref().map(crate::wire::id_from_raft)?, voters_in(membership.membership())))
        };
        let left = left.map(|left| (left.since, left.voters));
        // After a crash between a snapshot and its purge, the log begins before the snapshot. Of two with one entry the
        // last counts, which is known.
        let all = [lost, left, in_log, in_snapshot()];
        Ok(all.into_iter().flatten().max_by_key(|(at, _)| *at))
    }

    /// Ends group `id` here, for ever: it stops, only a note of it is left on this disk, and it is never started again.
    /// May be called again, and must be after an error. The caller MUST have stopped everything that uses the group.
    ///
    /// # Errors
    /// [`NodeError::Io`] when the disk or the journal refuses.
    ///
    /// # Panics
    /// For group 0, which is never ended.
    pub fn end_group(&self, id: GroupId) -> BoxFuture<'_, Result<(), NodeError>> {
        Box::pin(async move {
            assert!(id != GroupId::CLUSTER, "R11: group 0 is not ended");
            let io = |source| NodeError::Io { group: id, source };
            let dir = self.snapshots_dir().to_path_buf();
            let known = match end_marker::load(&dir, id).map_err(io)? {
                Some((Stage::Ended, _)) => return Ok(()),
                Some((Stage::Ending, ended)) => ended,
                None => Ended::default(),
            };
            // END-E1: this comes first, because no start may follow a crash after the stop.
            end_marker::save(&dir, id, Stage::Ending, &known).map_err(io)?;
            self.stop_group(id).await;
            // END-E3: nothing is appended any more. After a crash from here on, the note has the voters.
            holdfast_reached::reached!("end of a group: done again after a crash", known.voters.is_some());
            let ended = if known.voters.is_some() { known } else { self.voters_of(id).await };
            end_marker::save(&dir, id, Stage::Ending, &ended).map_err(io)?;
            let from = dir.clone();
            let removed = holdfast_log::spawn_blocking(move || {
                snapshot_file::remove(&from, id)?;
                quarantine::clear(&from, id)?;
                left_note::clear(&from, id)
            });
            removed.await.map_err(|e| io(io::Error::other(e)))?.map_err(io)?;
            self.forget_healing(id);
            self.forget_returning(id);
            self.forget_stopped(id);
            self.log().group(id).drop_group().await.map_err(io)?;
            end_marker::save(&dir, id, Stage::Ended, &ended).map_err(io)?;
            tracing::info!(group = %id, voters = ?ended.voters, "group ended here permanently");
            Ok(())
        })
    }

    /// Whether group `id` has ended here or begins to, so that it must not start (END-E1). An unreadable note is
    /// reported by the start.
    pub fn is_over(&self, id: GroupId) -> bool {
        end_marker::is_over(self.snapshots_dir(), id).unwrap_or(false)
    }

    /// What this member knows about group `id`, if it has ended it (END-E2).
    ///
    /// # Errors
    /// An error of the disk.
    pub fn ended(&self, id: GroupId) -> io::Result<Option<Ended>> {
        let note = end_marker::load(self.snapshots_dir(), id)?;
        Ok(note.and_then(|(stage, ended)| (stage == Stage::Ended).then_some(ended)))
    }

    /// Asks `peer`, at `addr` (`HOST:PORT`), whether it has ended group `id`; `None` if it has not.
    ///
    /// # Errors
    /// Why it could not be asked, for people.
    pub async fn ask_ended(&self, id: GroupId, peer: MemberId, addr: &str) -> Result<Option<Ended>, String> {
        if peer == self.member() {
            return self.ended(id).map_err(|e| e.to_string());
        }
        let to = To { group: id, peer, addr, limit: ASK_LIMIT };
        let message = proto::EndedRequest {};
        let reply = self.call(to, message, |mut peer, request| async move { peer.ended(request).await }).await?;
        let set = |set: proto::EndedVoters| set.members.into_iter().map(MemberId).collect();
        let at = reply.at.map(|at| LogId::new(at.term, at.index));
        let voters = at.map(|at| (at, reply.sets.into_iter().map(set).collect()));
        Ok(reply.ended.then_some(Ended { voters }))
    }

    /// The answer to [`RaftNode::ask_ended`].
    pub(crate) fn ended_reply(&self, id: GroupId) -> io::Result<proto::EndedReply> {
        let Some(ended) = self.ended(id)? else { return Ok(proto::EndedReply::default()) };
        let (at, sets) = ended.voters.unzip();
        let set = |set: BTreeSet<MemberId>| proto::EndedVoters { members: set.into_iter().map(|id| id.0).collect() };
        Ok(proto::EndedReply {
            ended: true,
            at: at.map(|at| proto::LogId { term: at.term.0, index: at.index.0 }),
            sets: sets.unwrap_or_default().into_iter().map(set).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{RaftMembership, membership_to_bytes};
    use holdfast_log::{Entry, Identity, LogConfig, NodeLog, RealDisk};
    use openraft::impls::BasicNode;
    use std::collections::BTreeMap;

    /// An entry that makes `voter` the only voter.
    fn membership(voter: u64) -> Bytes {
        let nodes = BTreeMap::from([(voter, BasicNode::new("a"))]);
        let membership = RaftMembership::new(vec![BTreeSet::from([voter])], nodes).expect("valid");
        [&[MEMBERSHIP_MARK][..], &membership_to_bytes(&membership)[..]].concat().into()
    }

    /// END-E3: the log is looked through in parts, from its end.
    #[tokio::test]
    async fn the_newest_membership_is_found_however_far_back_it_lies() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file_bytes, bound_bytes, reserve_bytes) = (16 << 20, 256 << 20, 64 << 20);
        let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, ..LogConfig::new(dir.path()) };
        let disk = RealDisk::open(dir.path(), file_bytes, 4).expect("opens");
        let (node, _, mut turns) = NodeLog::open_in_turns(disk, config, Identity::default(), None).expect("opens");
        let (entries, last) = (200, 199);
        let begins = entries - LOOK_BACK;
        let cases = [
            (vec![], None, None),
            (vec![0], None, Some(0)),
            (vec![5], None, Some(5)),
            (vec![5, 130], None, Some(130)),
            (vec![begins - 1, begins], None, Some(begins)),
            (vec![0, begins - 1], None, Some(begins - 1)),
            (vec![0, last], None, Some(last)),
            (vec![5], Some(4), Some(5)),
            (vec![5], Some(5), None),
            (vec![], Some(last), None),
        ];
        for (group, (at, purged, expected)) in (1..).zip(cases) {
            let log = node.group(GroupId(group));
            let payload = |index| if at.contains(&index) { membership(index + 1) } else { Bytes::from_static(b"e") };
            let entry = |index| Entry { id: LogId::new(1, index), payload: payload(index) };
            log.append((0..entries).map(entry).collect(), |done| done.expect("durable"));
            purged.into_iter().for_each(|upto| log.purge_later(LogId::new(1, upto)).expect("queued"));
            turns.turn(false);
            let found = newest_in(&log).await.expect("reads");
            let expected = expected.map(|index| (LogId::new(1, index), vec![BTreeSet::from([MemberId(index + 1)])]));
            assert_eq!(found, expected, "memberships at {at:?}, purged up to {purged:?}");
        }
    }
}
