//! Calls that make a clone (ADR 0028). They must be made in this order:
//!
//! ```text
//!   PinSnapshot, at the origin's leader: the root is pinned for set number N ─▶ the head in the store lists the pin
//!   CloneSet, at group 0's leader: does the head list the pin? ─▶ write a root on top of the origin's ─▶ set N in group 0
//! ```
//! If the procedure stops in between, it leaves a pin, which is dropped once number N is passed, and a root of some
//! hundred bytes, which a sweep of set N finds.

use super::AdminDoor;
use super::snapshot::snapshot_id;
use crate::node::{Adopted, is_near};
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState};
use holdfast_control::set::{
    CLONE_DEPTH_MAX, CloneOf, Pin, Restored, RootRef, SetAnswer, SetCommand, Snapshot, SnapshotId,
};
use holdfast_raft::MemberStatus;
use holdfast_seal::DataKey;
use holdfast_set::clones::first_root;
use holdfast_set::cluster::ClusterError;
use holdfast_set::mapping::SetKey;
use holdfast_set::random::random_u128;
use holdfast_set::server::SetServer;
use holdfast_store::keys;
use holdfast_types::{GroupId, MemberId, Name, ObjectId, RequestId, SetId, Term};
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

fn precondition(text: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Precondition, text)
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
        if let Some(clone) = there_already(&state, &set, &snapshot, &name, id)? {
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
        self.lead_at_origin(&request.set, &adopted).await?;
        let set = self.set(&request.set)?;
        let snapshot = SnapshotId {
            name: holdfast_api::name("snapshot", &request.snapshot)?,
            made_by: snapshot_id(&request.snapshot_id)?,
        };
        let name = holdfast_api::name("clone", &request.clone_name)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let clone: SetId = GroupId(request.clone);
        let _one = self.node.turns.sets.lock().await;
        let state = self.node.cluster.state();
        if let Some(made) = there_already(&state, &set, &snapshot, &name, id)? {
            let created = state.links.get(&made).and_then(|l| l.clone_of.as_ref()).is_some_and(|of| of.request == id);
            return Ok(v1::CloneSetReply { set: super::status::summary(&state, made), created, passed: false });
        }
        if clone.0 != state.next_set {
            return Ok(passed());
        }
        let _none_joins = self.each_member_joined(&adopted).await?;
        let store = set.reader.mapping().store.clone();
        if let Ok(Ok(_)) = tokio::time::timeout(STORE_LIMIT, store.get_object(&keys::head(clone))).await {
            // The place of that number is taken, for example by a tombstone from before a recovery.
            let command = ClusterCommand::PassSets { upto: clone };
            self.cluster_command(&adopted, &command).await?;
            return Ok(passed());
        }
        let (pin, found, next_volume) = pinned(&set, clone, &snapshot, id)?;
        head_names(&set, id, &pin).await?;
        let by = self.wrapping_key(&state)?;
        let data_key = DataKey::from_bytes(rand::rng().random());
        let wrapped_key = by.wrap(&data_key, clone, FIRST_KEY_ID, rand::rng().random());
        let key = SetKey::of(clone, FIRST_KEY_ID, data_key);
        let root = self.put_first_root(&set, &key, &pin, &found).await?;
        let volumes = found.volumes.iter().map(|(id, volume)| (*id, volume.clone())).collect();
        let clone_of = CloneOf { origin: set.id, snapshot: snapshot.name, root: pin.root, request: id };
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
                tracing::info!(set = %set.name, clone = %name, id = %made, "set cloned");
                let set = super::status::summary(&self.node.cluster.state(), made);
                Ok(v1::CloneSetReply { set, created: true, passed: false })
            }
            other => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
        }
    }

    /// The leader of group 0 makes a clone, and needs the origin for that (VOTERS-V2). One that does not have it hands
    /// leadership of group 0 to a gateway that has it, and the caller asks again.
    async fn lead_at_origin(&self, origin: &str, adopted: &Adopted) -> Result<(), Refusal> {
        let origin = holdfast_api::name("set", origin)?;
        let Some((_, entry)) = self.node.cluster.set_named(&origin) else { return Ok(()) };
        if entry.has_place_for(adopted.member) || self.node.set(&origin).is_some() {
            return Ok(());
        }
        let (state, status) = (self.node.cluster.state(), adopted.group.status());
        let patience = self.node.timing.election_max();
        let serves = |id: MemberId| state.members.get(&id).is_some_and(|m| m.serves() && entry.has_place_for(id));
        // A transfer to one that cannot take over would leave group 0 without a leader for a while.
        let fit = |m: &&MemberStatus| {
            m.voter && is_near(&status, m) && m.silent.is_some_and(|silent| silent <= patience) && serves(m.member)
        };
        let Some(heir) = status.members.iter().find(fit).map(|m| m.member) else {
            return Err(busy(format!("no gateway that has set {origin} answers and could lead the cluster")));
        };
        tracing::info!(set = %origin, to = %heir, "a clone is created at the leader of its origin: handing leadership of the cluster over");
        let handed = adopted.group.transfer_leader(heir).await;
        let what = handed.map_or_else(|e| e.to_string(), |()| format!("{heir} has it and is to lead the cluster"));
        Err(busy(format!(
            "a clone is made by the gateway that leads the cluster, and this one does not have set {origin}: {what}"
        )))
    }

    /// A root for the clone that has no content of its own: the clone begins with it. The term in its name is below
    /// that of every leader, so a sweep deletes it if nothing references it.
    async fn put_first_root(
        &self,
        origin: &Arc<SetServer>,
        key: &SetKey,
        pin: &Pin,
        found: &Snapshot,
    ) -> Result<RootRef, Refusal> {
        let root = first_root(origin.id, pin, found);
        let boot = self.node.identity().boot;
        let object = ObjectId { term: Term(0), member: origin.me(), boot, random: random_u128() };
        let body = seal_root(&root, key.sealer(object));
        let bytes = body.len() as u64;
        let at = keys::root(key.set, object);
        let put = origin.reader.mapping().store.put_new(&at, body);
        match tokio::time::timeout(STORE_LIMIT, put).await {
            Ok(Ok(())) => Ok(RootRef { object, bytes }),
            Ok(Err(e)) => Err(busy(format!("store: {e}"))),
            Err(_) => Err(busy(format!("store: no answer within {STORE_LIMIT:?}"))),
        }
    }
}

/// A recovery of the origin must find the pin, or it would delete what the clone uses (ADR 0013). So the store itself
/// is asked.
async fn head_names(set: &SetServer, request: RequestId, pin: &Pin) -> Result<(), Refusal> {
    match tokio::time::timeout(STORE_LIMIT, set.head.names_pin(request, pin)).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(busy(format!("the head of set {} in its store does not name the pin yet", set.name))),
        Ok(Err(e)) => Err(busy(format!("the head of set {}: {e}", set.name))),
        Err(_) => Err(busy(format!("store: no answer within {STORE_LIMIT:?}"))),
    }
}

/// Another set was made meanwhile.
fn passed() -> v1::CloneSetReply {
    v1::CloneSetReply { set: None, created: false, passed: true }
}

/// The pin and the snapshot, as applied here.
fn pinned(
    set: &SetServer,
    clone: SetId,
    snapshot: &SnapshotId,
    request: RequestId,
) -> Result<(Pin, Snapshot, u32), Refusal> {
    set.host.with(|m| {
        let state = m.state();
        // This gateway may be a follower in the origin's group, and behind.
        let pin = state.pins.get(&request).filter(|pin| pin.clone == clone).cloned();
        let pin =
            pin.ok_or_else(|| busy(format!("the pin of set {} for its clone is not known here yet", set.name)))?;
        let found = state.finished(snapshot).map_err(|refusal| precondition(refusal.to_string()))?.clone();
        if found.root != pin.root {
            return Err(precondition(format!("the pin of set {} is of another snapshot; ask again", set.name)));
        }
        Ok((pin, found, state.next_volume))
    })
}

/// The clone, if it exists already: made by this request, or with the same name and of the same snapshot.
fn there_already(
    state: &ClusterState,
    origin: &SetServer,
    snapshot: &SnapshotId,
    name: &Name,
    request: RequestId,
) -> Result<Option<SetId>, Refusal> {
    let made = |of: &CloneOf| of.origin == origin.id && of.request == request;
    let by_request = state
        .links
        .iter()
        .find(|(set, links)| state.sets.contains_key(set) && links.clone_of.as_ref().is_some_and(made));
    if let Some((set, _)) = by_request {
        return Ok(Some(*set));
    }
    let Some((set, _)) = state.set_named(name) else { return Ok(None) };
    let root = origin.host.with(|m| m.state().finished(snapshot).map(|found| found.root).ok());
    let of = state.links.get(&set).and_then(|links| links.clone_of.as_ref());
    if of.is_some_and(|of| of.origin == origin.id && Some(of.root) == root) {
        return Ok(Some(set));
    }
    let text = format!("a set named {name} exists already, and it is no clone of {}@{}", origin.name, snapshot.name);
    Err(Refusal::new(RefusalCode::Exists, text))
}
