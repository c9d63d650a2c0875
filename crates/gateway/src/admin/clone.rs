//! Calls that make a clone (ADR 0028). They must be made in this order:
//!
//! ```text
//!   PinSnapshot, at the origin's leader: the root is pinned for set number N ─▶ the head in the store lists the pin
//!   CloneSet, at group 0's leader: does the head list the pin? ─▶ write a root on top of the origin's ─▶ set N in group 0
//! ```
//! The leader of group 0 need not have the origin: then the head says what it needs (ADR 0075).
//!
//! If the procedure stops in between, it leaves a pin, which is dropped once number N is passed, and a root of some
//! hundred bytes, which a sweep of set N finds.

use super::AdminDoor;
use super::member::precondition;
use super::snapshot::snapshot_id;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState};
use holdfast_control::set::{
    CLONE_DEPTH_MAX, CloneOf, Pin, Restored, RootRef, SetAnswer, SetCommand, Snapshot, SnapshotId,
};
use holdfast_seal::DataKey;
use holdfast_set::clones::first_root;
use holdfast_set::cluster::ClusterError;
use holdfast_set::mapping::SetKey;
use holdfast_set::random::random_u128;
use holdfast_set::server::SetServer;
use holdfast_store::{ObjectStore, keys};
use holdfast_types::{GroupId, MemberId, Name, ObjectId, Placement, RequestId, SetId, Term};
use holdfast_volume::head::{Head, SetLife, Standing};
use holdfast_volume::map::seal_root;
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

/// The data key of a new set.
const FIRST_KEY_ID: u32 = 1;
/// How long the store may take for one request of these calls; the caller asks again.
const STORE_LIMIT: Duration = Duration::from_secs(5);

fn busy(text: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Busy, text)
}

impl AdminDoor {
    pub(super) async fn pin_snapshot(&self, request: v1::PinSnapshotRequest) -> Result<v1::PinSnapshotReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let snapshot = SnapshotId {
            name: holdfast_api::name("snapshot", &request.snapshot)?,
            made_by: snapshot_id(&request.snapshot_id)?,
        };
        let name = holdfast_api::name("clone", &request.clone_name)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let state = self.node.cluster.state();
        self.confirm(&set).await?;
        let origin = set.id;
        if let Some(clone) = there_already(&state, &Origin::Here(set.clone()), &snapshot, &name, id)? {
            return Ok(v1::PinSnapshotReply { clone: clone.0, origin: origin.0 });
        }
        if state.clone_depth(origin) >= CLONE_DEPTH_MAX {
            return Err(precondition(ClusterRefusal::TooDeep { origin, max: CLONE_DEPTH_MAX }.to_string()));
        }
        // The next number as known here. If another set takes it, `CloneSet` says so, and the caller starts again with
        // the next one.
        let clone = GroupId(state.next_set);
        match set.command("a clone's pin", &SetCommand::Pin { clone, snapshot, request: id }).await {
            Ok(SetAnswer::Pinned { root }) => {
                tracing::info!(set = %set.name, %clone, root = %root.object, "a root is pinned for a clone");
                set.head.wake();
                Ok(v1::PinSnapshotReply { clone: clone.0, origin: origin.0 })
            }
            Ok(other) => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => Err(self.of_set(&set, &e)),
        }
    }

    pub(super) async fn clone_set(&self, request: v1::CloneSetRequest) -> Result<v1::CloneSetReply, Refusal> {
        let adopted = self.led_cluster()?;
        let snapshot = SnapshotId {
            name: holdfast_api::name("snapshot", &request.snapshot)?,
            made_by: snapshot_id(&request.snapshot_id)?,
        };
        let name = holdfast_api::name("clone", &request.clone_name)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let clone: SetId = GroupId(request.clone);
        let _one = self.node.turns.sets.lock().await;
        let state = self.node.cluster.state();
        let origin = self.origin(&request.set, &state).await?;
        if let Some(made) = there_already(&state, &origin, &snapshot, &name, id)? {
            let created = state.links.get(&made).and_then(|l| l.clone_of.as_ref()).is_some_and(|of| of.request == id);
            return Ok(v1::CloneSetReply { set: super::status::summary(&state, made), created, passed: false });
        }
        if clone.0 != state.next_set {
            return Ok(passed());
        }
        let _none_joins = self.each_member_joined(&adopted).await?;
        let store = origin.store();
        if let Ok(Ok(_)) = tokio::time::timeout(STORE_LIMIT, store.get_object(&keys::head(clone))).await {
            // The place of that number is taken, for example by a tombstone from before a recovery.
            let command = ClusterCommand::PassSets { upto: clone };
            self.cluster_command(&adopted, &command).await?;
            return Ok(passed());
        }
        let (pin, found, next_volume) = origin.pinned(clone, &snapshot, id)?;
        origin.head_names(id, &pin).await?;
        let by = self.wrapping_key(&state)?;
        let data_key = DataKey::from_bytes(rand::rng().random());
        let wrapped_key = by.wrap(&data_key, clone, FIRST_KEY_ID, rand::rng().random());
        let key = SetKey::of(clone, FIRST_KEY_ID, data_key);
        let root = self.put_first_root((origin.id(), adopted.member), &store, &key, &pin, &found).await?;
        let volumes = found.volumes.iter().map(|(id, volume)| (*id, volume.clone())).collect();
        let clone_of = CloneOf { origin: origin.id(), snapshot: snapshot.name, root: pin.root, request: id };
        let command = ClusterCommand::CloneSet {
            set: clone,
            name: name.clone(),
            clone_of,
            wrapped_key,
            key_id: FIRST_KEY_ID,
            created_by: adopted.member,
            restored: Restored { volumes, next_volume, root: Some(root) },
        };
        let answer = match self.node.cluster.command(&adopted.group, &command).await {
            Ok(answer) => answer,
            Err(ClusterError::Refused(ClusterRefusal::SetIdPassed { .. })) => return Ok(passed()),
            Err(e) => return Err(self.of_cluster(&adopted.group, &e)),
        };
        match answer {
            ClusterAnswer::SetCreated { set: made } => {
                tracing::info!(set = %origin.name(), clone = %name, id = %made, "set cloned");
                let set = super::status::summary(&self.node.cluster.state(), made);
                Ok(v1::CloneSetReply { set, created: true, passed: false })
            }
            other => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
        }
    }

    /// The origin, by this gateway's part of it, or by its head in the store.
    async fn origin(&self, set: &str, state: &ClusterState) -> Result<Origin, Refusal> {
        let name = holdfast_api::name("set", set)?;
        let found = state.set_named(&name).filter(|_| self.node.set(&name).is_none());
        let Some((id, entry)) = found else { return self.set(set).map(Origin::Here) };
        if Placement::parse(&entry.store_url).next.is_some() {
            return Err(precondition(ClusterRefusal::OriginMoves { origin: id }.to_string()));
        }
        let read = async {
            let store = self.node.open_place(&entry.store_url, id).await.map_err(|e| busy(format!("store: {e}")))?;
            let object = store.get_object(&keys::head(id)).await;
            let object = object.map_err(|e| busy(format!("the head of set {name}: {e}")))?;
            Ok::<_, Refusal>((store, object.body))
        };
        let (store, body) = match tokio::time::timeout(STORE_LIMIT, read).await {
            Ok(done) => done?,
            Err(_) => return Err(busy(format!("store: no answer within {STORE_LIMIT:?}"))),
        };
        let head = self.open_head(id, &body);
        let head = head.ok_or_else(|| busy(format!("the head of set {name} does not open with the cluster's keys")))?;
        let life = SetLife { cluster: state.cluster_id, generation: entry.generation };
        match head.standing(life) {
            Standing::Ours => Ok(Origin::Elsewhere { id, name, store, head: Box::new(head) }),
            Standing::Older => Err(busy(format!("the head of set {name} is one of an earlier life; ask again"))),
            Standing::Taken => Err(precondition(format!("set {name} was taken over by another cluster"))),
        }
    }

    /// A root for the clone that has no content of its own: the clone begins with it. The term in its name is below
    /// that of every leader, so a sweep deletes it if nothing references it.
    async fn put_first_root(
        &self,
        (origin, me): (SetId, MemberId),
        store: &Arc<dyn ObjectStore>,
        key: &SetKey,
        pin: &Pin,
        found: &Snapshot,
    ) -> Result<RootRef, Refusal> {
        let root = first_root(origin, pin, found);
        let boot = self.node.identity().boot;
        let object = ObjectId { term: Term(0), member: me, boot, random: random_u128() };
        let body = seal_root(&root, key.sealer(object));
        let bytes = body.len() as u64;
        let at = keys::root(key.set, object);
        let put = store.put_new(&at, body);
        match tokio::time::timeout(STORE_LIMIT, put).await {
            Ok(Ok(())) => Ok(RootRef { object, bytes }),
            Ok(Err(e)) => Err(busy(format!("store: {e}"))),
            Err(_) => Err(busy(format!("store: no answer within {STORE_LIMIT:?}"))),
        }
    }
}

/// A clone's origin, as the leader of group 0 knows it.
enum Origin {
    /// Its group runs here.
    Here(Arc<SetServer>),
    /// It does not: its head has its pins and its snapshots, with everything that these name (HEAD-H2).
    Elsewhere { id: SetId, name: Name, store: Arc<dyn ObjectStore>, head: Box<Head> },
}

impl Origin {
    fn id(&self) -> SetId {
        match self {
            Self::Here(set) => set.id,
            Self::Elsewhere { id, .. } => *id,
        }
    }

    fn name(&self) -> &Name {
        match self {
            Self::Here(set) => &set.name,
            Self::Elsewhere { name, .. } => name,
        }
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        match self {
            Self::Here(set) => set.reader.mapping().store.clone(),
            Self::Elsewhere { store, .. } => store.clone(),
        }
    }

    /// The pin if it is known, the snapshot or why there is none, and the number of the next volume.
    fn known(&self, snapshot: &SnapshotId, request: RequestId) -> (Option<Pin>, Result<Snapshot, String>, u32) {
        match self {
            // This gateway may be a follower in the origin's group, and behind.
            Self::Here(set) => set.host.with(|m| {
                let state = m.state();
                let found = state.finished(snapshot).cloned().map_err(|refusal| refusal.to_string());
                (state.pins.get(&request).cloned(), found, state.next_volume)
            }),
            Self::Elsewhere { name, head, .. } => {
                let listed = head.links.snapshots.snapshots.get(&snapshot.name);
                let found = listed.filter(|listed| listed.request == snapshot.made_by).cloned();
                let found = found.ok_or_else(|| {
                    format!(
                        "the head of set {name} in its store does not list the snapshot {} (it lists the newest ones); a \
                         gateway that leads the cluster and has the set can clone it",
                        snapshot.name
                    )
                });
                (head.links.pins.get(&request).cloned(), found, head.content.next_volume)
            }
        }
    }

    /// The pin and the snapshot, as applied here or as the head has them.
    fn pinned(&self, clone: SetId, snapshot: &SnapshotId, request: RequestId) -> Result<(Pin, Snapshot, u32), Refusal> {
        let name = self.name();
        let (pin, found, next_volume) = self.known(snapshot, request);
        let pin = pin.filter(|pin| pin.clone == clone);
        let pin = pin.ok_or_else(|| busy(format!("the pin of set {name} for its clone is not known here yet")))?;
        let found = found.map_err(precondition)?;
        if found.root != pin.root {
            return Err(precondition(format!("the pin of set {name} is of another snapshot; ask again")));
        }
        Ok((pin, found, next_volume))
    }

    /// A recovery of the origin must find the pin, or it would delete what the clone uses (ADR 0013). So the store
    /// itself is asked, unless the pin is from there.
    async fn head_names(&self, request: RequestId, pin: &Pin) -> Result<(), Refusal> {
        let Self::Here(set) = self else { return Ok(()) };
        match tokio::time::timeout(STORE_LIMIT, set.head.names_pin(request, pin)).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(busy(format!("the head of set {} in its store does not name the pin yet", set.name))),
            Ok(Err(e)) => Err(busy(format!("the head of set {}: {e}", set.name))),
            Err(_) => Err(busy(format!("store: no answer within {STORE_LIMIT:?}"))),
        }
    }
}

/// Another set was made meanwhile.
fn passed() -> v1::CloneSetReply {
    v1::CloneSetReply { set: None, created: false, passed: true }
}

/// The clone, if it exists already: made by this request, or with the same name and of the same snapshot.
fn there_already(
    state: &ClusterState,
    origin: &Origin,
    snapshot: &SnapshotId,
    name: &Name,
    request: RequestId,
) -> Result<Option<SetId>, Refusal> {
    let made = |of: &CloneOf| of.origin == origin.id() && of.request == request;
    let by_request = state
        .links
        .iter()
        .find(|(set, links)| state.sets.contains_key(set) && links.clone_of.as_ref().is_some_and(made));
    if let Some((set, _)) = by_request {
        return Ok(Some(*set));
    }
    let Some((set, _)) = state.set_named(name) else { return Ok(None) };
    let root = origin.known(snapshot, request).1.map(|found| found.root).ok();
    let of = state.links.get(&set).and_then(|links| links.clone_of.as_ref());
    if of.is_some_and(|of| of.origin == origin.id() && Some(of.root) == root) {
        return Ok(Some(set));
    }
    let text = format!("a set named {name} exists already, and it is no clone of {}@{}", origin.name(), snapshot.name);
    Err(Refusal::new(RefusalCode::Exists, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::set::Links;
    use holdfast_store::Memory;
    use holdfast_types::{Epoch, LogId};

    /// The leader of group 0 has nothing of the origin: the head in the store has all that a clone needs (ADR 0075).
    #[test]
    fn a_clone_is_made_from_the_head_where_the_origin_is_elsewhere() {
        let root =
            |random| RootRef { object: ObjectId { term: Term(1), member: MemberId(2), boot: 1, random }, bytes: 100 };
        let (monday, request) = (Name::new("monday").unwrap(), RequestId(5));
        let listed = Snapshot {
            upto: LogId::new(1, 9),
            root: root(7),
            volumes: Default::default(),
            request: RequestId(3),
            at_unix_ms: 0,
            scheduled: false,
        };
        let pin = Pin {
            clone: GroupId(4),
            root: root(7),
            upto: LogId::new(1, 9),
            snapshot: monday.clone(),
            at: LogId::new(1, 10),
        };
        let mut links = Links::default();
        links.pins.insert(request, pin.clone());
        links.snapshots.snapshots.insert(monday.clone(), listed);
        let name = Name::new("demo").unwrap();
        let head = Head {
            life: SetLife { cluster: 7, generation: 1 },
            raised_for: 0,
            name: name.clone(),
            epoch: Epoch(1),
            covered: None,
            content: Restored { next_volume: 3, ..Restored::default() },
            links,
        };
        let origin = Origin::Elsewhere { id: GroupId(1), name, store: Arc::new(Memory::new()), head: Box::new(head) };
        let of = |made_by: u128| SnapshotId { name: monday.clone(), made_by: RequestId(made_by) };
        let found = origin.pinned(GroupId(4), &of(3), request).unwrap();
        assert_eq!((found.0, found.1.root, found.2), (pin, root(7), 3));
        let why = |clone: u64, made_by, request| {
            origin.pinned(GroupId(clone), &of(made_by), RequestId(request)).unwrap_err().to_string()
        };
        assert!(why(4, 3, 6).contains("is not known here yet"), "the head is older than the pin");
        assert!(why(5, 3, 5).contains("is not known here yet"), "of another clone");
        assert!(why(4, 8, 5).contains("does not list the snapshot monday"), "another one of that name");
    }
}
