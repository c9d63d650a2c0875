//! Calls about keys: which cluster key wraps which key, and a change of the cluster key. `control::keys` decides from
//! the current state of every gateway.

use super::AdminDoor;
use crate::node_key;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterCommand, ClusterState, Deletion, DeletionStage, SetEntry};
use holdfast_control::keys::{AtHand, Gateway, Set, Step, View, left, objections};
use holdfast_seal::{join_ring, ring_wrapped_by};
use holdfast_set::keyring::NotForNew;
use holdfast_types::{MemberId, SetId};
use rand::RngExt;
use std::collections::BTreeMap;

pub(crate) mod data;

fn text(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

fn fingerprint(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

impl AdminDoor {
    /// The keys of this gateway.
    pub(super) fn node_keys(&self) -> v1::NodeKeys {
        let keys = self.node.keys();
        let node = node_key::wrapped_now(&self.node.config.data_dir).unwrap_or_else(|error| {
            tracing::warn!(%error, "node key");
            Some(0)
        });
        let state = self.node.cluster.state();
        let running = state.sets.iter().filter_map(|(id, entry)| Some((id, self.node.set(&entry.name)?)));
        let data_keys = running.map(|(id, set)| data::said(*id, &set.reader.mapping().key)).collect();
        let led = state.sets.iter().filter_map(|(id, entry)| Some((id, self.node.set(&entry.name)?)));
        let head = |(id, set): (&SetId, std::sync::Arc<holdfast_set::server::SetServer>)| {
            set.leading_ready()?;
            let by = ring_wrapped_by(&set.head.stored_keyring()?.wrapped_key)?;
            Some(v1::HeadKey { set: id.0, wrapped_by: by.to_string() })
        };
        v1::NodeKeys {
            current: keys.current().fingerprint().to_string(),
            previous: keys.previous().map(|key| key.fingerprint().to_string()).unwrap_or_default(),
            node: node.map(text).unwrap_or_default(),
            heads: led.filter_map(head).collect(),
            not_for_new: keys.check_new().err().map(|why| why.to_string()).unwrap_or_default(),
            data_keys,
        }
    }

    /// The keys of every gateway.
    pub(super) async fn asked(&self) -> Result<(ClusterState, Vec<v1::GatewayKeys>), Refusal> {
        let status = self.cluster_status(v1::ClusterStatusRequest {}).await?;
        let said = status.members.into_iter().map(|m| {
            let member = m.member.unwrap_or_default();
            let lacks = "its build cannot change keys";
            let (keys, error) = match m.node {
                Some(node) if node.keys.is_some() => (node.keys, String::new()),
                Some(_) => (None, lacks.to_string()),
                None => (None, m.error),
            };
            v1::GatewayKeys { member: member.id, name: member.name, keys, error }
        });
        Ok((self.node.cluster.state(), said.collect()))
    }

    pub(super) async fn list_keys(&self, _: v1::ListKeysRequest) -> Result<v1::ListKeysReply, Refusal> {
        let target = self.node.keys().current().fingerprint();
        let (state, gateways) = self.asked().await?;
        let view = view_of(&state, &gateways);
        let set_keys = |(id, set): (&SetId, &Set)| v1::SetKeys {
            id: id.0,
            name: set.name.to_string(),
            wrapped_by: set.wrapped_by.map(text).unwrap_or_default(),
            head: set.head.map(text).unwrap_or_default(),
            ..data::of_set(&state, *id, &gateways)
        };
        Ok(v1::ListKeysReply {
            current: target.to_string(),
            sets: view.sets.iter().map(set_keys).collect(),
            left: left(&view, target.0).into_iter().map(|step| step_text(&view, step)).collect(),
            objections: objections(&view, target.0).iter().map(ToString::to_string).collect(),
            gateways,
        })
    }

    pub(super) async fn rotate_cluster_key(
        &self,
        _: v1::RotateClusterKeyRequest,
    ) -> Result<v1::ListKeysReply, Refusal> {
        let adopted = self.led_cluster()?;
        // No set may be created meanwhile: the old key would wrap it after its turn.
        let _one = self.node.turns.sets.lock().await;
        let target = self.node.keys().current().fingerprint();
        let (state, gateways) = self.asked().await?;
        // Its head still has to be replaced, using its own key.
        let ending = |found: &&Deletion| found.stage == DeletionStage::Ending;
        if let Some(going) = state.deletions.under_way.values().find(ending) {
            let message = format!(
                "set {} is being deleted and still has its key: wait until the key is gone (holdfast set list)",
                going.entry.name
            );
            return Err(Refusal::new(RefusalCode::Precondition, message));
        }
        let view = view_of(&state, &gateways);
        let objections: Vec<String> = objections(&view, target.0).iter().map(ToString::to_string).collect();
        if !objections.is_empty() {
            let name = &self.node.config.name;
            let message =
                format!("nothing was changed to {target}, the [key] of gateway {name}: {}", objections.join("; "));
            return Err(Refusal::new(RefusalCode::Precondition, message));
        }
        let steps = left(&view, target.0);
        fit_for(self.node.keys().check_new(), &steps).map_err(|why| {
            let message = format!("nothing was changed to the [key] of gateway {}: {why}", self.node.config.name);
            Refusal::new(RefusalCode::Precondition, message)
        })?;
        // Rewrap everything in memory before anything is proposed.
        let sets = steps.iter().filter_map(|step| match step {
            Step::Set(id) => Some((*id, state.sets.get(id)?)),
            _ => None,
        });
        let commands: Vec<ClusterCommand> =
            sets.map(|(id, entry)| self.rewrapped(id, entry)).collect::<Result<_, _>>()?;
        if !steps.is_empty() {
            tracing::info!(to = %target, sets = commands.len(), "changing the cluster key");
        }
        for command in &commands {
            self.cluster_command(&adopted, command).await?;
        }
        for step in &steps {
            if let Step::Node(member) = step {
                self.rewrap_node(*member, target.to_string()).await?;
            }
        }
        self.list_keys(v1::ListKeysRequest {}).await
    }

    fn rewrapped(&self, set: SetId, entry: &SetEntry) -> Result<ClusterCommand, Refusal> {
        let keys = self.node.keys();
        let data_keys = keys.unwrap_ring(&entry.wrapped_key, set).map_err(|e| {
            Refusal::new(RefusalCode::Precondition, format!("nothing was changed: set {}: {e}", entry.name))
        })?;
        let wrapped = data_keys.iter().map(|(id, key)| keys.current().wrap(key, set, *id, rand::rng().random()));
        Ok(ClusterCommand::SwapKeys {
            set,
            expected: entry.wrapped_key.clone(),
            wrapped_key: join_ring(wrapped.collect()),
            key_id: entry.key_id,
        })
    }

    async fn rewrap_node(&self, id: MemberId, to: String) -> Result<(), Refusal> {
        let request = v1::RewrapNodeKeyRequest { to };
        let Some(member) = self.node.cluster.member(id) else { return Ok(()) };
        if self.node.adopted().is_some_and(|own| own.member == id) {
            return self.rewrap_node_key(request).await.map(drop);
        }
        let limit = self.answer_limit(Some(id));
        let asked = async {
            let mut client = self.client(&member.api_addr, limit).await?;
            client.rewrap_node_key(request).await.map(drop).map_err(|s| s.to_string())
        };
        let asked =
            tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")));
        asked.map_err(|why| {
            let message = format!(
                "gateway {} has not rewrapped its node key: {why}; finished steps stay, and the same command again does the rest",
                member.name
            );
            Refusal::new(RefusalCode::Unknown, message)
        })
    }

    pub(super) async fn rewrap_node_key(
        &self,
        request: v1::RewrapNodeKeyRequest,
    ) -> Result<v1::RewrapNodeKeyReply, Refusal> {
        let keys = self.node.keys();
        let current = keys.current().fingerprint();
        if fingerprint(&request.to) != Some(current.0) {
            let message = format!("to: found {:?}, expected {current}, the [key] of this gateway", request.to);
            return Err(Refusal::new(RefusalCode::Precondition, message));
        }
        let config = &self.node.config;
        // One at a time: two calls would write the same file.
        let _one = self.node.turns.node_key.lock().await;
        node_key::rewrap(&config.data_dir, self.node.identity().disk(), keys)
            .map_err(|e| Refusal::new(RefusalCode::Failed, e.to_string()))?;
        Ok(v1::RewrapNodeKeyReply {})
    }
}

/// KEYRING-W1. Where nothing is left to do, nothing is changed to the key.
fn fit_for(weak: Result<(), NotForNew>, steps: &[Step]) -> Result<(), NotForNew> {
    if steps.is_empty() { Ok(()) } else { weak }
}

fn view_of(state: &ClusterState, gateways: &[v1::GatewayKeys]) -> View {
    let said = |said: &v1::GatewayKeys| match &said.keys {
        None => Err(said.error.clone()),
        Some(keys) => {
            let current = fingerprint(&keys.current).ok_or_else(|| format!("current: found {:?}", keys.current))?;
            Ok(AtHand { current, previous: fingerprint(&keys.previous), node: fingerprint(&keys.node) })
        }
    };
    let by_member: BTreeMap<u64, &v1::GatewayKeys> = gateways.iter().map(|g| (g.member, g)).collect();
    let gateway = |(id, member): (&MemberId, &holdfast_control::cluster::Member)| {
        let keys = by_member.get(&id.0).map_or(Err("was not asked".to_string()), |g| said(g));
        (*id, Gateway { name: member.name.clone(), keys })
    };
    let heads: Vec<&v1::HeadKey> = gateways.iter().filter_map(|g| g.keys.as_ref()).flat_map(|k| &k.heads).collect();
    let set = |(id, entry): (&SetId, &SetEntry)| {
        let seen = heads.iter().filter(|h| h.set == id.0).map(|h| fingerprint(&h.wrapped_by));
        // Two gateways that both believe to lead, with different answers: unknown.
        let mut seen: Vec<Option<u64>> = seen.collect();
        seen.dedup();
        let head = if seen.len() == 1 { seen.first().copied().flatten() } else { None };
        let wrapped_by = ring_wrapped_by(&entry.wrapped_key).map(|by| by.0);
        (*id, Set { name: entry.name.clone(), wrapped_by, head })
    };
    View { gateways: state.members.iter().map(gateway).collect(), sets: state.sets.iter().map(set).collect() }
}

fn step_text(view: &View, step: Step) -> String {
    let set = |id: SetId| view.sets.get(&id).map_or(String::new(), |set| set.name.to_string());
    match step {
        Step::Set(id) => format!("data key of set {}", set(id)),
        Step::Head(id) => format!("head of set {} in its store", set(id)),
        Step::Node(id) => {
            format!("node key of gateway {}", view.gateways.get(&id).map_or(String::new(), |g| g.name.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_set::keyring::{ClusterKeys, KeySource};

    /// A cluster that was made with a weak passphrase shows its keys, and does not change to that one.
    #[tokio::test]
    async fn no_change_leads_to_a_weak_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passphrase");
        node_key::write_key(&file);
        let source = KeySource { passphrase_file: Some(file), ..KeySource::default() };
        let weak = ClusterKeys::load(&source, &KeySource::default()).await.unwrap();
        let strong = ClusterKeys::of_bytes(1, None);
        let steps = [Step::Node(MemberId(1))];
        assert!(matches!(fit_for(weak.check_new(), &steps), Err(NotForNew::Weak(_))));
        assert_eq!(fit_for(weak.check_new(), &[]), Ok(()));
        assert_eq!(fit_for(strong.check_new(), &steps), Ok(()));
    }
}
