//! How a member that has lost part of a group's log leaves that group and comes back (R9): its checks of itself, the
//! peers that it asks, and what happens to the group here. The stages are in `quarantine`; the leader's side is
//! `RaftGroup::expel`.

use crate::group::RaftGroup;
use crate::node::{NodeError, RaftNode, WeakNode};
use crate::peer_call::Said;
use crate::proto::peer_client::PeerClient;
use crate::proto::{self, readmit_reply::Result as Outcome};
use crate::quarantine::{self, Healing, Quarantine, Stage};
use crate::snapshot_file;
use futures_util::future::BoxFuture;
use holdfast_log::CorruptRecord;
use holdfast_types::{GroupId, LogId, MemberId};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tonic::Request;
use tonic::transport::Channel;

/// Time limit for the answer of a peer: the removal of a member needs two rounds of the group's quorum.
const ASK_LIMIT: Duration = Duration::from_secs(8);

/// Interval between checks of a group that learns again.
const LOOK: Duration = Duration::from_millis(100);

/// This member was not removed from a quarantined group; ask again later.
#[derive(Debug, thiserror::Error)]
pub enum ReadmitError {
    /// No peer could remove it now; each peer's answer.
    #[error("no gateway could remove this member from group {group} yet: {}", .answers.join("; "))]
    Nobody {
        /// The group.
        group: GroupId,
        /// The answer of each peer.
        answers: Vec<String>,
    },
    /// It is not quarantined.
    #[error("group {group} is not quarantined here")]
    NotDamaged {
        /// The group.
        group: GroupId,
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
    /// Groups that are being healed here, or wait for it.
    pub fn healing(&self) -> Vec<Healing> {
        self.healing_map().values().cloned().collect()
    }

    /// Number of groups that were healed since the process started.
    pub fn healed(&self) -> u64 {
        self.healed_count()
    }

    /// Asks `peers` (member and address, `HOST:PORT`) to remove this member from the quarantined group `id`. When its
    /// leader has done so, drops what is left of the group here, so that [`RaftNode::start_group`] starts it as a
    /// newcomer.
    ///
    /// # Errors
    /// [`ReadmitError`]; the group stays quarantined, and the caller asks again.
    pub fn readmit<'a>(
        &'a self,
        id: GroupId,
        peers: &'a BTreeMap<MemberId, String>,
    ) -> BoxFuture<'a, Result<LogId, ReadmitError>> {
        Box::pin(async move {
            let io = |source| ReadmitError::Io { group: id, source };
            let dir = self.snapshots_dir();
            let note = quarantine::load(dir, id).map_err(io)?.ok_or(ReadmitError::NotDamaged { group: id })?;
            if let Stage::Rejoining { since } = note.stage {
                holdfast_reached::reached!("readmission: asked for when it is done");
                return Ok(since);
            }
            holdfast_reached::reached!(
                "readmission: begun again with an empty log",
                self.log().group(id).state().last.is_none()
            );
            holdfast_reached::reached!(
                "readmission: begun again with a log and no snapshot",
                self.log().group(id).state().purged.is_some() && !dir.join(format!("group-{}.snapshot", id.0)).exists()
            );
            // Because of the answer we drop a log and a snapshot (CLUSTER-C3).
            let message = proto::ReadmitRequest { reason: note.record.to_string() };
            let call = |mut peer: PeerClient<Channel>, request: Request<proto::ReadmitRequest>| async move {
                peer.readmit(request).await
            };
            let asked = self.ask_in_turn(id, peers, ASK_LIMIT, message, call, out_of).await;
            let since = asked.map_err(|answers| ReadmitError::Nobody { group: id, answers })?;
            // QUARANTINE-Q3: only now, and in this order; after a crash in between, this member asks again.
            let (from, log) = (dir.to_path_buf(), self.log().group(id));
            holdfast_log::spawn_blocking(move || snapshot_file::remove(&from, id))
                .await
                .map_err(|e| io(io::Error::other(e)))?
                .map_err(io)?;
            log.drop_group().await.map_err(io)?;
            let next = Quarantine { stage: Stage::Rejoining { since }, ..note.clone() };
            quarantine::save(dir, id, &next).map_err(io)?;
            self.note_healing(Healing { group: id, record: note.record, since: Some(since) });
            Ok(since)
        })
    }

    /// A leader says that this member does not have an entry that it had acknowledged. If that is true, quarantines the
    /// group and ends the process (R11).
    pub(crate) fn denied(&self, group: &RaftGroup, acked: LogId) -> bool {
        let Some(found) = group.lacks(acked) else { return false };
        let (id, expected) = (group.id(), format!("{acked}, which this member had acknowledged"));
        let record = CorruptRecord { file: format!("(log of group {})", id.0), offset: 0, expected, found };
        let why = format!("group {id}: this member's log went backwards: {record}");
        holdfast_reached::reached!("reversion: this log went backwards");
        // The note first: the next start must not take part with this log (QUARANTINE-Q2).
        let error = self.quarantine(id, record);
        tracing::error!(%why, %error, "R11: this process exits");
        (self.config().abort)(&why);
        true
    }

    /// A record of the running group `id`, which this member had acknowledged, cannot be read back correctly (R9).
    /// Quarantines the group and ends the process: the next start heals it from its peers. The caller knows that they
    /// are a quorum without this member ([`crate::Consensus::may_do_without_me`]), and that a second read failed too.
    ///
    /// Does nothing if the note cannot be written: without it the next start would have to find the record by itself.
    pub fn rotten(&self, id: GroupId, record: CorruptRecord) {
        let why = format!("group {id}: data that this member had synced does not read back: {record}");
        match self.quarantine(id, record) {
            NodeError::Damaged { .. } => {
                holdfast_reached::reached!("quarantine: a record of a running group does not read back");
                tracing::error!(%why, "R9: this process exits; its next start is healed from its peers");
                (self.config().abort)(&why);
            }
            error => tracing::error!(%why, %error, "the group could not be quarantined; trying again"),
        }
    }

    /// Writes the note of quarantine for a damaged group (QUARANTINE-Q2), and logs the record. The group does not
    /// start.
    pub(crate) fn quarantine(&self, id: GroupId, record: CorruptRecord) -> NodeError {
        holdfast_reached::reached!("quarantine: a damaged group is taken out");
        let note = Quarantine { record: record.clone(), stage: Stage::Out };
        if let Err(source) = quarantine::save(self.snapshots_dir(), id, &note) {
            return NodeError::Io { group: id, source };
        }
        tracing::error!(
            group = %id, file = %record.file, offset = record.offset, found = %record.found, expected = %record.expected,
            "R9: synced data cannot be read back; the group does not start here before it is healed"
        );
        self.damaged(id, record)
    }

    pub(crate) fn damaged(&self, id: GroupId, record: CorruptRecord) -> NodeError {
        self.note_healing(Healing { group: id, record: record.clone(), since: None });
        NodeError::Damaged { group: id, member: self.member(), record }
    }

    /// Waits until the group that learns again has this member as a voter, or group 0 as a learner; then removes the
    /// note.
    pub(crate) fn watch_rejoining(&self, group: Arc<RaftGroup>, since: LogId) {
        let node = self.downgrade();
        tokio::spawn(async move {
            while let Some(node) = node.voter_again(&group, since).await {
                if let Err(error) = quarantine::clear(node.snapshots_dir(), group.id()) {
                    tracing::warn!(group = %group.id(), %error, "healed, but its note of quarantine cannot be removed; trying again");
                    continue;
                }
                tracing::info!(group = %group.id(), %since, "healed from its peers: takes part in the group again");
                holdfast_reached::reached!("readmission: a voter again");
                node.healed_one(group.id());
                return;
            }
        });
    }
}

impl WeakNode {
    /// Waits until this member, which learns the group again, is a voter of it as of an entry after `since`. In group 0
    /// a learner has come back as well: another member may have its vote by now (CLUSTERVOTERS-V1). `None`: the group
    /// or the node has stopped.
    pub(crate) async fn voter_again(&self, group: &RaftGroup, since: LogId) -> Option<RaftNode> {
        loop {
            tokio::time::sleep(LOOK).await;
            let node = self.upgrade()?;
            let status = group.status();
            if status.leadership.stopped {
                return None;
            }
            let me = status.members.iter().find(|m| m.member == node.member());
            let (listed, voter) = (me.is_some(), me.is_some_and(|m| m.voter));
            // The memberships before `since`, and the one without us, may be replayed on the way.
            let past = status.applied.is_some_and(|applied| applied.index > since.index);
            holdfast_reached::reached!(
                "readmission: the membership before the removal is replayed",
                voter && !past && node.is_healing(group.id())
            );
            // After `past` was looked at: when this ends, the log has `since`.
            node.look_at_floor(group);
            drop(node);
            let back = voter || listed && group.id() == GroupId::CLUSTER;
            if back && past && is_durable(group).await {
                return self.upgrade();
            }
        }
    }
}

/// Whether all that the group has here is on disk. Once the note of the healing is removed, a start without it must not
/// find a log that ends before the removal: it could vote for a candidate that lacks what this member had acknowledged
/// (QUARANTINE-Q4). What is applied may not be on disk yet, and who gets a vote may lack some entries.
async fn is_durable(group: &RaftGroup) -> bool {
    if group.parts.shared.unsaved().is_some() {
        return false;
    }
    // Nothing to append: it is told once everything before it is durable (LOG-L1).
    let (told, done) = tokio::sync::oneshot::channel();
    group.parts.log.append(Vec::new(), move |result| {
        let _ = told.send(result.is_ok());
    });
    // The end of the journal ends this as well.
    done.await.unwrap_or(false)
}

/// The answer of a peer.
fn out_of(reply: proto::ReadmitReply) -> Said<LogId> {
    match reply.result {
        Some(Outcome::Out(since)) => Said::Leads(LogId::new(since.term, since.index)),
        Some(Outcome::Leader(leader)) => Said::Leader(leader),
        Some(Outcome::Busy(why)) => Said::Busy(why),
        None => Said::Nothing,
    }
}
