//! The task that makes this gateway run what group 0 says.

use super::depart::{Places, depart, departs, leads, start_or_depart};
use super::starts::{Order, Starts, follow_stores};
use super::younger::Younger;
use super::{Adopted, Node, ended, members, peer_book};
use holdfast_control::cluster::{ClusterState, SetEntry};
use holdfast_seal::SealError;
use holdfast_set::server::SetServer;
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, SetId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Runs what group 0 says: the sets of this node, and the members of each group that this node leads.
pub(super) async fn run(node: Arc<Node>, adopted: Adopted) {
    let mut changes = node.cluster.changes();
    let mut book = BTreeMap::new();
    let (mut starts, stop) = (Starts::default(), node.stop.clone());
    let mut members = members::Follower::default();
    let (mut ender, mut places) = (ended::Ender::default(), Places::default());
    let mut younger = Younger::default();
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    let patience = node.timing.election_max() * 2;
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            _ = tick.tick() => {}
        }
        node.cache.look(node.started.elapsed());
        let state = Arc::new(node.cluster.state());
        note_peers(&node, &state, &mut book);
        // Before new sets start: a new set may have the name of a deleted one.
        ender.round(&node, &adopted, &state, &mut starts).await;
        places.keep(&state);
        younger.follow(&state, adopted.member, |boot, nonce| node.identity().is_of_this_process(boot, nonce));
        let order = |id: SetId, entry: &SetEntry| {
            let (node, adopted) = (node.clone(), adopted.clone());
            Order { node, adopted, id, entry: entry.clone(), state: state.clone(), younger: younger.has(id) }
        };
        for (id, entry) in &state.sets {
            if let Some(set) = node.set(&entry.name).filter(|set| set.id == *id) {
                places.runs(*id);
                follow_keys(&node, &set, entry);
                // A leader hands over first.
                if departs(&state, entry, adopted.member) && !leads(&set.group, patience) {
                    let order = order(*id, entry);
                    starts.begin(*id, &stop, |stop| depart(order, stop)).await;
                } else if set.switch.text() != entry.store_url {
                    let (node, stores) = (node.clone(), entry.store_url.clone());
                    starts.begin(*id, &stop, |stop| follow_stores(node, set, stores, stop)).await;
                }
            } else if !starts.is_busy(*id) && !adopted.raft.is_over(*id) && places.starts(&adopted.raft, *id, entry) {
                // If it is over, group 0 on this gateway is behind.
                let order = order(*id, entry);
                starts.begin(*id, &stop, |stop| start_or_depart(order, stop)).await;
            }
        }
        *node.away.locked() = places.said(&state, adopted.member);
        members.follow(&node, &adopted, &state).await;
    }
}

/// The set may have new wrapped keys (another cluster key, or another data key). From now on, they open and seal its
/// data and are written into its heads.
fn follow_keys(node: &Node, set: &SetServer, entry: &SetEntry) {
    let open = || {
        let keys = node.keys.unwrap_ring(&entry.wrapped_key, set.id)?;
        // Before the keys are used: a head must never use a key that its keyring does not have.
        set.head.set_keyring(node.keys.keyring_of(entry));
        Ok(keys)
    };
    let followed: Result<bool, SealError> = set.reader.mapping().key.follow(&entry.wrapped_key, entry.key_id, open);
    // The set keeps the keys that it has. A caller that asks for its keys is told that one is missing.
    if let Err(error) = followed {
        tracing::warn!(set = %set.name, %error, "a data key of the set cannot be unwrapped here");
    }
}

/// Keeps the list of other gateways on disk. It is needed if group 0 itself is damaged at the next start.
fn note_peers(node: &Node, state: &ClusterState, book: &mut BTreeMap<MemberId, String>) {
    let peers: BTreeMap<MemberId, String> = state.members.values().map(|m| (m.id, m.peer_addr.clone())).collect();
    if peers.is_empty() || peers == *book {
        return;
    }
    match peer_book::save(&node.config.data_dir, &peers) {
        Ok(()) => *book = peers,
        Err(error) => tracing::warn!(%error, "the list of the other gateways cannot be written to disk"),
    }
}
