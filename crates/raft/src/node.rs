//! All groups of one node: starts and stops them, routes peers to them, keeps the vote embargo after a start.

use crate::clock::boot_now;
use crate::config::{RaftTiming, openraft_config};
use crate::ended;
use crate::group::Group;
use crate::lives::{KnownLife, Lineage};
use crate::log_store::LogStore;
use crate::machine::{Adapter, StateMachine};
use crate::network::{Acks, Channels, Network};
use crate::placing::Placer;
use crate::protocol::Protocol;
use crate::quarantine::{self, Quarantine, Stage};
use crate::readmit::Healing;
use crate::register::Registrar;
use crate::server::{Handler, PeerService};
use crate::wire::vote_from_bytes;
use bytes::Bytes;
use holdfast_log::{CorruptRecord, NodeLog, Sealing};
use holdfast_tls::Dialer;
use holdfast_types::sync::RwLockExt;
use holdfast_types::{GroupId, LogId, MemberId, MonoTime, Term};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

/// Who this node is, and where its state lives.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// This member.
    pub member: MemberId,
    /// The cluster's id: peers of another are refused.
    pub cluster: u128,
    /// Directory of the snapshots.
    pub snapshots: PathBuf,
    /// What snapshots are sealed with on disk (R10); the journal's own, as a rule.
    pub sealing: Option<Sealing>,
    /// Raft's times.
    pub timing: RaftTiming,
    /// How peers are connected to (R10).
    pub dialer: Dialer,
    /// Which life of the member this is, and what its disk remembers of those before (C3).
    pub lineage: Lineage,
    /// Which versions of the peer protocol it speaks: `PROTOCOL`, but in tests.
    pub protocol: Protocol,
    /// Ends the process, for the reason given (R11): `std::process::abort`, but in tests.
    pub abort: fn(&str),
}

/// A group could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The group runs already.
    #[error("group {0} runs already")]
    Running(GroupId),
    /// It was ended here for ever: what it was for is deleted.
    #[error("group {0} was ended here: it belongs to a set that is deleted")]
    Ended(GroupId),
    /// Snapshot or journal.
    #[error("group {group}: {source}")]
    Io {
        /// The group.
        group: GroupId,
        /// The reason.
        source: std::io::Error,
    },
    /// What was synced of the group does not read back (R9): it was acknowledged, so this member must not take part as if it had
    /// never been. It is quarantined, until [`RaftNode::readmit`] has had it taken out of the group.
    #[error(
        "group {group}: what was synced does not read back ({record}); {member} takes no part in it until its peers have let it \
         in again, which needs a quorum of the others. Where there will be none: stop this gateway, move its data_dir away, \
         start it empty, and join it in place of {member} (holdfast gateway replace)"
    )]
    Damaged {
        /// The group.
        group: GroupId,
        /// This member.
        member: MemberId,
        /// The record: file, offset, found, expected.
        record: holdfast_log::CorruptRecord,
    },
    /// openraft refused its settings or its storage.
    #[error("group {group}: {reason}")]
    Raft {
        /// The group.
        group: GroupId,
        /// The reason.
        reason: String,
    },
}

/// Every group of one node. Cheap to clone.
#[derive(Clone)]
pub struct RaftNode {
    inner: Arc<Inner>,
}

struct Inner {
    config: NodeConfig,
    log: NodeLog,
    channels: Arc<Channels>,
    groups: RwLock<BTreeMap<GroupId, Group>>,
    started: MonoTime,
    healing: RwLock<BTreeMap<GroupId, Healing>>,
    healed: AtomicU64,
    registrar: OnceLock<Registrar>,
    placer: OnceLock<Placer>,
}

/// Does not keep the node alive.
pub(crate) struct WeakNode(std::sync::Weak<Inner>);

impl WeakNode {
    pub(crate) fn upgrade(&self) -> Option<RaftNode> {
        self.0.upgrade().map(|inner| RaftNode { inner })
    }
}

impl RaftNode {
    /// A node without groups. The embargo runs from now.
    ///
    /// # Errors
    /// When the directory of the snapshots cannot be made.
    pub fn new(config: NodeConfig, log: NodeLog) -> Result<Self, NodeError> {
        // R1: what a snapshot covers is in no journal any more.
        holdfast_folder::make(&config.snapshots).map_err(|source| NodeError::Io { group: GroupId::CLUSTER, source })?;
        let channels =
            Arc::new(Channels::new(config.timing, config.dialer.clone(), config.lineage.clone(), config.protocol));
        let groups = RwLock::new(BTreeMap::new());
        let (healing, healed) = (RwLock::default(), AtomicU64::new(0));
        let (started, registrar, placer) = (boot_now(), OnceLock::new(), OnceLock::new());
        let inner = Inner { config, log, channels, groups, started, healing, healed, registrar, placer };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// This member.
    pub fn member(&self) -> MemberId {
        self.inner.config.member
    }

    /// The cluster's id.
    pub fn cluster(&self) -> u128 {
        self.inner.config.cluster
    }

    /// The node's journal.
    pub fn log(&self) -> &NodeLog {
        &self.inner.log
    }

    /// The service that answers peers.
    pub fn service(&self) -> PeerService {
        Handler::service(self.clone())
    }

    /// Where `member` is reached from now on; overrides what membership entries say.
    pub fn set_address(&self, member: MemberId, addr: impl Into<String>) {
        self.inner.channels.set_address(member, addr.into());
    }

    /// For each member whose times are not this one's, as far as heard: what to do about it (R3 holds all the same).
    pub fn unequal_times(&self) -> Vec<String> {
        self.inner.channels.promises.unequal()
    }

    /// What group 0 knows of every member's life: calls and answers of any other are refused from now on (C3). A member below `next`
    /// that is not among them was removed: it is heard in no group any more but those that still have it.
    /// `level`: the cluster's feature level. Whose build knows less is told that before anything else.
    pub fn set_lives(&self, known: BTreeMap<MemberId, KnownLife>, next: MemberId, level: u32) {
        self.inner.channels.lives.set_known(known, next, level);
    }

    /// What commits registrations where this member leads group 0. Once; a second one is dropped.
    pub fn set_registrar(&self, registrar: Registrar) {
        if self.inner.registrar.set(registrar).is_err() {
            tracing::debug!("registrar already set");
        }
    }

    /// What says how far a change of a set's stores is, where this member leads the set. Once; a second one is dropped.
    pub fn set_placer(&self, placer: Placer) {
        if self.inner.placer.set(placer).is_err() {
            tracing::debug!("placer already set");
        }
    }

    pub(crate) fn placer(&self) -> Option<&Placer> {
        self.inner.placer.get()
    }

    pub(crate) fn registrar(&self) -> Option<&Registrar> {
        self.inner.registrar.get()
    }

    /// Which life of the member this process is, and those before.
    pub fn lineage(&self) -> Lineage {
        self.inner.channels.lives.own()
    }

    /// This process goes on under another life of its disk, or knows that the present one is registered. On the disk before.
    pub fn set_lineage(&self, lineage: Lineage) {
        self.inner.channels.lives.set_own(lineage);
    }

    /// A leader says that this member acknowledged an entry that it does not have. If so, the group is quarantined and the process
    /// ends (R11).
    pub(crate) fn denied(&self, group: &Group, acked: LogId) -> bool {
        let Some(found) = group.lacks(acked) else { return false };
        let (id, expected) = (group.id(), format!("{acked}, which this member had acknowledged"));
        let record = CorruptRecord { file: format!("(log of group {})", id.0), offset: 0, expected, found };
        let why = format!("group {id}: this member's log went backwards: {record}");
        // The note first: the next start must not take part with this log (Q2).
        let error = self.quarantine(id, record);
        tracing::error!(%why, %error, "R11: this process ends");
        (self.inner.config.abort)(&why);
        true
    }

    /// A record of the running `group` does not read back, which this member had acknowledged (R9). The group is quarantined and the process ends: the
    /// next start heals it from its peers. The caller knows that they are a quorum without this member ([`Group::may_do_without_me`]), and that
    /// the record did not read back the second time either.
    ///
    /// Nothing happens where the note cannot be written: without it the next start would have to find the record by itself.
    pub fn rotten(&self, group: &Group, record: CorruptRecord) {
        let id = group.id();
        let why = format!("group {id}: what this member had synced does not read back: {record}");
        match self.quarantine(id, record) {
            NodeError::Damaged { .. } => {
                tracing::error!(%why, "R9: this process ends; its next start is healed from its peers");
                (self.inner.config.abort)(&why);
            }
            error => tracing::error!(%why, %error, "the group is not quarantined; tried again"),
        }
    }

    /// A running group.
    pub fn group(&self, id: GroupId) -> Option<Group> {
        self.inner.groups.reading().get(&id).cloned()
    }

    /// Every running group.
    pub fn groups(&self) -> Vec<Group> {
        self.inner.groups.reading().values().cloned().collect()
    }

    /// What is left of the vote embargo after the process start.
    pub fn embargo_left(&self) -> Option<Duration> {
        let until = self.inner.started.saturating_add(self.inner.config.timing.embargo);
        let left = until.saturating_since(boot_now());
        (!left.is_zero()).then_some(left)
    }

    /// Starts a group: loads its snapshot into `machine`, replays what was committed, and takes part from then on.
    /// `snapshot_every`: build a snapshot after so many entries; `None` where checkpoints decide.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn start_group(
        &self,
        id: GroupId,
        machine: Arc<dyn StateMachine>,
        snapshot_every: Option<u64>,
    ) -> Result<Group, NodeError> {
        if self.group(id).is_some() {
            return Err(NodeError::Running(id));
        }
        let inner = &self.inner;
        let config = openraft_config(format!("holdfast-{id}"), inner.config.timing, snapshot_every)
            .map_err(|reason| NodeError::Raft { group: id, reason })?;
        let io = |source| NodeError::Io { group: id, source };
        // E1: group 0 may not have told this process yet.
        if ended::is_over(&inner.config.snapshots, id).map_err(io)? {
            return Err(NodeError::Ended(id));
        }
        let note = quarantine::load(&inner.config.snapshots, id).map_err(io)?;
        if let Some(Quarantine { record, stage: Stage::Out }) = note {
            return Err(self.damaged(id, record));
        }
        let (adapter, shared) =
            match Adapter::open(id, inner.config.snapshots.clone(), inner.config.sealing.clone(), machine) {
                Ok(opened) => opened,
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                    let (expected, found) = ("a snapshot as it was written".to_string(), e.to_string());
                    let record = CorruptRecord { file: format!("group-{}.snapshot", id.0), offset: 0, expected, found };
                    return Err(self.quarantine(id, record));
                }
                // Also a snapshot that another build wrote: no note of quarantine, which would have peers set down for good what is whole.
                Err(e) => return Err(io(e)),
            };
        let log = inner.log.group(id);
        let vote = |bytes: &Bytes| vote_from_bytes(bytes).is_some();
        if let Some(record) = quarantine::unsound(id, &log.state(), shared.snapshot_last(), vote) {
            return Err(self.quarantine(id, record));
        }
        let started_in =
            log.state().vote.as_deref().and_then(vote_from_bytes).map_or(Term(0), |v| Term(v.leader_id.term));
        let acks = Arc::new(Acks::default());
        let network = Network {
            acks: acks.clone(),
            log: inner.log.clone(),
            shared: shared.clone(),
            group: id,
            me: inner.config.member,
            cluster: inner.config.cluster,
            timing: inner.config.timing,
            channels: inner.channels.clone(),
        };
        // A crash between a snapshot and its purge: openraft would purge only after the next snapshot, which a full journal may never see,
        // and a leader would let go of followers for the sake of a purge that never comes (`network::lets_go`). Before openraft looks: where the log ends below
        // the snapshot in a later term than its, with entries that no leader ever committed, it would miss the entry to purge up to.
        if let Some(covered) = shared.snapshot_last().filter(|last| log.state().purged.is_none_or(|p| p < *last)) {
            log.purge_later(covered).map_err(io)?;
        }
        let store = LogStore::new(log.clone());
        let raft = openraft::Raft::new(inner.config.member.0, config, network, store, adapter)
            .await
            .map_err(|e| NodeError::Raft { group: id, reason: e.to_string() })?;
        let group = Group::new(
            id,
            inner.config.member,
            raft,
            shared,
            log,
            acks,
            inner.config.timing.election_max * 2,
            started_in,
        );
        let rejoining = match note {
            Some(Quarantine { record, stage: Stage::Rejoining { since } }) => Some((record, since)),
            _ => None,
        };
        // Q4: the floor first. Once the group is among the others, peers reach it.
        if let Some((record, since)) = rejoining.clone() {
            self.note_healing(Healing { group: id, record, since: Some(since) });
        }
        inner.groups.writing().insert(id, group.clone());
        self.lift_embargo_later(group.clone());
        if let Some((_, since)) = rejoining {
            self.watch_rejoining(group.clone(), since);
        }
        Ok(group)
    }

    /// Lets `group` stand for elections once the embargo is over.
    fn lift_embargo_later(&self, group: Group) {
        let node = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            loop {
                let Some(inner) = node.upgrade() else { return };
                let left = RaftNode { inner }.embargo_left();
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => return group.embargo_over(),
                }
            }
        });
    }

    /// Whether the group is being healed here: it must not be given its first members again.
    pub fn is_healing(&self, id: GroupId) -> bool {
        self.healing_map().contains_key(&id)
    }

    pub(crate) fn snapshots_dir(&self) -> &std::path::Path {
        &self.inner.config.snapshots
    }

    pub(crate) fn channels(&self) -> &Channels {
        &self.inner.channels
    }

    pub(crate) fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.inner))
    }

    pub(crate) fn healing_map(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<GroupId, Healing>> {
        self.inner.healing.reading()
    }

    /// Q4: while this member learns a damaged group anew, the entry that whoever leads it must have.
    pub(crate) fn floor(&self, group: GroupId) -> Option<LogId> {
        self.healing_map().get(&group)?.since
    }

    pub(crate) fn note_healing(&self, healing: Healing) {
        self.inner.healing.writing().insert(healing.group, healing);
    }

    pub(crate) fn healed_one(&self, id: GroupId) {
        self.inner.healing.writing().remove(&id);
        self.inner.healed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn healed_count(&self) -> u64 {
        self.inner.healed.load(Ordering::Relaxed)
    }

    pub(crate) fn sealing(&self) -> Option<&Sealing> {
        self.inner.config.sealing.as_ref()
    }

    /// The group is healed no more: it is gone.
    pub(crate) fn forget_healing(&self, id: GroupId) {
        self.inner.healing.writing().remove(&id);
    }

    /// Ends one group, if it runs; peers find it no more.
    pub(crate) async fn stop_group(&self, id: GroupId) {
        let group = self.inner.groups.writing().remove(&id);
        if let Some(group) = group {
            group.end().await;
        }
    }

    /// Stops every group, then closes the journal for every handle to it.
    pub async fn stop(&self) {
        let groups = std::mem::take(&mut *self.inner.groups.writing());
        for group in groups.values() {
            group.stop().await;
        }
        let log = self.inner.log.clone();
        if let Err(e) = holdfast_log::spawn_blocking(move || log.close()).await {
            tracing::warn!(error = %e, "the journal did not close cleanly");
        }
    }
}
