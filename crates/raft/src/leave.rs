//! How a member leaves a group whose set is placed elsewhere, gives back what it has of it, and comes back to it later
//! (docs/adr/0053-voters-of-a-set.md). The leader's side is `RaftGroup::without`.
//!
//! ```text
//!   a leader says: out ──▶ stopped ──▶ the leader says it again ──▶ note Going{since} ──▶ snapshot and log dropped ──▶ note Gone
//!                             │ not out any more: started again                                  │ after a crash: at the next start
//!                             ▼                                                                  ▼
//!                          a member                note gone ◀── voter again ◀── started, empty, learns ◀── placed here again
//! ```
//! VOTERS-V3  A member drops its log and its vote only after it has stopped the group, and after the group's leader has
//!     said, when asked *after that*, that the newest membership is committed and without this member (`since`). From
//!     the stop on it acknowledges nothing and votes for nobody, so nobody counts on it later. An older answer is not
//!     enough: the member may have been let in again meanwhile, and may have acknowledged something. If the answer is
//!     another one, the group starts again, under a vote embargo as after a process start: it has forgotten what it
//!     promised (R3), and begins with what is durable.
//! VOTERS-V4  The note is durable before anything is dropped. It stays until this member is a voter again: it begins
//!     with an empty log and without its vote, so it gives no vote to a candidate whose log ends before `since`, takes
//!     nothing from a leader of an earlier term (as QUARANTINE-Q4), and does not give the group its first members
//!     again. It stands for no election before its log has `since`: the memberships that it learns on the way may name
//!     voters that were left behind in them, or itself alone. The note names the voters of `since`: if the set is
//!     deleted, this member may be the only one that can report that the voters before them do not count any more
//!     (END-E3).

use crate::group::RaftGroup;
use crate::left_note::{self, Left, Stage};
use crate::node::{NodeError, RaftNode};
use crate::peer_call::Said;
use crate::proto::peer_client::PeerClient;
use crate::proto::{self, leave_reply::Result as Outcome};
use crate::{quarantine, snapshot_file};
use futures_util::future::BoxFuture;
use holdfast_log::CorruptRecord;
use holdfast_types::{GroupId, LogId, MemberId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tonic::Request;
use tonic::transport::Channel;

/// Time limit for the answer of a peer. The leader may need to hear from its quorum.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// What this disk has of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nothing, and it never had, as far as is known.
    Nothing,
    /// Nothing but the note that this member has left.
    Left,
    /// A log, a vote, a snapshot or a quarantine. Others may count on it.
    Something,
}

/// A committed membership without this member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// Its entry.
    pub since: LogId,
    /// Its voters: one set, or two during a change of voters.
    pub voters: Vec<BTreeSet<MemberId>>,
}

/// This member has not left the group; ask again later.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// No peer said that the group is without this member; each peer's answer.
    #[error("no gateway says that group {group} is without this member: {}", .answers.join("; "))]
    Nobody {
        /// The group.
        group: GroupId,
        /// The answer of each peer.
        answers: Vec<String>,
    },
    /// An error of the journal or the disk.
    #[error("group {group}: {source}")]
    Io {
        /// The group.
        group: GroupId,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl RaftNode {
    /// What this disk has of group `id`. What cannot be read counts as something.
    pub fn part_of(&self, id: GroupId) -> Part {
        let (dir, state) = (self.snapshots_dir(), self.log().group(id).state());
        let empty = state.last.is_none() && state.vote.is_none() && state.purged.is_none();
        let snapshot = snapshot_file::exists(dir, id).unwrap_or(true);
        match left_note::load(dir, id) {
            Ok(Some(Ok(Left { stage: Stage::Gone, .. }))) if empty && !snapshot => Part::Left,
            Ok(None) if empty && !snapshot && state.damaged.is_none() => match quarantine::load(dir, id) {
                Ok(None) => Part::Nothing,
                _ => Part::Something,
            },
            _ => Part::Something,
        }
    }

    /// Whether this member comes back to group `id`, which it had left. If so, it must not give it its first members.
    pub fn is_returning(&self, id: GroupId) -> bool {
        self.returning_map().contains_key(&id)
    }

    /// Asks `peers` (member and address, `HOST:PORT`) whether group `id` is without this member. Changes nothing.
    ///
    /// # Errors
    /// [`LeaveError::Nobody`]: it is a member still, or the leader could not be asked.
    pub fn ask_whether_out<'a>(
        &'a self,
        id: GroupId,
        peers: &'a BTreeMap<MemberId, String>,
    ) -> BoxFuture<'a, Result<Out, LeaveError>> {
        Box::pin(async move {
            // Because of the answer we drop a log and a vote (CLUSTER-C3).
            let call = |mut peer: PeerClient<Channel>, request: Request<proto::LeaveRequest>| async move {
                peer.leave(request).await
            };
            let asked = self.ask_in_turn(id, peers, ASK_LIMIT, proto::LeaveRequest {}, call, out_of).await;
            asked.map_err(|answers| LeaveError::Nobody { group: id, answers })
        })
    }

    /// Stops group `id` here, asks `peers` whether it is without this member, and if so drops what this disk has of it
    /// (VOTERS-V3). The caller MUST have stopped everything that uses the group, and MUST NOT start it meanwhile.
    ///
    /// # Errors
    /// [`LeaveError`]. The group is stopped then, and whole, or its next start drops the rest: the caller starts it
    /// again, or calls this again.
    ///
    /// # Panics
    /// For group 0, which every member has.
    pub fn leave<'a>(
        &'a self,
        id: GroupId,
        peers: &'a BTreeMap<MemberId, String>,
    ) -> BoxFuture<'a, Result<LogId, LeaveError>> {
        Box::pin(async move {
            assert!(id != GroupId::CLUSTER, "R11: no member leaves group 0 alone");
            let io = |source| LeaveError::Io { group: id, source };
            self.stop_group(id).await;
            self.note_stopped(id);
            // What it had appended is durable before it may start again: it would acknowledge that at once.
            let log = self.log().group(id);
            if let Some(vote) = log.state().vote {
                log.save_vote(vote).await.map_err(io)?;
            }
            // Before the new note: the task that watches an earlier return must not take that one away.
            self.end_return(id).await;
            let Out { since, voters } = self.ask_whether_out(id, peers).await?;
            let note = Left { group: id, stage: Stage::Going, since, voters };
            self.drop_part(note).await.map_err(io)?;
            tracing::info!(group = %id, %since, "this member has left the group; its log here is dropped");
            Ok(since)
        })
    }

    /// Writes the note, and drops snapshot, quarantine and log of a group that was left (VOTERS-V4). May be repeated:
    /// then the note is written again, since the first attempt may have ended before it was durable.
    async fn drop_part(&self, note: Left) -> io::Result<()> {
        let (dir, id) = (self.snapshots_dir().to_path_buf(), note.group);
        let (from, going) = (dir.clone(), note.clone());
        let removed = holdfast_log::spawn_blocking(move || {
            left_note::save(&from, &going)?;
            snapshot_file::remove(&from, id)?;
            quarantine::clear(&from, id)
        });
        removed.await.map_err(io::Error::other)??;
        self.forget_healing(id);
        self.log().group(id).drop_group().await?;
        left_note::save(&dir, &Left { stage: Stage::Gone, ..note })
    }

    /// Before a start: if this member had left the group, the entry that a leader must have (VOTERS-V4). What a crash
    /// left of the former part is dropped.
    pub(crate) async fn returning_since(&self, id: GroupId) -> Result<Option<LogId>, NodeError> {
        let io = |source| NodeError::Io { group: id, source };
        let note = match left_note::load(self.snapshots_dir(), id).map_err(io)? {
            None => return Ok(None),
            Some(Ok(note)) => note,
            Some(Err(found)) => {
                // The log may be empty, and it is unknown which leaders may be followed: others have to let it in.
                let expected = "a whole note that this member has left".to_string();
                let record = CorruptRecord { file: format!("group-{}.left", id.0), offset: 0, expected, found };
                let error = self.quarantine(id, record);
                if matches!(error, NodeError::Damaged { .. }) {
                    left_note::clear(self.snapshots_dir(), id).map_err(io)?;
                }
                return Err(error);
            }
        };
        let since = note.since;
        if note.stage == Stage::Going {
            self.drop_part(note).await.map_err(io)?;
        }
        Ok(Some(since))
    }

    /// Waits until this member is a voter again, as of an entry after `since`; then removes the note.
    pub(crate) fn watch_returning(&self, group: Arc<RaftGroup>, since: LogId) {
        let node = self.downgrade();
        tokio::spawn(async move {
            while let Some(node) = node.voter_again(&group, since).await {
                match node.returned(group.id(), since).await {
                    Ok(()) => return,
                    Err(error) => {
                        let group = group.id();
                        tracing::warn!(%group, %error, "this member votes again, but the note that it had left cannot be removed; trying again");
                    }
                }
            }
        });
    }
}

/// The answer of a peer.
fn out_of(reply: proto::LeaveReply) -> Said<Out> {
    match reply.result {
        Some(Outcome::Out(proto::Left { since: Some(since), sets })) => {
            let set = |set: proto::EndedVoters| set.members.into_iter().map(MemberId).collect();
            Said::Leads(Out { since: LogId::new(since.term, since.index), voters: sets.into_iter().map(set).collect() })
        }
        Some(Outcome::Out(proto::Left { since: None, .. })) | None => Said::Nothing,
        Some(Outcome::Leader(leader)) => Said::Leader(leader),
        Some(Outcome::Busy(why)) => Said::Busy(why),
    }
}
