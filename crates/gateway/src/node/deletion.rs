//! Carries deletions of sets through, at the leader of group 0 (ADR 0029). What may be done when, group 0 decides (`control::cluster::deletion`, D1 to D4);
//! this asks, removes, and proposes.
//!
//! ```text
//!   who has ended the group? ─▶ SetEnded ─▶ fenced? ─▶ tombstone in the head's place ─▶ ForgetSet
//!     ─▶ listing: something there? ─▶ the tombstone still stands? ─▶ delete ─┐ again until two looks show nothing ─▶ SetEmptied
//!          ▲────────────────────────────────────────────────────────────────┘
//! ```
//! T1  Nothing of a set is deleted in a store but beneath its tombstone, and that is looked at after the listing: what another cluster keeps there stays.
//! T2  The tombstone stays, for ever: it is what keeps a gateway of a life that is over from writing a head again, and with it a key.
//!
//! All of it may be done again, by this leader or the next: it is begun anew from what group 0 and the store say.

use super::{Adopted, Node, lock};
use crate::cluster::ClusterError;
use crate::set::head::{self, NOTICED_AFTER};
use crate::set::mapping::SetKey;
use futures_util::StreamExt;
use futures_util::stream;
use holdfast_control::cluster::{ClusterCommand, ClusterState, Deletion, DeletionStage, GroupVoters};
use holdfast_seal::DataKey;
use holdfast_store::{Disposition, Health, ObjectStore, StoreError, keys};
use holdfast_types::{MemberId, ObjectId, SetId, Term};
use holdfast_volume::head::{HeadError, SetLife, Standing, is_tombstone, seal_tombstone};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Between two turns of a deletion that waits.
const TURN: Duration = Duration::from_millis(300);
/// The same after turns that failed: doubled each time, up to this.
const TURN_MAX: Duration = Duration::from_secs(15);
/// Objects that one turn deletes at most.
const DELETIONS_PER_TURN: usize = 512;
/// Deletions under way at once at most.
const DELETIONS_AT_ONCE: usize = 8;
/// One request takes no longer: it is done again.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Pages of a listing that one turn reads at most.
const LIST_PAGES_MAX: usize = 64;
/// Between the two looks at the store that must both show nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Times that the head is read and swapped anew within one turn: each time somebody else was quicker, or it did not open.
const SWAPS_MAX: u32 = 8;

/// What this leader has done of a deletion, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Objects that it deleted.
    pub objects_deleted: u64,
    /// Why it does not go on, empty while it does.
    pub trouble: String,
}

/// Why a turn came to no end. It is begun again.
#[derive(Debug, thiserror::Error)]
enum RemovalError {
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error("{what}: the store did not answer within {REQUEST_LIMIT:?}")]
    Late { what: String },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("not the leader of group 0 any more")]
    NotLeading,
    #[error(
        "{key} in the store is no head of this set, or a damaged one: {error}; nothing is deleted there. If no other cluster keeps a set under that key, \
         remove that one object, and the deletion goes on"
    )]
    Foreign { key: String, error: HeadError },
    #[error(
        "{key} in the store is not the tombstone any more: another cluster keeps a set there; nothing more is deleted"
    )]
    NotOurs { key: String },
    #[error("the head in the store was replaced by somebody else {SWAPS_MAX} times")]
    Contended,
}

/// Watches group 0, and has one task for each deletion while this gateway leads it.
pub(super) async fn run(node: Arc<Node>, adopted: Adopted) {
    let mut tasks: BTreeMap<SetId, (Term, JoinHandle<()>)> = BTreeMap::new();
    let mut changes = node.cluster.changes();
    loop {
        tokio::select! {
            () = node.stop.cancelled() => break,
            changed = changes.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(TURN) => {}
        }
        let term = leading(&adopted);
        let under_way: BTreeSet<SetId> = node.cluster.state().deletions.under_way.into_keys().collect();
        tasks.retain(|id, (of, task)| {
            let stays = term == Some(*of) && under_way.contains(id) && !task.is_finished();
            if !stays {
                task.abort();
            }
            stays
        });
        lock(&node.deletions).retain(|id, _| term.is_some() && under_way.contains(id));
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

/// The term in which this gateway leads group 0, once it has applied an entry of it.
fn leading(adopted: &Adopted) -> Option<Term> {
    adopted.group.leading_term().filter(|term| adopted.group.applied().term == *term)
}

/// One deletion, while this gateway leads group 0 in one term.
struct Removal {
    node: Arc<Node>,
    adopted: Adopted,
    id: SetId,
    term: Term,
    store: Option<Arc<dyn ObjectStore>>,
    /// Since when the tombstone stands for certain, as far as this leader knows.
    buried: Option<Instant>,
    /// The first of the looks that showed nothing, and who had ended the group before it.
    empty: Option<(Instant, BTreeSet<MemberId>)>,
    /// Who had ended the group before the looks that group 0 was told of.
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
        tracing::info!(set = %self.id, "nothing of the set is left that this cluster knows of");
    }

    fn say(&mut self, trouble: String) {
        if trouble != self.said && !trouble.is_empty() {
            tracing::warn!(set = %self.id, error = %trouble, "a deletion waits; tried again");
        }
        self.said.clone_from(&trouble);
        lock(&self.node.deletions).entry(self.id).or_default().trouble = trouble;
    }

    fn state(&self) -> ClusterState {
        self.node.cluster.state()
    }

    fn deletion(&self) -> Option<Deletion> {
        self.state().deletions.under_way.get(&self.id).cloned()
    }

    async fn command(&self, command: ClusterCommand) -> Result<(), RemovalError> {
        if leading(&self.adopted) != Some(self.term) {
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
                    false => tracing::info!(set = %self.id, %name, "the key of a deleted set is forgotten"),
                    true => tracing::warn!(
                        set = %self.id, %name,
                        "the set was recovered by another cluster: nothing of it is deleted in its store"
                    ),
                }
                Ok(())
            }
            DeletionStage::Ending => Ok(()),
            DeletionStage::Forgotten => self.empty_store(&deletion, &members).await,
            // D4: somebody has ended it since the store was looked at.
            DeletionStage::Emptied if self.told.as_ref() != Some(&deletion.ended) => {
                self.empty_store(&deletion, &members).await
            }
            DeletionStage::Emptied => Ok(()),
        }
    }

    /// Who has ended the group since, and whom they knew as its voters.
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
                Err(why) => tracing::debug!(set = %self.id, %member, %why, "not known to have ended a deleted set"),
            }
        }
        Ok(())
    }

    fn store(&mut self, deletion: &Deletion) -> Result<Arc<dyn ObjectStore>, RemovalError> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let health = Arc::new(Health::new(deletion.entry.name.to_string()));
        let store = (self.node.seams.store)(&self.node.config, &deletion.entry.store_url, health)?;
        Ok(self.store.insert(store).clone())
    }

    /// Puts the tombstone in the place of the head, unless another cluster has taken the set over, which is answered by `true`.
    async fn bury(&mut self, deletion: &Deletion) -> Result<bool, RemovalError> {
        let (store, entry) = (self.store(deletion)?, &deletion.entry);
        let cluster = self.state().cluster_id;
        let life = SetLife { cluster, generation: entry.generation };
        // A set whose key never opened has no head of ours. What nobody can open fences nobody, and there is nobody to be fenced.
        let opened = self.node.keys.unwrap(&entry.wrapped_key, self.id, entry.key_id);
        let key = opened.unwrap_or_else(|_| DataKey::from_bytes(rand::random()));
        let key = SetKey { set: self.id, key_id: entry.key_id, key };
        let at = keys::head(self.id);
        let mut last = RemovalError::Contended;
        for _ in 0..SWAPS_MAX {
            let found = match within(&at, store.get_object(&at)).await {
                Ok(object) => Some(object),
                Err(RemovalError::Store(e)) if e.disposition() == Disposition::NotFound => None,
                Err(e) => return Err(e),
            };
            if let Some(object) = &found {
                if is_tombstone(&object.body) {
                    return Ok(false);
                }
                match head::open(&key, &object.body).map(|head| head.standing(life)) {
                    Ok(Standing::Taken) => return Ok(true),
                    Ok(Standing::Ours | Standing::Older) => {}
                    // Bytes may be spoilt on their way.
                    Err(error) => {
                        last = RemovalError::Foreign { key: at.clone(), error };
                        continue;
                    }
                }
            }
            let object = ObjectId {
                term: self.term,
                member: self.adopted.member,
                boot: self.node.identity().boot,
                random: crate::identity::random_u128(),
            };
            let body = seal_tombstone(cluster, entry.name.clone(), key.sealer(object));
            let version = found.map(|object| object.version);
            match within(&at, store.swap(&at, version.as_ref(), body)).await {
                Ok(_) => return Ok(false),
                Err(RemovalError::Store(e)) if e.disposition() == Disposition::Conflict => {}
                // R12: the next turn finds what is there.
                Err(e) => return Err(e),
            }
        }
        Err(last)
    }

    /// Deletes what the store shows; tells group 0 once two looks in a row showed nothing.
    async fn empty_store(&mut self, deletion: &Deletion, members: &[MemberId]) -> Result<(), RemovalError> {
        // Who has not ended the group may still live the set, and finds the tombstone with its next look.
        let since = *self.buried.get_or_insert_with(Instant::now);
        if !deletion.waits_for(members.iter().copied()).is_empty() && since.elapsed() < NOTICED_AFTER {
            return Ok(());
        }
        if !deletion.store_left && !self.sweep(deletion).await? {
            self.empty = None;
            return Ok(());
        }
        let (at, ended) = self.empty.get_or_insert_with(|| (Instant::now(), deletion.ended.clone()));
        if at.elapsed() < LOOK_AGAIN && !deletion.store_left {
            return Ok(());
        }
        let ended = ended.clone();
        self.empty = None;
        self.command(ClusterCommand::SetEmptied { set: self.id, ended: ended.clone() }).await?;
        if deletion.stage < DeletionStage::Emptied {
            tracing::info!(set = %self.id, name = %deletion.entry.name, "the store of a deleted set shows nothing more of it: its name is free");
        }
        self.told = Some(ended);
        Ok(())
    }

    /// One look at the store, and what it showed deleted. `true`: it showed nothing.
    async fn sweep(&mut self, deletion: &Deletion) -> Result<bool, RemovalError> {
        let store = self.store(deletion)?;
        let prefix = keys::of_set(self.id);
        let (mut shown, mut after) = (Vec::new(), None);
        for _ in 0..LIST_PAGES_MAX {
            let page = within(&prefix, store.list(&prefix, after.as_deref())).await?;
            let ours = page.objects.into_iter().map(|listed| listed.key).filter(|key| keys::is_of(self.id, key));
            shown.extend(ours.take(DELETIONS_PER_TURN - shown.len()));
            after = page.more;
            if after.is_none() || shown.len() >= DELETIONS_PER_TURN {
                break;
            }
        }
        if shown.is_empty() {
            return Ok(after.is_none());
        }
        // T1.
        let at = keys::head(self.id);
        let stands = match within(&at, store.get_object(&at)).await {
            Ok(object) => is_tombstone(&object.body),
            Err(RemovalError::Store(e)) if e.disposition() == Disposition::NotFound => false,
            Err(e) => return Err(e),
        };
        if !stands {
            return Err(RemovalError::NotOurs { key: at });
        }
        let mut pace = tokio::time::interval(Duration::from_secs(1) / self.node.config.space.deletes_per_second.max(1));
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let pace = tokio::sync::Mutex::new(pace);
        let delete = |key: String| {
            let (store, pace) = (&store, &pace);
            async move {
                pace.lock().await.tick().await;
                within(&key, store.delete(&key)).await
            }
        };
        let mut done = stream::iter(shown).map(delete).buffer_unordered(DELETIONS_AT_ONCE);
        while let Some(outcome) = done.next().await {
            outcome?;
            lock(&self.node.deletions).entry(self.id).or_default().objects_deleted += 1;
            metrics::counter!("holdfast_deleted_set_objects_total").increment(1);
        }
        Ok(false)
    }
}

async fn within<T>(what: &str, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, RemovalError> {
    match tokio::time::timeout(REQUEST_LIMIT, request).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(RemovalError::Late { what: what.to_string() }),
    }
}
