//! Carries out deletions of sets, on the leader of group 0 (ADR 0029). Group 0 decides which steps are allowed
//! (`control::cluster::deletion`, DELETE-D1 to DELETE-D4). This file asks the members, deletes objects, and proposes
//! the steps.
//!
//! ```text
//!   which members have ended the group? ─▶ SetEnded ─▶ fenced? ─▶ tombstone in the head's place ─▶ ForgetSet
//!     ─▶ listing: any object? ─▶ is the tombstone still there? ─▶ delete ────┐ until two listings are empty ─▶ SetEmptied
//!          ▲────────────────────────────────────────────────────────────────┘
//! ```
//! `set::tombstone` does the work in the store (TOMB-T1, TOMB-T2).
//!
//! All steps can be repeated, by this leader or the next one: they start again from the state of group 0 and of the
//! store.

use super::{Adopted, Node};
use holdfast_control::cluster::{ClusterCommand, ClusterState, Deletion, DeletionStage, GroupVoters};
use holdfast_seal::DataKey;
use holdfast_set::cluster::ClusterError;
use holdfast_set::head::NOTICED_AFTER;
use holdfast_set::mapping::SetKey;
use holdfast_set::recovery;
use holdfast_set::tombstone::{self, BurialError};
use holdfast_store::{Health, ObjectStore, StoreError};
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, ObjectId, SetId, Term};
use holdfast_volume::head::{SetLife, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Pause between two rounds of a waiting deletion.
const TURN: Duration = Duration::from_millis(300);
/// Maximum pause after failed rounds; it doubles each time.
const TURN_MAX: Duration = Duration::from_secs(15);
/// Pause between the two listings of the store that must both be empty.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Progress of a deletion on this leader, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Objects that it deleted.
    pub objects_deleted: u64,
    /// Why it does not make progress; empty while it does.
    pub trouble: String,
}

/// Why a round failed. It is repeated.
#[derive(Debug, thiserror::Error)]
enum RemovalError {
    #[error(transparent)]
    Burial(#[from] BurialError),
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("not the leader of group 0 any more")]
    NotLeading,
}

/// Watches group 0, and runs one task for each deletion while this gateway leads it.
pub(super) async fn run(node: Arc<Node>, adopted: Adopted) {
    let mut tasks: BTreeMap<SetId, (Term, JoinHandle<()>)> = BTreeMap::new();
    let mut changes = node.cluster.changes();
    loop {
        tokio::select! {
            () = node.stop.cancelled() => break,
            changed = changes.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(TURN) => {}
        }
        let term = adopted.group.ready_term();
        let under_way: BTreeSet<SetId> = node.cluster.state().deletions.under_way.into_keys().collect();
        tasks.retain(|id, (of, task)| {
            let stays = term == Some(*of) && under_way.contains(id) && !task.is_finished();
            if !stays {
                task.abort();
            }
            stays
        });
        node.deletions.locked().retain(|id, _| term.is_some() && under_way.contains(id));
        let Some(term) = term else { continue };
        for id in under_way {
            tasks.entry(id).or_insert_with(|| {
                let removal = Removal::new(node.clone(), adopted.clone(), id, term);
                (term, tokio::spawn(removal.run()))
            });
        }
    }
    for (_, task) in tasks.into_values() {
        task.abort();
    }
}

/// One deletion, while this gateway leads group 0 in one term.
struct Removal {
    node: Arc<Node>,
    adopted: Adopted,
    id: SetId,
    term: Term,
    store: Option<Arc<dyn ObjectStore>>,
    /// When this leader first knew for certain that the tombstone is in place.
    buried: Option<Instant>,
    /// The first of the empty listings, and the members that had ended the group before it.
    empty: Option<(Instant, BTreeSet<MemberId>)>,
    /// The members that had ended the group before the listings that were reported to group 0.
    told: Option<BTreeSet<MemberId>>,
    said: String,
}

impl Removal {
    fn new(node: Arc<Node>, adopted: Adopted, id: SetId, term: Term) -> Self {
        let (store, buried, empty, told, said) = (None, None, None, None, String::new());
        Self { node, adopted, id, term, store, buried, empty, told, said }
    }

    async fn run(mut self) {
        let (mut pause, stop) = (TURN, self.node.stop.clone());
        while let Some(deletion) = self.deletion() {
            let turn = tokio::select! {
                () = stop.cancelled() => return,
                turn = self.turn(&deletion) => turn,
            };
            match turn {
                Ok(()) => {
                    pause = TURN;
                    self.say(String::new());
                }
                Err(RemovalError::NotLeading) => return,
                Err(e) => {
                    pause = (pause * 2).min(TURN_MAX);
                    self.say(e.to_string());
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
        tracing::info!(set = %self.id, "no known data of the deleted set is left");
    }

    fn say(&mut self, trouble: String) {
        if trouble != self.said && !trouble.is_empty() {
            tracing::warn!(set = %self.id, error = %trouble, "a deletion waits; trying again");
        }
        self.said.clone_from(&trouble);
        self.node.deletions.locked().entry(self.id).or_default().trouble = trouble;
    }

    fn state(&self) -> ClusterState {
        self.node.cluster.state()
    }

    fn deletion(&self) -> Option<Deletion> {
        self.state().deletions.under_way.get(&self.id).cloned()
    }

    async fn command(&self, command: ClusterCommand) -> Result<(), RemovalError> {
        if self.adopted.group.ready_term() != Some(self.term) {
            return Err(RemovalError::NotLeading);
        }
        self.node.cluster.command(&self.adopted.group, &command).await?;
        Ok(())
    }

    async fn turn(&mut self, deletion: &Deletion) -> Result<(), RemovalError> {
        self.ask_members(deletion).await?;
        let Some(deletion) = self.deletion() else { return Ok(()) };
        let members: Vec<MemberId> = self.state().members.into_keys().collect();
        match deletion.stage {
            DeletionStage::Ending if deletion.fenced(members.iter().copied()) => {
                let store_left = self.bury(&deletion).await?;
                self.command(ClusterCommand::ForgetSet { set: self.id, store_left }).await?;
                let name = &deletion.entry.name;
                match store_left {
                    false => tracing::info!(set = %self.id, %name, "the key of a deleted set is gone"),
                    true => tracing::warn!(
                        set = %self.id, %name,
                        "another cluster has recovered the set: its objects in the store are not deleted"
                    ),
                }
                Ok(())
            }
            DeletionStage::Ending => Ok(()),
            DeletionStage::Forgotten => self.empty_store(&deletion, &members).await,
            // DELETE-D4: another member has ended the group since the store was listed, or has left the cluster.
            DeletionStage::Emptied => {
                let waits = !deletion.waits_for(members.iter().copied()).is_empty();
                if waits && self.told.as_ref() == Some(&deletion.ended) {
                    return Ok(());
                }
                self.empty_store(&deletion, &members).await
            }
        }
    }

    /// Asks which members have ended the group since, and which voters they knew.
    async fn ask_members(&self, deletion: &Deletion) -> Result<(), RemovalError> {
        let state = self.state();
        let asked = state.members.values().filter(|m| !deletion.ended.contains(&m.id)).map(async |m| {
            let said = self.adopted.raft.ask_ended(self.id, m.id, &m.peer_addr).await;
            (m.id, said)
        });
        for (member, said) in futures_util::future::join_all(asked).await {
            match said {
                Ok(Some(ended)) => {
                    let voters = ended.voters.map(|(at, sets)| GroupVoters { at, sets });
                    self.command(ClusterCommand::SetEnded { set: self.id, member, voters }).await?;
                }
                Ok(None) => {}
                Err(why) => {
                    tracing::debug!(set = %self.id, %member, %why, "it is unknown whether this member has ended the deleted set")
                }
            }
        }
        Ok(())
    }

    async fn store(&mut self, deletion: &Deletion) -> Result<Arc<dyn ObjectStore>, RemovalError> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let health = Arc::new(Health::new(deletion.entry.name.to_string()));
        let store = (self.node.seams.store)(&self.node.config, &deletion.entry.store_url, health).await?;
        Ok(self.store.insert(store).clone())
    }

    /// Replaces the head with the tombstone, unless another cluster has taken the set over. In that case returns
    /// `true`.
    async fn bury(&mut self, deletion: &Deletion) -> Result<bool, RemovalError> {
        let (store, entry) = (self.store(deletion).await?, &deletion.entry);
        let life = SetLife { cluster: self.state().cluster_id, generation: entry.generation };
        // If the set's key never opened, the set has no head of ours. A tombstone that nobody can open fences nobody,
        // and nobody has to be fenced.
        let none = || SetKey::of(self.id, entry.key_id, DataKey::from_bytes(rand::random()));
        let key = self.node.keys.set_key(self.id, entry).unwrap_or_else(|_| none());
        let (term, member, boot) = (self.term, self.adopted.member, self.node.identity().boot);
        let id = || ObjectId { term, member, boot, random: holdfast_set::random::random_u128() };
        let (url, name) = (entry.store_url.clone(), entry.name.clone());
        match tombstone::bury(&*store, &key, life, &name, id).await {
            // Another cluster may have taken the set over and changed its data key since: the keyring in its head opens
            // it.
            Err(BurialError::Foreign { key, error }) => {
                match recovery::read(&url, store, &self.node.keys, self.id).await {
                    Ok(Some(found)) if found.head.standing(life) == Standing::Taken => Ok(true),
                    _ => Err(BurialError::Foreign { key, error }.into()),
                }
            }
            buried => Ok(buried?),
        }
    }

    /// Deletes the objects in the store; reports to group 0 after two empty listings in a row.
    async fn empty_store(&mut self, deletion: &Deletion, members: &[MemberId]) -> Result<(), RemovalError> {
        // A member that has not ended the group may still serve the set; it will find the tombstone at its next check.
        let since = *self.buried.get_or_insert_with(Instant::now);
        if !deletion.waits_for(members.iter().copied()).is_empty() && since.elapsed() < NOTICED_AFTER {
            return Ok(());
        }
        if !deletion.store_left && !self.empty_once(deletion).await? {
            self.empty = None;
            return Ok(());
        }
        let (at, ended) = self.empty.get_or_insert_with(|| (Instant::now(), deletion.ended.clone()));
        if at.elapsed() < LOOK_AGAIN && !deletion.store_left {
            return Ok(());
        }
        let ended = ended.clone();
        self.forget_grants(deletion).await;
        self.empty = None;
        self.command(ClusterCommand::SetEmptied { set: self.id, ended: ended.clone() }).await?;
        if deletion.stage < DeletionStage::Emptied {
            tracing::info!(set = %self.id, name = %deletion.entry.name, "the store of a deleted set has no objects of it any more: its name is free");
        }
        self.told = Some(ended);
        Ok(())
    }

    /// Deletes the grants of the set from etcd, once; nothing waits for etcd (ADR 0027). Skipped if another set may
    /// have the name.
    async fn forget_grants(&self, deletion: &Deletion) {
        let Some(mut mirror) = self.node.mirror.clone() else { return };
        let name = &deletion.entry.name;
        if deletion.stage == DeletionStage::Emptied || deletion.store_left {
            return;
        }
        let cluster = format!("{:032x}", self.state().cluster_id);
        match mirror.forget(name.as_str(), self.id.0, &cluster, deletion.entry.generation).await {
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(set = %self.id, %name, %error, "etcd still has a grant of the deleted set; delete its key by hand");
            }
        }
    }

    /// One listing of the store, and deletion of what it shows. Returns `true` if it is empty.
    async fn empty_once(&mut self, deletion: &Deletion) -> Result<bool, RemovalError> {
        let store = self.store(deletion).await?;
        let per_second = self.node.live().space.deletes_per_second;
        let deleted = || {
            self.node.deletions.locked().entry(self.id).or_default().objects_deleted += 1;
            metrics::counter!("holdfast_deleted_set_objects_total").increment(1);
        };
        Ok(tombstone::empty(&*store, self.id, per_second, deleted).await?)
    }
}
