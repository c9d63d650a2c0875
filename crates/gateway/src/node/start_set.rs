//! Starts everything that runs for one set on one gateway: its group, and around it head, reader, server, uploader and
//! space keeper.

use super::ended::{Running, fence_note, scrub_note};
use super::{Adopted, Node, NodeError, PAGE_MEMORY_SHARE, READ_AHEAD_SHARE};
use crate::config::Compression;
use holdfast_control::cluster::SetEntry;
use holdfast_control::set::Links;
use holdfast_set::bad_reads::Inspector;
use holdfast_set::bases::KeyOf;
use holdfast_set::clones;
use holdfast_set::etcd_mirror::Told;
use holdfast_set::head::{ByOwnKeyring, HeadKeeper, HeadParts};
use holdfast_set::host::SetHost;
use holdfast_set::mapping::Mapping;
use holdfast_set::pace::JournalPace;
use holdfast_set::reader::Reader;
use holdfast_set::repair::Repairer;
use holdfast_set::schedule;
use holdfast_set::scrub::{ScrubSettings, Scrubber};
use holdfast_set::server::{SetParts, SetServer};
use holdfast_set::space::{SpaceKeeper, SpaceSettings};
use holdfast_set::store_migration::Mover;
use holdfast_set::uploader::{UploadSettings, Uploader};
use holdfast_set::warm::Warmer;
use holdfast_store::{Health, Switch};
use holdfast_types::sync::LockExt;
use holdfast_types::sync::RwLockExt;
use holdfast_types::{ByteSize, SECTOR_BYTES, Sectors, SetId};
use holdfast_volume::head::{SetLife, read_keyring};
use holdfast_volume::map::LeafShape;
use holdfast_volume::segment::Codec;
use holdfast_volume::space::MoveLimits;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The data keys of origins of clones, from group 0. An origin exists as long as its clones do, and a recovery restores
/// it before them.
fn key_of(node: &Arc<Node>) -> KeyOf {
    let node = Arc::downgrade(node);
    Arc::new(move |set| {
        let node = node.upgrade().ok_or("stopping")?;
        let state = node.cluster.state();
        let entry = state
            .sets
            .get(&set)
            .ok_or_else(|| format!("the cluster has a clone of set {set}, but not the set itself"))?;
        let key = node.keys.set_key(set, entry);
        key.map_err(|e| format!("the data key of set {set} cannot be unwrapped with this gateway's cluster key: {e}"))
    })
}

/// Opens a head of the set with the keyring inside it. This gateway's cluster keys authenticate the keyring, so a store
/// cannot choose the key.
fn by_own_keyring(node: &Arc<Node>, set: SetId) -> ByOwnKeyring {
    let node = Arc::downgrade(node);
    Arc::new(move |body| {
        let node = node.upgrade()?;
        let (header, keyring) = read_keyring(body).ok()?;
        let key = node.keys.open_keyring(&keyring, set, header.key_id).ok()?;
        holdfast_set::head::open(&key, body).ok()
    })
}

/// How this gateway divides roots. A setting says which roots are large.
fn leaf_shape(whole_root: Option<ByteSize>, shape: LeafShape) -> LeafShape {
    whole_root.map_or(shape, |bytes| LeafShape { whole_bytes: bytes.0, ..shape })
}

/// Starts what group 0 says should run here.
pub(super) async fn start_set(
    node: &Arc<Node>,
    adopted: &Adopted,
    id: SetId,
    entry: &SetEntry,
    state: &holdfast_control::cluster::ClusterState,
) -> Result<(), NodeError> {
    let config = &node.config;
    // Stops only this set, if it is deleted.
    let stop = node.stop.child_token();
    let mut tasks = Vec::new();
    let key = node.keys.set_key(id, entry).map_err(|e| {
        NodeError::Refused(format!("its data key cannot be unwrapped with this gateway's cluster key: {e}"))
    })?;
    let health = Arc::new(Health::new(entry.name.to_string()));
    let store = (node.seams.store)(config, &entry.store_url, health.clone())
        .await
        .map_err(|e| NodeError::Refused(format!("its store: {e}")))?;
    let switch = Arc::new(Switch::new(&entry.store_url, store));
    let page_bytes = usize::try_from(config.cache.memory.0 / PAGE_MEMORY_SHARE).unwrap_or(usize::MAX);
    let boot = node.identity().boot;
    let note = fence_note(&config.data_dir, id);
    let unread = format!("{}: the note whether this gateway may serve the set", note.display());
    let head = HeadKeeper::new(HeadParts {
        name: entry.name.clone(),
        life: SetLife { cluster: state.cluster_id, generation: entry.generation },
        keyring: node.keys.keyring_of(entry).into(),
        key: key.clone(),
        store: switch.clone(),
        member: adopted.member,
        boot,
        note,
        clone_of: state.links.get(&id).and_then(|links| links.clone_of.clone()),
        by_own_keyring: Some(by_own_keyring(node, id)),
        pair: node.pair().cloned(),
    })
    .map_err(|source| NodeError::Io { what: unread, source })?;
    // Read-ahead data must still be in the cache when its reader comes.
    let read_ahead = Sectors(config.cache.read_ahead.0.min(config.cache.memory.0 / READ_AHEAD_SHARE) / SECTOR_BYTES);
    let mapping =
        Mapping::new(key, switch.clone(), health.clone(), node.cache.clone(), page_bytes, read_ahead, stop.clone());
    let mapping = mapping.map_err(|e| NodeError::Cache(e.to_string()))?;
    // A gateway with a small cache has little memory for leaves too. Leaves that are not in memory go through the page
    // cache.
    let leaf_bytes = node.seams.leaf_bytes.min(page_bytes as u64);
    let mapping = Arc::new(mapping.with_origins(key_of(node)).with_leaf_bytes(leaf_bytes));
    let host = Arc::new(SetHost::new(entry, state.links.get(&id).unwrap_or(&Links::default())));
    let group = adopted.raft.start_group(id, host.clone(), None).await?;
    let reader = Reader::new(group.clone(), host.clone(), mapping.clone());
    let pace = Arc::new(JournalPace::new(adopted.raft.log().clone(), host.clone()));
    let server = SetServer::new(SetParts {
        id,
        name: entry.name.clone(),
        group: group.clone(),
        host,
        reader,
        pace: pace.clone(),
        head: head.clone(),
        health,
        switch: switch.clone(),
        timing: node.timing,
        stop: stop.clone(),
    });
    tasks.push(tokio::spawn(server.clone().run()));
    tasks.push(tokio::spawn(head.watch(server.clone(), stop.clone())));
    let election_max = node.timing.election_max();
    let inspector =
        Inspector::new(server.clone(), node.cluster.clone(), adopted.raft.clone(), election_max, stop.clone());
    tasks.push(tokio::spawn(inspector.run()));
    let settings = UploadSettings {
        bytes: config.upload.bytes.0,
        interval: Duration::from_millis(config.upload.interval_ms),
        parallel: usize::try_from(config.upload.parallel).unwrap_or(1),
        codec: match config.upload.compression {
            Compression::None => Codec::None,
            Compression::Lz4 => Codec::Lz4,
            Compression::Zstd => Codec::Zstd,
        },
        target_percent: config.space.target_percent,
        moves: MoveLimits {
            bytes_per_second: config.space.move_bytes_per_second.0,
            requests_per_second: config.space.move_requests_per_second,
        },
        keep_uploaded: config.cache.keep_uploaded && config.cache.disk.0 > 0,
    };
    let space = SpaceSettings {
        grace: Duration::from_millis(config.space.grace_ms),
        deletes_per_second: config.space.deletes_per_second,
        sweep_interval: Duration::from_millis(config.space.sweep_interval_ms),
    };
    if let Some(mirror) = &node.mirror {
        let life = SetLife { cluster: state.cluster_id, generation: entry.generation };
        let told = Told::new(server.clone(), node.cluster.clone(), life, mirror.clone());
        tasks.push(tokio::spawn(told.run(stop.clone())));
    }
    tasks.push(tokio::spawn(schedule::run(server.clone(), stop.clone())));
    tasks.push(tokio::spawn(clones::run(server.clone(), node.cluster.clone(), stop.clone())));
    let scrub = ScrubSettings {
        bytes_per_second: config.scrub.bytes_per_second.0,
        interval: Duration::from_millis(config.scrub.interval_ms),
    };
    let note = scrub_note(&config.data_dir, id);
    let scrubber = Scrubber::new(server.clone(), mapping.clone(), pace, scrub, note, stop.clone());
    tasks.push(tokio::spawn(scrubber.run()));
    let repairer = Repairer::new(server.clone(), mapping.clone(), stop.clone());
    tasks.push(tokio::spawn(repairer.within(config.space.repair_bytes_per_second.0).run()));
    if node.warmth.is_wanted() {
        let warmer = Warmer::new(server.clone(), mapping.clone(), node.warmth.clone(), stop.clone());
        tasks.push(tokio::spawn(warmer.run()));
    }
    let lets_go_within = Duration::from_millis(config.store.let_go_ms);
    let mover = Mover::new(server.clone(), mapping.clone(), switch, lets_go_within, stop.clone());
    tasks.push(tokio::spawn(mover.run()));
    let space = SpaceKeeper::new(server.clone(), mapping.clone(), space, stop.clone());
    tasks.push(tokio::spawn(space.run()));
    let shape = leaf_shape(config.upload.whole_root, node.seams.leaves);
    let in_leaves = Arc::new(move || Some(shape));
    let uploader = Uploader::new(server.clone(), mapping, settings, boot, stop.clone()).in_leaves(in_leaves);
    tasks.push(tokio::spawn(uploader.run()));
    node.running.locked().insert(id, Running { name: entry.name.clone(), stop, tasks });
    node.sets.writing().insert(entry.name.clone(), server);
    // A group that is being healed here has an empty log for a while. It gets its members from its leader; this gateway
    // must not initialise it again.
    if entry.initial_members.contains(&adopted.member) && !adopted.raft.is_healing(id) {
        let members = state
            .members
            .values()
            .filter(|m| entry.initial_members.contains(&m.id))
            .map(|m| (m.id, m.peer_addr.clone()))
            .collect::<BTreeMap<_, _>>();
        // A member that was removed since is missing here. Then the other members have long initialised the group.
        if members.len() == entry.initial_members.len()
            && let Err(e) = group.initialize(&members).await
        {
            tracing::warn!(set = %entry.name, error = %e, "group not initialised here");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_says_which_roots_are_large() {
        const SHAPE: LeafShape = LeafShape { pages: 3, ..LeafShape::DEFAULT };
        assert_eq!(leaf_shape(Some(ByteSize(0)), SHAPE), LeafShape { whole_bytes: 0, ..SHAPE });
        assert_eq!(leaf_shape(None, SHAPE), SHAPE);
    }
}
