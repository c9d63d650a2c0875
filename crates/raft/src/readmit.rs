//! How a member that has lost part of a group's log gets out of that group and back into it (R9): the asking side, and what
//! becomes of the group here. The stages are in `quarantine`; the leader's side is `Group::expel`.

use crate::group::Group;
use crate::node::{NodeError, RaftNode};
use crate::proto::{self, peer_client::PeerClient, readmit_reply::Result as Outcome};
use crate::quarantine::{self, Quarantine, Stage};
use crate::snapshot_file;
use crate::wire::{META_CLUSTER, META_FROM, META_GROUP, META_TO};
use holdfast_log::CorruptRecord;
use holdfast_types::{GroupId, LogId, MemberId};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tonic::Request;
use tonic::metadata::MetadataValue;

/// How long a peer may take to answer: taking a member out needs two rounds of the group's quorum.
const ASK_LIMIT: Duration = Duration::from_secs(8);

/// How often a group that learns is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A group that is being healed, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Healing {
    /// The group.
    pub group: GroupId,
    /// What was found.
    pub record: CorruptRecord,
    /// The entry of the membership without this member, once there is one: the group learns again.
    pub since: Option<LogId>,
}

/// A group was not let in again; asked again later.
#[derive(Debug, thiserror::Error)]
pub enum ReadmitError {
    /// Nobody could, now; each peer's answer.
    #[error("no gateway could take this member out of group {group} yet: {}", .answers.join("; "))]
    Nobody {
        /// The group.
        group: GroupId,
        /// What each peer said.
        answers: Vec<String>,
    },
    /// It is not quarantined.
    #[error("group {group} is not quarantined here")]
    NotDamaged {
        /// The group.
        group: GroupId,
    },
    /// The journal or the disk refused.
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

    /// Groups that were healed since the process started.
    pub fn healed(&self) -> u64 {
        self.healed_count()
    }

    /// Asks `peers` (member and address, `HOST:PORT`) to take this member out of the quarantined group `id`; once its leader
    /// did, drops what is left of the group here, so that [`RaftNode::start_group`] starts it as a newcomer.
    ///
    /// # Errors
    /// [`ReadmitError`]; the group stays quarantined, and the caller asks again.
    pub async fn readmit(&self, id: GroupId, peers: &BTreeMap<MemberId, String>) -> Result<LogId, ReadmitError> {
        let io = |source| ReadmitError::Io { group: id, source };
        let dir = self.snapshots_dir();
        let note = quarantine::load(dir, id).map_err(io)?.ok_or(ReadmitError::NotDamaged { group: id })?;
        if let Stage::Rejoining { since } = note.stage {
            return Ok(since);
        }
        let mut answers = Vec::new();
        for (peer, addr) in peers.iter().filter(|(peer, _)| **peer != self.member()) {
            match self.ask_out(id, *peer, addr, &note.record.to_string()).await {
                Ok(since) => {
                    // Q3: only now, and in this order; a crash in between asks again.
                    let (from, log) = (dir.to_path_buf(), self.log().group(id));
                    holdfast_log::spawn_blocking(move || snapshot_file::remove(&from, id))
                        .await
                        .map_err(|e| io(io::Error::other(e)))?
                        .map_err(io)?;
                    log.drop_group().await.map_err(io)?;
                    let next = Quarantine { stage: Stage::Rejoining { since }, ..note.clone() };
                    quarantine::save(dir, id, &next).map_err(io)?;
                    self.note_healing(Healing { group: id, record: note.record.clone(), since: Some(since) });
                    return Ok(since);
                }
                Err(answer) => answers.push(format!("{peer}: {answer}")),
            }
        }
        Err(ReadmitError::Nobody { group: id, answers })
    }

    async fn ask_out(&self, id: GroupId, peer: MemberId, addr: &str, reason: &str) -> Result<LogId, String> {
        let channel = self.channels().get(peer, addr, false).map_err(|e| e.to_string())?;
        let request = self.addressed(proto::ReadmitRequest { reason: reason.to_string() }, id, peer);
        let mut client = PeerClient::new(channel);
        let reply = tokio::time::timeout(ASK_LIMIT, client.readmit(request))
            .await
            .map_err(|_| format!("no answer within {ASK_LIMIT:?}"))?
            .map_err(|status| status.message().to_string())?;
        // What follows from its word is that a log and a snapshot are dropped: not from that of an older or a cloned life (C3).
        self.channels().lives.check(peer, reply.metadata())?;
        match reply.into_inner().result {
            Some(Outcome::Out(since)) => Ok(LogId::new(since.term, since.index)),
            Some(Outcome::Leader(0)) => Err("does not lead, and knows of no leader".to_string()),
            Some(Outcome::Leader(leader)) => Err(format!("does not lead, {} does", MemberId(leader))),
            Some(Outcome::Busy(why)) => Err(why),
            None => Err("an answer without a result".to_string()),
        }
    }

    /// `message` with the metadata that every call between gateways carries.
    pub(crate) fn addressed<T>(&self, message: T, group: GroupId, to: MemberId) -> Request<T> {
        let mut request = Request::new(message);
        let meta = request.metadata_mut();
        meta.insert(META_GROUP, MetadataValue::from(group.0));
        meta.insert(META_FROM, MetadataValue::from(self.member().0));
        meta.insert(META_TO, MetadataValue::from(to.0));
        if let Ok(cluster) = MetadataValue::try_from(format!("{:032x}", self.cluster())) {
            meta.insert(META_CLUSTER, cluster);
        }
        self.channels().stamp(meta);
        request
    }

    /// The start of a group that looks damaged: noted durably (Q2), named, refused.
    pub(crate) fn quarantine(&self, id: GroupId, record: CorruptRecord) -> NodeError {
        let note = Quarantine { record: record.clone(), stage: Stage::Out };
        if let Err(source) = quarantine::save(self.snapshots_dir(), id, &note) {
            return NodeError::Io { group: id, source };
        }
        tracing::error!(
            group = %id, file = %record.file, offset = record.offset, found = %record.found, expected = %record.expected,
            "R9: what was synced does not read back; the group does not start here before it is healed"
        );
        self.damaged(id, record)
    }

    pub(crate) fn damaged(&self, id: GroupId, record: CorruptRecord) -> NodeError {
        self.note_healing(Healing { group: id, record: record.clone(), since: None });
        NodeError::Damaged { group: id, member: self.member(), record }
    }

    /// Watches a group that learns again until it has this member as a voter; the note goes then.
    pub(crate) fn watch_rejoining(&self, group: Group, since: LogId) {
        let node = self.downgrade();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let Some(node) = node.upgrade() else { return };
                let status = group.status();
                if status.leadership.stopped {
                    return;
                }
                let voter = status.members.iter().any(|m| m.member == node.member() && m.voter);
                // The membership that we left may be replayed to us on the way: only a later one counts.
                let past = status.applied.is_some_and(|applied| applied.index > since.index);
                if !voter || !past {
                    continue;
                }
                if let Err(error) = quarantine::clear(node.snapshots_dir(), group.id()) {
                    tracing::warn!(group = %group.id(), %error, "healed, but its note of quarantine does not go away");
                    continue;
                }
                tracing::info!(group = %group.id(), %since, "healed from its peers: a voter again");
                node.healed_one(group.id());
                return;
            }
        });
    }
}
