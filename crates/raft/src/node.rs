//! All groups of one node: which ones run, what they share, and what peers need to know about the node. `start_group`,
//! `end_group` and `readmit` begin and end them; `server` answers peers.

use crate::channels::Channels;
use crate::clock::promise_now;
use crate::config::RaftTiming;
use crate::consensus::Group;
use crate::group::RaftGroup;
use crate::hooks::{MigrationReporter, Registrar, TurnGiver};
use crate::left_note;
use crate::lives::{KnownLife, Lineage};
use crate::protocol::Protocol;
use crate::quarantine::Healing;
use futures_util::future::BoxFuture;
use holdfast_log::{NodeLog, Sealing};
use holdfast_tls::Dialer;
use holdfast_types::pledge::VoteEmbargo;
use holdfast_types::sync::RwLockExt;
use holdfast_types::{GroupId, LogId, MemberId, MonoTime};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

/// This node's identity, and the place of its state.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// This member.
    pub member: MemberId,
    /// The cluster's id: peers of another are refused.
    pub cluster: u128,
    /// Directory of the snapshots.
    pub snapshots: PathBuf,
    /// Key that seals snapshots on disk (R10); usually the journal's.
    pub sealing: Option<Sealing>,
    /// Raft's times.
    pub timing: RaftTiming,
    /// Connects to peers (R10).
    pub dialer: Dialer,
    /// The member's present life, and the earlier ones that its disk remembers (CLUSTER-C3).
    pub lineage: Lineage,
    /// Versions of the peer protocol that it speaks: `PROTOCOL`, except in tests.
    pub protocol: Protocol,
    /// Ends the process, for the reason given (R11): `std::process::abort`, except in tests.
    pub abort: fn(&str),
}

/// A group could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The group runs already.
    #[error("group {0} runs already")]
    Running(GroupId),
    /// It was ended here permanently: its set is deleted.
    #[error("group {0} was ended here: its set is deleted")]
    Ended(GroupId),
    /// Error of the snapshot or the journal.
    #[error("group {group}: {source}")]
    Io {
        /// The group.
        group: GroupId,
        /// The reason.
        source: std::io::Error,
    },
    /// Synced data of the group cannot be read back correctly (R9). It was acknowledged, so this member must not take
    /// part as if it had never existed. The group is quarantined until [`RaftNode::readmit`] has removed this member
    /// from it.
    #[error(
        "group {group}: synced data does not read back ({record}); {member} takes no part in it until the other members have let it \
         in again, which needs a quorum of them. If there will be none: stop this gateway, move its data_dir away, \
         start it empty, and join it in place of {member} (holdfast gateway replace)"
    )]
    Damaged {
        /// The group.
        group: GroupId,
        /// This member.
        member: MemberId,
        /// The damaged record.
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
    groups: RwLock<BTreeMap<GroupId, Arc<RaftGroup>>>,
    started: MonoTime,
    healing: RwLock<BTreeMap<GroupId, Healing>>,
    /// Groups that this member had left and comes back to, and the entry at which it was out (VOTERS-V4).
    returning: RwLock<BTreeMap<GroupId, LogId>>,
    /// Held while a note that this member has left a group is removed, so that no newer one is removed with it.
    left_notes: tokio::sync::Mutex<()>,
    /// When this process stopped a group that it may start again: the vote embargo of that group begins there.
    stopped: RwLock<BTreeMap<GroupId, MonoTime>>,
    healed: AtomicU64,
    registrar: OnceLock<Registrar>,
    migration_reporter: OnceLock<MigrationReporter>,
    turn_giver: OnceLock<TurnGiver>,
}

/// A reference that does not keep the node alive.
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
    /// The directory of the snapshots cannot be created.
    pub fn new(config: NodeConfig, log: NodeLog) -> Result<Self, NodeError> {
        // R1: data that a snapshot covers is in no journal any more.
        holdfast_folder::make(&config.snapshots).map_err(|source| NodeError::Io { group: GroupId::CLUSTER, source })?;
        let (cluster, me) = (config.cluster, config.member);
        let dialer = config.dialer.clone();
        let channels = Channels::new(cluster, me, config.timing, dialer, config.lineage.clone(), config.protocol);
        let channels = Arc::new(channels);
        let groups = RwLock::new(BTreeMap::new());
        let (healing, returning, stopped) = (RwLock::default(), RwLock::default(), RwLock::default());
        let healed = AtomicU64::new(0);
        let (started, registrar, migration_reporter, turn_giver) =
            (promise_now(), OnceLock::new(), OnceLock::new(), OnceLock::new());
        let inner = Inner {
            config,
            log,
            channels,
            groups,
            started,
            healing,
            returning,
            left_notes: tokio::sync::Mutex::default(),
            stopped,
            healed,
            registrar,
            migration_reporter,
            turn_giver,
        };
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

    /// Sets the address of `member`; overrides the one in membership entries.
    pub fn set_address(&self, member: MemberId, addr: impl Into<String>) {
        self.inner.channels.set_address(member, addr.into());
    }

    /// For each member whose times differ from this one's: what to do about it. R3 holds all the same.
    pub fn unequal_times(&self) -> Vec<String> {
        self.inner.channels.promises.unequal()
    }

    /// Calls that carried heartbeats of several groups to one peer so far, and the heartbeats in them (ADR 0059).
    pub fn beats(&self) -> (u64, u64) {
        self.inner.channels.beats.counts()
    }

    /// The round trips to the other gateways that this one sends heartbeats to, or has sent: of the last few, one in
    /// eight was quicker.
    pub fn round_trips(&self) -> BTreeMap<MemberId, Duration> {
        self.inner.channels.trips.all()
    }

    /// The lives of all members, from group 0: calls and answers of any other life are refused from now on
    /// (CLUSTER-C3). A member below `next` that is not in `known` was removed: its calls are accepted only in groups
    /// that still have it. `level`: the cluster's feature level. A member whose build knows less is told that first.
    pub fn set_lives(&self, known: BTreeMap<MemberId, KnownLife>, next: MemberId, level: u32) {
        self.inner.channels.lives.set_known(known, next, level);
    }

    /// Sets the callback that commits registrations while this member leads group 0. Only once; a second callback is
    /// dropped.
    pub fn set_registrar(&self, registrar: Registrar) {
        if self.inner.registrar.set(registrar).is_err() {
            tracing::debug!("registrar already set");
        }
    }

    /// Sets the callback that reports changes of a set's stores while this member leads the set. Only once; a second
    /// callback is dropped.
    pub fn set_migration_reporter(&self, migration_reporter: MigrationReporter) {
        if self.inner.migration_reporter.set(migration_reporter).is_err() {
            tracing::debug!("migration reporter already set");
        }
    }

    /// Sets the callback that says which sets' leaderships may move while this member leads group 0. Only once; a
    /// second callback is dropped.
    pub fn set_turn_giver(&self, turn_giver: TurnGiver) {
        if self.inner.turn_giver.set(turn_giver).is_err() {
            tracing::debug!("turn giver already set");
        }
    }

    pub(crate) fn turn_giver(&self) -> Option<&TurnGiver> {
        self.inner.turn_giver.get()
    }

    pub(crate) fn migration_reporter(&self) -> Option<&MigrationReporter> {
        self.inner.migration_reporter.get()
    }

    pub(crate) fn registrar(&self) -> Option<&Registrar> {
        self.inner.registrar.get()
    }

    /// This process's life, and the earlier lives of its disk.
    pub fn lineage(&self) -> Lineage {
        self.inner.channels.lives.own()
    }

    /// This process continues under another life of its disk, or knows that the present one is registered. The caller
    /// has written that to disk before.
    pub fn set_lineage(&self, lineage: Lineage) {
        self.inner.channels.lives.set_own(lineage);
    }

    /// A running group.
    pub fn group(&self, id: GroupId) -> Option<Group> {
        self.local(id).map(|group| group as Group)
    }

    /// Every running group.
    pub fn groups(&self) -> Vec<Group> {
        self.inner.groups.reading().values().cloned().map(|group| group as Group).collect()
    }

    /// A running group, for this crate.
    pub(crate) fn local(&self, id: GroupId) -> Option<Arc<RaftGroup>> {
        self.inner.groups.reading().get(&id).cloned()
    }

    pub(crate) fn add_group(&self, group: Arc<RaftGroup>) {
        self.inner.groups.writing().insert(group.id(), group);
    }

    /// Time left of the vote embargo after the process start.
    pub fn embargo_left(&self) -> Option<Duration> {
        self.embargo(None).left(promise_now())
    }

    /// Time left of the vote embargo of one group: after the process start, or after this process stopped the group. A
    /// group that starts has forgotten what it promised (R3), also within one process.
    pub(crate) fn embargo_of(&self, id: GroupId) -> Option<Duration> {
        let stopped = self.inner.stopped.reading().get(&id).copied();
        self.embargo(stopped).left(promise_now())
    }

    fn embargo(&self, stopped: Option<MonoTime>) -> VoteEmbargo {
        VoteEmbargo::new(self.inner.started, stopped, self.inner.config.timing.embargo)
    }

    /// This process has stopped the group, and may start it again.
    pub(crate) fn note_stopped(&self, id: GroupId) {
        self.inner.stopped.writing().insert(id, promise_now());
    }

    /// The group was ended: it is not started again.
    pub(crate) fn forget_stopped(&self, id: GroupId) {
        self.inner.stopped.writing().remove(&id);
    }

    /// Whether the group is being healed here. If so, it must not be given its first members again.
    pub fn is_healing(&self, id: GroupId) -> bool {
        self.healing_map().contains_key(&id)
    }

    pub(crate) fn config(&self) -> &NodeConfig {
        &self.inner.config
    }

    pub(crate) fn snapshots_dir(&self) -> &std::path::Path {
        &self.inner.config.snapshots
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        &self.inner.channels
    }

    pub(crate) fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.inner))
    }

    pub(crate) fn healing_map(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<GroupId, Healing>> {
        self.inner.healing.reading()
    }

    /// While this member learns a group again, a damaged one or one that it had left: the entry that a leader of the
    /// group must have (QUARANTINE-Q4, VOTERS-V4).
    pub(crate) fn floor(&self, group: GroupId) -> Option<LogId> {
        let healing = self.healing_map().get(&group).and_then(|healing| healing.since);
        let returning = self.returning_map().get(&group).copied();
        healing.max(returning)
    }

    /// Lets `group` stand for elections once its log reaches the floor.
    pub(crate) fn look_at_floor(&self, group: &RaftGroup) {
        if let Some(since) = self.floor(group.id()) {
            group.learn_up_to(since);
        }
    }

    pub(crate) fn returning_map(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<GroupId, LogId>> {
        self.inner.returning.reading()
    }

    pub(crate) fn note_returning(&self, id: GroupId, since: LogId) {
        self.inner.returning.writing().insert(id, since);
    }

    pub(crate) fn forget_returning(&self, id: GroupId) {
        self.inner.returning.writing().remove(&id);
    }

    /// No return to the group is under way any more: its note is not removed from now on.
    pub(crate) async fn end_return(&self, id: GroupId) {
        let _one = self.inner.left_notes.lock().await;
        self.forget_returning(id);
    }

    /// The return to a group that was left at `since` is done: removes its note, unless the member has left again.
    ///
    /// # Errors
    /// An error of the disk.
    pub(crate) async fn returned(&self, id: GroupId, since: LogId) -> std::io::Result<()> {
        let _one = self.inner.left_notes.lock().await;
        let due = self.returning_map().get(&id) == Some(&since);
        if !due {
            return Ok(());
        }
        // Not under the lock of the map: each append to each group looks into it.
        let dir = self.snapshots_dir().to_path_buf();
        let removed = holdfast_log::spawn_blocking(move || left_note::clear(&dir, id)).await;
        removed.map_err(std::io::Error::other)??;
        self.forget_returning(id);
        tracing::info!(group = %id, %since, "this member votes again in the group it had left");
        Ok(())
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

    /// Stops the healing of a group that no longer exists.
    pub(crate) fn forget_healing(&self, id: GroupId) {
        self.inner.healing.writing().remove(&id);
    }

    /// Ends one group, if it runs; peers no longer find it.
    pub(crate) async fn stop_group(&self, id: GroupId) {
        let group = self.inner.groups.writing().remove(&id);
        if let Some(group) = group {
            group.end().await;
        }
    }

    /// Stops every group, then closes the journal, also for all other handles to it.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let groups = std::mem::take(&mut *self.inner.groups.writing());
            for group in groups.values() {
                group.stop().await;
            }
            let log = self.inner.log.clone();
            if let Err(e) = holdfast_log::spawn_blocking(move || log.close()).await {
                tracing::warn!(error = %e, "the journal did not close cleanly");
            }
        })
    }
}
