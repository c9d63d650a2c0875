//! Starts a group on this node.

use crate::acks::Acks;
use crate::config::openraft_config;
use crate::consensus::Group;
use crate::end_marker;
use crate::group::{GroupParts, RaftGroup};
use crate::log_store::{LogStore, VotedTerm};
use crate::machine::{Adapter, Shared, StateMachine};
use crate::network::Network;
use crate::node::{NodeError, RaftNode};
use crate::pacer;
use crate::pacing::Pacing;
use crate::quarantine::{self, Healing, Quarantine, Stage};
use crate::wire::vote_from_bytes;
use crate::{left_note, snapshot_file};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_log::{CorruptRecord, GroupLog};
use holdfast_types::{GroupId, Term};
use std::io;
use std::sync::{Arc, Mutex};

impl RaftNode {
    /// Starts a group: loads its snapshot into `machine`, replays the committed entries, and takes part from then on.
    /// `snapshot_every`: build a snapshot after so many entries; `None` if checkpoints decide.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn start_group(
        &self,
        id: GroupId,
        machine: Arc<dyn StateMachine>,
        snapshot_every: Option<u64>,
    ) -> BoxFuture<'_, Result<Group, NodeError>> {
        Box::pin(async move {
            let group: Group = self.start_local(id, machine, snapshot_every).await?;
            Ok(group)
        })
    }

    /// Prepares the first start of group `id`, if only losses of the journal from before this process keep it from
    /// starting (QUARANTINE-Q5). Otherwise it changes nothing, and the start finds what is damaged. The caller MUST
    /// know that the group was created after this process had begun, and MUST NOT start it meanwhile.
    ///
    /// # Errors
    /// [`NodeError::Io`]: call it again before the group is started.
    ///
    /// # Panics
    /// For group 0, which is older than every member.
    pub fn begin_younger(&self, id: GroupId) -> BoxFuture<'_, Result<(), NodeError>> {
        Box::pin(async move {
            assert!(id != GroupId::CLUSTER, "R11: group 0 is never younger than a member");
            let io = |source| NodeError::Io { group: id, source };
            let (dir, log) = (self.snapshots_dir(), self.log().group(id));
            if !quarantine::only_unknown(&log.state()) {
                return Ok(());
            }
            // A read error is not treated as 'empty': it is returned.
            let noted = quarantine::load(dir, id).map_err(io)?.is_some()
                || left_note::load(dir, id).map_err(io)?.is_some()
                || snapshot_file::exists(dir, id).map_err(io)?;
            if noted {
                return Ok(());
            }
            holdfast_reached::reached!("start: a group that is younger than what the journal has lost");
            tracing::info!(group = %id, "the group is younger than this process: nothing of it can be lost");
            log.drop_group().await.map_err(io)
        })
    }

    /// [`RaftNode::start_group`], for this crate.
    pub(crate) async fn start_local(
        &self,
        id: GroupId,
        machine: Arc<dyn StateMachine>,
        snapshot_every: Option<u64>,
    ) -> Result<Arc<RaftGroup>, NodeError> {
        if self.local(id).is_some() {
            return Err(NodeError::Running(id));
        }
        let io = |source| NodeError::Io { group: id, source };
        // END-E1: group 0 may not have told this process yet.
        if end_marker::is_over(self.snapshots_dir(), id).map_err(io)? {
            holdfast_reached::reached!("start: a group that has ended");
            return Err(NodeError::Ended(id));
        }
        let returning = self.returning_since(id).await?;
        let note = quarantine::load(self.snapshots_dir(), id).map_err(io)?;
        if let Some(Quarantine { record, stage: Stage::Out }) = note {
            holdfast_reached::reached!("start: a group in quarantine");
            return Err(self.damaged(id, record));
        }
        let (adapter, shared) = self.open_machine(id, machine)?;
        let log = self.sound_log(id, &shared)?;
        let group = Arc::new(self.run(id, snapshot_every, adapter, shared, log).await?);
        let rejoining = match note {
            Some(Quarantine { record, stage: Stage::Rejoining { since } }) => Some((record, since)),
            _ => None,
        };
        // QUARANTINE-Q4, VOTERS-V4: set the floor first. Peers reach the group as soon as it is in the list.
        if let Some(since) = returning {
            self.note_returning(id, since);
        }
        if let Some((record, since)) = rejoining.clone() {
            holdfast_reached::reached!("start: a group that learns again");
            self.note_healing(Healing { group: id, record, since: Some(since) });
        }
        if let Some(since) = self.floor(id) {
            group.learn_up_to(since);
        }
        self.add_group(group.clone());
        self.lift_embargo_later(group.clone());
        pacer::start(&group);
        if let Some((_, since)) = rejoining {
            self.watch_rejoining(group.clone(), since);
        }
        if let Some(since) = returning {
            self.watch_returning(group.clone(), since);
        }
        Ok(group)
    }

    /// Loads the snapshot into the state machine; one that is damaged quarantines the group.
    fn open_machine(&self, id: GroupId, machine: Arc<dyn StateMachine>) -> Result<(Adapter, Arc<Shared>), NodeError> {
        let config = self.config();
        match Adapter::open(id, config.snapshots.clone(), config.sealing.clone(), machine) {
            Ok(opened) => Ok(opened),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                holdfast_reached::reached!("start: the state snapshot is damaged");
                let (expected, found) = ("a snapshot as it was written".to_string(), e.to_string());
                let record = CorruptRecord { file: format!("group-{}.snapshot", id.0), offset: 0, expected, found };
                Err(self.quarantine(id, record))
            }
            // This includes a snapshot of another build: it is intact, and a quarantine would discard it.
            Err(source) => Err(NodeError::Io { group: id, source }),
        }
    }

    /// The group's log, checked for completeness, after a purge that was lost in a crash is repeated.
    fn sound_log(&self, id: GroupId, shared: &Shared) -> Result<GroupLog, NodeError> {
        let log = self.log().group(id);
        let vote = |bytes: &Bytes| vote_from_bytes(bytes).is_some();
        if let Some(record) = quarantine::unsound(id, &log.state(), shared.snapshot_last(), vote) {
            return Err(self.quarantine(id, record));
        }
        // A crash between a snapshot and its purge: openraft would purge only after the next snapshot, which a full
        // journal may never get, and a leader would give up followers for a purge that never comes
        // (`network::lets_go`). It must be done before openraft reads the log: if the log ends below the snapshot in a
        // later term, with entries that no leader committed, openraft would not find the entry to purge up to.
        if let Some(covered) = shared.snapshot_last().filter(|last| log.state().purged.is_none_or(|p| p < *last)) {
            let io = |source| NodeError::Io { group: id, source };
            holdfast_reached::reached!("start: a purge that a crash cut short");
            log.purge_later(covered).map_err(io)?;
        }
        Ok(log)
    }

    async fn run(
        &self,
        id: GroupId,
        snapshot_every: Option<u64>,
        adapter: Adapter,
        shared: Arc<Shared>,
        log: GroupLog,
    ) -> Result<RaftGroup, NodeError> {
        let timing = self.config().timing;
        let refused = |reason| NodeError::Raft { group: id, reason };
        let config = openraft_config(format!("holdfast-{id}"), timing, snapshot_every).map_err(refused)?;
        let vote = log.state().vote;
        let started_in = vote.as_deref().and_then(vote_from_bytes).map_or(Term(0), |v| Term(v.leader_id.term));
        let acks = Arc::new(Acks::default());
        let pacing = Arc::new(Mutex::new(Pacing::new(timing)));
        let network = Network {
            acks: acks.clone(),
            log: self.log().clone(),
            shared: shared.clone(),
            group: id,
            timing,
            pacing: pacing.clone(),
            channels: self.channels().clone(),
        };
        let votes = Arc::new(VotedTerm::default());
        let store = LogStore::new(log.clone(), votes.clone());
        let raft = openraft::Raft::new(self.member().0, config, network.clone(), store, adapter);
        let raft = raft.await.map_err(|e| refused(e.to_string()))?;
        let (me, patience) = (self.member(), timing.election_max * 2);
        let parts = GroupParts { id, me, raft, shared, log, acks, pacing, network, patience, started_in, votes };
        Ok(RaftGroup::new(parts))
    }

    /// Lets `group` stand for elections once the embargo is over.
    fn lift_embargo_later(&self, group: Arc<RaftGroup>) {
        let node = self.downgrade();
        tokio::spawn(async move {
            loop {
                let Some(left) = node.upgrade().map(|node| node.embargo_of(group.id())) else { return };
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => return group.embargo_over(),
                }
            }
        });
    }
}
