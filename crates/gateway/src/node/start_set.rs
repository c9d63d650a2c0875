//! Starts everything that runs for one set on one gateway: its group, and around it head, reader, server, uploader and
//! space keeper.

use super::running::{Running, fence_note, scrub_note};
use super::{Adopted, Node, NodeError, PAGE_MEMORY_SHARE, READ_AHEAD_SHARE};
use crate::config::{Compression, GatewayConfig};
use holdfast_control::cluster::{ClusterState, SetEntry};
use holdfast_control::set::Links;
use holdfast_raft::Group;
use holdfast_set::bad_reads::Inspector;
use holdfast_set::bases::KeyOf;
use holdfast_set::clones;
use holdfast_set::etcd_mirror::EtcdMirror;
use holdfast_set::head::{ByOwnKeyring, HeadKeeper, HeadParts};
use holdfast_set::host::SetHost;
use holdfast_set::live::Now;
use holdfast_set::mapping::Mapping;
use holdfast_set::pace::JournalPace;
use holdfast_set::reader::Reader;
use holdfast_set::repair::Repairer;
use holdfast_set::schedule;
use holdfast_set::scrub::{ScrubSettings, Scrubber};
use holdfast_set::server::{SetParts, SetServer};
use holdfast_set::set_key::SetKey;
use holdfast_set::space::{SpaceKeeper, SpaceSettings};
use holdfast_set::store_migration::StoreMigration;
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
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

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

/// A set that is about to run here.
struct Starting<'a> {
    node: &'a Arc<Node>,
    adopted: &'a Adopted,
    id: SetId,
    entry: &'a SetEntry,
    state: &'a ClusterState,
    /// Stops only this set, if it is deleted.
    stop: CancellationToken,
}

/// The parts of a set that its tasks share.
struct Parts {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    pace: Arc<JournalPace>,
    head: Arc<HeadKeeper>,
    switch: Arc<Switch>,
}

/// Starts what group 0 says should run here. `stop` ends the start, and later the set.
pub(super) async fn start_set(
    node: &Arc<Node>,
    adopted: &Adopted,
    id: SetId,
    entry: &SetEntry,
    state: &ClusterState,
    stop: CancellationToken,
) -> Result<(), NodeError> {
    let starting = Starting { node, adopted, id, entry, state, stop };
    let parts = starting.parts().await?;
    let tasks = starting.spawn(&parts);
    let (name, server) = (entry.name.clone(), parts.server);
    node.running.locked().insert(id, Running { name: name.clone(), stop: starting.stop.clone(), tasks });
    node.sets.writing().insert(name, server.clone());
    starting.initialize_group(&server.group).await;
    Ok(())
}

impl Starting<'_> {
    /// Opens the store, starts the group, and makes what is around it.
    async fn parts(&self) -> Result<Parts, NodeError> {
        let (node, entry) = (self.node, self.entry);
        let key = node.keys.set_key(self.id, entry).map_err(|e| {
            NodeError::Refused(format!("its data key cannot be unwrapped with this gateway's cluster key: {e}"))
        })?;
        let health = Arc::new(Health::new(entry.name.to_string()));
        let opened = (node.seams.store)(&node.config, &entry.store_url, health.clone());
        let stopped = || NodeError::Refused("it is being stopped".to_string());
        let store = self
            .stop
            .run_until_cancelled(opened)
            .await
            .ok_or_else(stopped)?
            .map_err(|e| NodeError::Refused(format!("its store: {e}")))?;
        let switch = Arc::new(Switch::new(&entry.store_url, store));
        let head = self.head(&key, &switch)?;
        let mapping = Arc::new(self.mapping(key, &switch, &health)?);
        let links = self.state.links.get(&self.id);
        let host = Arc::new(SetHost::new(self.id, entry, links.unwrap_or(&Links::default())));
        let group = self.adopted.raft.start_group(self.id, host.clone(), None).await?;
        let pace = Arc::new(JournalPace::new(self.adopted.raft.log().clone(), host.clone()));
        let server = SetServer::new(SetParts {
            id: self.id,
            name: entry.name.clone(),
            reader: Reader::new(group.clone(), host.clone(), mapping.clone()),
            group,
            host,
            pace: pace.clone(),
            head: head.clone(),
            health,
            switch: switch.clone(),
            timing: node.timing,
            traces: node.traces.queue(),
            stop: self.stop.clone(),
        });
        Ok(Parts { server, mapping, pace, head, switch })
    }

    fn life(&self) -> SetLife {
        SetLife { cluster: self.state.cluster_id, generation: self.entry.generation }
    }

    fn head(&self, key: &SetKey, switch: &Arc<Switch>) -> Result<Arc<HeadKeeper>, NodeError> {
        let (node, id) = (self.node, self.id);
        let note = fence_note(&node.config.data_dir, id);
        let what = format!("{}: the note whether this gateway may serve the set", note.display());
        HeadKeeper::new(HeadParts {
            name: self.entry.name.clone(),
            life: self.life(),
            keyring: node.keys.keyring_of(self.entry).into(),
            key: key.clone(),
            store: switch.clone(),
            member: self.adopted.member,
            boot: node.identity().boot,
            note,
            clone_of: self.state.links.get(&id).and_then(|links| links.clone_of.clone()),
            by_own_keyring: Some(by_own_keyring(node, id)),
            pair: node.pair().cloned(),
        })
        .map_err(|source| NodeError::Io { what, source })
    }

    /// The map, with its share of the cache's memory.
    fn mapping(&self, key: SetKey, switch: &Arc<Switch>, health: &Arc<Health>) -> Result<Mapping, NodeError> {
        let (node, cache) = (self.node, &self.node.config.cache);
        let page_bytes = usize::try_from(cache.memory.0 / PAGE_MEMORY_SHARE).unwrap_or(usize::MAX);
        // Read-ahead data must still be in the cache when its reader comes.
        let read_ahead = Sectors(cache.read_ahead.0.min(cache.memory.0 / READ_AHEAD_SHARE) / SECTOR_BYTES);
        let (health, stop) = (health.clone(), self.stop.clone());
        let mapping = Mapping::new(key, switch.clone(), health, node.cache.clone(), page_bytes, read_ahead, stop);
        let mapping = mapping.map_err(|e| NodeError::Cache(e.to_string()))?;
        // A gateway with a small cache has little memory for leaves too. Leaves that are not in memory go through the
        // page cache.
        let leaf_bytes = node.seams.leaf_bytes.min(page_bytes as u64);
        Ok(mapping.with_origins(key_of(node)).with_leaf_bytes(leaf_bytes))
    }

    /// Starts the tasks of the set.
    fn spawn(&self, parts: &Parts) -> Vec<JoinHandle<()>> {
        let (node, config) = (self.node, &self.node.config);
        let Parts { server, mapping, pace, head, switch } = parts;
        let (cluster, stop) = (&node.cluster, || self.stop.clone());
        let mut tasks = vec![
            tokio::spawn(server.clone().run()),
            tokio::spawn(head.clone().watch(server.group.clone(), server.host.clone(), switch.clone(), stop())),
            tokio::spawn(self.inspector(server).run()),
        ];
        if let Some(mirror) = &node.mirror {
            let etcd_mirror = EtcdMirror::new(server.clone(), cluster.clone(), self.life(), mirror.clone());
            tasks.push(tokio::spawn(etcd_mirror.run(stop())));
        }
        tasks.push(tokio::spawn(schedule::run(server.clone(), stop())));
        tasks.push(tokio::spawn(clones::run(server.clone(), cluster.clone(), stop())));
        let note = scrub_note(&config.data_dir, self.id);
        let scrubber =
            Scrubber::new(server.clone(), mapping.clone(), pace.clone(), scrub_settings(config), note, stop());
        tasks.push(tokio::spawn(scrubber.following(self.now(scrub_settings)).run()));
        let repairer = Repairer::new(server.clone(), mapping.clone(), stop());
        let repairs = self.now(|config| config.space.repair_bytes_per_second.0);
        tasks.push(tokio::spawn(repairer.following(repairs).run()));
        if node.warmth.is_wanted() {
            let warmer = Warmer::new(server.clone(), mapping.clone(), node.warmth.clone(), stop());
            tasks.push(tokio::spawn(warmer.run()));
        }
        let lets_go_within = Duration::from_millis(config.store.let_go_ms);
        let migration = StoreMigration::new(server.clone(), mapping.clone(), switch.clone(), lets_go_within, stop());
        tasks.push(tokio::spawn(migration.run()));
        let space = SpaceKeeper::new(server.clone(), mapping.clone(), space_settings(config), stop());
        tasks.push(tokio::spawn(space.following(self.now(space_settings)).run()));
        let shape = leaf_shape(config.upload.whole_root, node.seams.leaves);
        let (settings, boot) = (upload_settings(config), node.identity().boot);
        let uploader = Uploader::new(server.clone(), mapping.clone(), settings, boot, stop());
        let uploader = uploader.in_leaves(Arc::new(move || Some(shape))).following(self.now(upload_settings));
        tasks.push(tokio::spawn(uploader.run()));
        tasks
    }

    /// Settings for a task that asks for them at each turn.
    fn now<T: 'static>(&self, of: fn(&GatewayConfig) -> T) -> Now<T> {
        let settings = self.node.settings.clone();
        Arc::new(move || of(&settings.now()))
    }

    fn inspector(&self, server: &Arc<SetServer>) -> Inspector {
        let (node, raft) = (self.node, self.adopted.raft.clone());
        let election_max = node.timing.election_max();
        Inspector::new(server.clone(), node.cluster.clone(), raft, election_max, self.stop.clone())
    }

    /// Initialises the group if this gateway is one of its first members. A group that is being healed here, or that
    /// this gateway had left, has an empty log for a while: it gets its members from its leader, and this gateway must
    /// not initialise it again (VOTERS-V4).
    async fn initialize_group(&self, group: &Group) {
        let (entry, adopted) = (self.entry, self.adopted);
        let learns = adopted.raft.is_healing(self.id) || adopted.raft.is_returning(self.id);
        if !entry.initial_members.contains(&adopted.member) || learns {
            return;
        }
        let members = self
            .state
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
}

fn upload_settings(config: &GatewayConfig) -> UploadSettings {
    UploadSettings {
        bytes: config.upload.bytes.0,
        large_bytes: UploadSettings::large_bytes_for(config.upload.bytes.0, config.journal.tail.0),
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
    }
}

fn space_settings(config: &GatewayConfig) -> SpaceSettings {
    SpaceSettings {
        grace: Duration::from_millis(config.space.grace_ms),
        deletes_per_second: config.space.deletes_per_second,
        sweep_interval: Duration::from_millis(config.space.sweep_interval_ms),
    }
}

fn scrub_settings(config: &GatewayConfig) -> ScrubSettings {
    ScrubSettings {
        bytes_per_second: config.scrub.bytes_per_second.0,
        interval: Duration::from_millis(config.scrub.interval_ms),
    }
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
