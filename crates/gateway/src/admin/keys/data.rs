//! Changes the data key of a set, on the leader of group 0. A request starts the change, and a task continues it until
//! nothing is left to do (ADR 0023). `control::keys::data` decides each step from the answers of all gateways.

use super::AdminDoor;
use crate::admin::member::precondition;
use crate::node::{Adopted, Node};
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterCommand, ClusterState, Member, SetEntry};
use holdfast_control::keys::data::{Needs, Next, Ring, Said, next, next_key};
use holdfast_seal::{DataKey, join_ring, ring_ids, ring_wrapped_by, split_ring};
use holdfast_set::set_key::{KeyReport, SetKey};
use holdfast_types::{Name, SetId, Term};
use rand::RngExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two rounds while something is left. Each round asks every gateway.
const TURN: Duration = Duration::from_secs(2);

fn ring_of(entry: &SetEntry) -> Ring {
    Ring { keys: ring_ids(&entry.wrapped_key), seals: entry.key_id }
}

/// This gateway's answer about a set's keys.
pub(super) fn said(set: SetId, key: &SetKey) -> v1::DataKeys {
    let needs = key.report().map(|KeyReport { needs, uses, held }| v1::DataKeyNeeds {
        root: needs.root,
        needed: needs.needed.into_iter().collect(),
        settled: needs.settled,
        uses: uses
            .into_iter()
            .map(|(key, usage)| v1::DataKeyUse {
                key,
                objects: usage.objects,
                stored_bytes: usage.stored_bytes,
                live_bytes: usage.live_bytes,
            })
            .collect(),
        held: held.into_iter().map(|(key, what)| v1::DataKeyHeld { key, what }).collect(),
    });
    v1::DataKeys { set: set.0, has: key.ids().into_iter().collect(), needs }
}

/// The answers about one set of all gateways that may serve it or do, for the decision: those with a place in its
/// record, and those that still have it (VOTERS-V2).
fn view(state: &ClusterState, set: SetId, gateways: &[v1::GatewayKeys]) -> (Vec<Said>, Option<v1::DataKeyNeeds>) {
    let of = |keys: &v1::NodeKeys| keys.data_keys.iter().find(|said| said.set == set.0).cloned();
    let told_by = |member: &Member| gateways.iter().find(|gateway| gateway.member == member.id.0);
    let has_it = |member: &Member| told_by(member).and_then(|told| of(told.keys.as_ref()?)).is_some();
    let placed = |member: &Member| state.sets.get(&set).is_none_or(|entry| entry.has_place_for(member.id));
    let said = state.members.values().filter(|member| placed(member) || has_it(member)).map(|member| {
        let told = told_by(member);
        let has = match told.map(|told| (&told.keys, &told.error)) {
            Some((Some(keys), _)) => {
                of(keys).map(|said| said.has.into_iter().collect()).ok_or("the set does not run there".to_string())
            }
            Some((None, error)) => Err(error.clone()),
            None => Err("was not asked".to_string()),
        };
        Said { name: member.name.clone(), has }
    });
    // If two gateways both believe to lead, the answer of either is true (DATAKEY-Z3).
    let needs = gateways.iter().filter_map(|gateway| of(gateway.keys.as_ref()?)?.needs).next();
    (said.collect(), needs)
}

fn needs_of(told: &v1::DataKeyNeeds) -> Needs {
    Needs { root: told.root, needed: told.needed.iter().copied().collect(), settled: told.settled }
}

/// The status of a set's data keys.
pub(super) fn of_set(state: &ClusterState, set: SetId, gateways: &[v1::GatewayKeys]) -> v1::SetKeys {
    let Some(entry) = state.sets.get(&set) else { return v1::SetKeys::default() };
    let ring = ring_of(entry);
    let (said, needs) = view(state, set, gateways);
    let waits = match next(&ring, &said, needs.as_ref().map(needs_of).as_ref()) {
        Next::Waits(waits) => waits.iter().map(ToString::to_string).collect(),
        Next::Nothing | Next::Seal(_) | Next::Drop(_) => Vec::new(),
    };
    v1::SetKeys { keys: ring.keys.iter().copied().collect(), seals: ring.seals, needs, waits, ..Default::default() }
}

/// The key ring with one more key, wrapped like the others.
fn with_new_key(door: &AdminDoor, set: SetId, entry: &SetEntry, key_id: u32) -> Result<Vec<u8>, Refusal> {
    let keys = door.node.keys();
    // A ring that cannot be opened must not get a new key in front.
    keys.unwrap_ring(&entry.wrapped_key, set).map_err(|e| precondition(format!("nothing was changed: {e}")))?;
    let by = ring_wrapped_by(&entry.wrapped_key).and_then(|by| keys.get(by)).ok_or_else(|| {
        precondition("nothing was changed: the set's keys are wrapped by another cluster key than this gateway has")
    })?;
    let mut wrapped: Vec<Vec<u8>> = split_ring(&entry.wrapped_key)
        .map_err(|e| precondition(e.to_string()))?
        .into_iter()
        .map(|(_, wrapped)| wrapped.to_vec())
        .collect();
    wrapped.push(by.wrap(&DataKey::from_bytes(rand::rng().random()), set, key_id, rand::rng().random()));
    Ok(join_ring(wrapped))
}

fn without(ring: &[u8], gone: &BTreeSet<u32>) -> Option<Vec<u8>> {
    let kept = split_ring(ring).ok()?.into_iter().filter(|(id, _)| !gone.contains(id));
    Some(join_ring(kept.map(|(_, wrapped)| wrapped.to_vec()).collect())).filter(|ring| !ring.is_empty())
}

/// The log entry that carries out the decision; `None` if there is nothing to do.
fn command_for(set: SetId, entry: &SetEntry, next: &Next) -> Option<ClusterCommand> {
    let (wrapped_key, key_id) = match next {
        Next::Seal(key) => (entry.wrapped_key.clone(), *key),
        Next::Drop(gone) => (without(&entry.wrapped_key, gone)?, entry.key_id),
        Next::Nothing | Next::Waits(_) => return None,
    };
    Some(ClusterCommand::SwapKeys { set, expected: entry.wrapped_key.clone(), wrapped_key, key_id })
}

impl AdminDoor {
    pub(in crate::admin) async fn rotate_data_key(
        &self,
        request: v1::RotateDataKeyRequest,
    ) -> Result<v1::ListKeysReply, Refusal> {
        self.led_cluster()?;
        let name = holdfast_api::name("set", &request.set)?;
        let after = request.after;
        let rotate =
            move |door: Self, adopted, term| async move { door.new_data_key(&name, after, &adopted, term).await };
        self.alone(&self.node.turns.sets, rotate).await?;
        self.list_keys(v1::ListKeysRequest {}).await
    }

    async fn new_data_key(&self, name: &Name, after: u32, adopted: &Adopted, term: Term) -> Result<(), Refusal> {
        let state = self.node.cluster.state();
        let Some((set, entry)) = state.set_named(name) else {
            return Err(Refusal::new(RefusalCode::NotFound, format!("there is no set {name}")));
        };
        let ring = ring_of(entry);
        if ring.newest() > after {
            // R12: carried out before.
            return Ok(());
        }
        let key_id = next_key(&ring).map_err(|e| precondition(e.to_string()))?;
        let wrapped_key = with_new_key(self, set, entry, key_id)?;
        let expected = entry.wrapped_key.clone();
        // Nothing is sealed with the new key before every gateway has it (DATAKEY-Z1).
        let command = ClusterCommand::SwapKeys { set, expected, wrapped_key, key_id: entry.key_id };
        self.cluster_command_in(adopted, term, &command).await?;
        tracing::info!(set = %name, key = key_id, "the set gets a new data key");
        Ok(())
    }

    /// One round for every set whose data key is being changed.
    async fn carry_on(&self, adopted: &Adopted) -> Result<(), Refusal> {
        let (state, gateways) = self.asked().await?;
        for (set, entry) in state.sets.iter().filter(|(_, entry)| ring_of(entry).is_changing()) {
            let (said, needs) = view(&state, *set, &gateways);
            let next = next(&ring_of(entry), &said, needs.as_ref().map(needs_of).as_ref());
            // SwapKeys compares the ring: if it has changed, the next round looks again.
            let Some(command) = command_for(*set, entry, &next) else { continue };
            let _one = self.node.turns.sets.lock().await;
            self.cluster_command(adopted, &command).await?;
            match next {
                Next::Seal(key) => {
                    tracing::info!(set = %entry.name, key, "every gateway has the new data key: it is now in use")
                }
                Next::Drop(gone) => {
                    tracing::info!(set = %entry.name, keys = ?gone, "nothing needs these data keys any more: they are dropped permanently");
                }
                Next::Nothing | Next::Waits(_) => {}
            }
        }
        Ok(())
    }
}

/// Continues changes of data keys while this gateway leads group 0.
pub(crate) async fn run(node: Arc<Node>, adopted: Adopted) {
    let door = AdminDoor::new(node.clone());
    while node.passes(TURN).await {
        let leads = adopted.group.ready_term().is_some();
        if !leads || !node.cluster.state().sets.values().any(|entry| ring_of(entry).is_changing()) {
            continue;
        }
        if let Err(error) = door.carry_on(&adopted).await {
            tracing::debug!(%error, "changes of data keys will be continued later");
        }
    }
}

#[cfg(test)]
mod tests;
