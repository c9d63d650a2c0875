//! The space that a set takes in its store, from the maps of its last checkpoint and of its snapshots.

use super::AdminDoor;
use super::limits::limit_message;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use holdfast_api::{Refusal, v1};
use holdfast_control::set::{RootRef, SetState, Volume};
use holdfast_set::server::SetServer;
use holdfast_types::{Lba, ObjectId, SECTOR_BYTES, VolumeId};
use holdfast_volume::map::{Objects, PAGE_SECTORS, PartialRoot, Root};
use holdfast_volume::space::Amplification;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to read maps from the store. The caller waits 3 s for one attempt.
const TIME: Duration = Duration::from_millis(1500);
/// Maximum memory, in bytes, for what the maps of one answer reference. It bounds the memory of one answer for a set
/// with many large snapshots: this much, plus about as much for the maps that are being read, or one map of any size.
const ROOTS_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of maps that are read at once, even small ones.
const ROOTS_AT_ONCE: usize = 8;

impl AdminDoor {
    pub(super) async fn get_space(&self, request: v1::GetSpaceRequest) -> Result<v1::GetSpaceReply, Refusal> {
        let set = self.led_set(&request.set)?;
        self.confirm(&set).await?;
        let (state, journal_bytes) = set.host.with(|m| (m.state().clone(), m.backlog_bytes()));
        let (current, not_known) = match state.current_root() {
            None => (None, String::new()),
            Some(root) => match current_map(&set, root).await {
                Ok(root) => (Some(root), String::new()),
                Err(why) => (None, why),
            },
        };
        let mut reply = v1::GetSpaceReply {
            provisioned_bytes: provisioned(state.volumes.values()),
            journal_bytes,
            retired_objects: state.retired.len() as u64,
            dropped_roots: state.dropped.len() as u64,
            checkpoint_index: state.checkpoint.map_or(0, |c| c.upto.index.0),
            volumes: state
                .volumes
                .iter()
                .map(|(id, volume)| v1::VolumeSpace {
                    limit: limit_message(state.limits.of(*id)),
                    ..volume_space(&set, *id, volume, current.as_ref())
                })
                .collect(),
            incomplete: !not_known.is_empty(),
            not_known,
            ..v1::GetSpaceReply::default()
        };
        if let Some(map) = &current {
            let objects = map.objects();
            reply.written_bytes = written_bytes(objects);
            let segments = Amplification::of(objects);
            reply.live_stored_bytes = segments.live_bytes;
            reply.garbage_bytes = segments.stored_bytes.saturating_sub(segments.live_bytes);
            reply.current_stored_bytes = stored(objects).map(|(_, bytes)| bytes).sum();
        }
        if !reply.incomplete {
            snapshots_space(&set, &state, current.as_ref(), &mut reply).await;
        }
        Ok(reply)
    }
}

/// The map of the last checkpoint. Leaves that are not in memory are not read for this; what they reference is not
/// counted.
enum Map {
    All(Arc<Root>),
    Part(Arc<PartialRoot>),
}

impl Map {
    fn objects(&self) -> &Objects {
        match self {
            Map::All(root) => root.objects(),
            Map::Part(root) => root,
        }
    }

    /// Number of pages for a volume of this size. In a partial map, pages beyond the volume's end count too; there are
    /// some only while the volume shrinks.
    fn pages(&self, id: VolumeId, volume: &Volume) -> u64 {
        match self {
            Map::All(root) => root.pages_in(id, Lba(0), volume.size).count() as u64,
            Map::Part(root) => root.pages_of(id),
        }
    }
}

/// The part of a map that is kept while the others are read. Page locations, most of the map, are not kept.
struct MapSummary {
    objects: Objects,
    written_bytes: u64,
}

impl MapSummary {
    fn of(objects: &Objects) -> Self {
        Self { objects: objects.clone(), written_bytes: written_bytes(objects) }
    }
}

/// Snapshots, and the space of all kept roots together.
async fn snapshots_space(set: &SetServer, state: &SetState, current: Option<&Map>, reply: &mut v1::GetSpaceReply) {
    let begun = Instant::now();
    let mut roots: BTreeMap<ObjectId, MapSummary> = BTreeMap::new();
    if let (Some(at), Some(map)) = (state.current_root(), current) {
        roots.insert(at.object, MapSummary::of(map.objects()));
    }
    // Includes the roots that only clones use (SET-S13): deleting a snapshot frees nothing of those.
    let mut left = state.kept_roots();
    left.retain(|at| !roots.contains_key(&at.object));
    let (mut left, most) = (left.into_iter(), at_once(current));
    let (mut under_way, mut bytes) = (FuturesOrdered::new(), 0);
    loop {
        while under_way.len() < most
            && let Some(at) = left.next()
        {
            bytes += at.bytes;
            if bytes > ROOTS_BYTES_MAX || begun.elapsed() > TIME {
                reply.incomplete = true;
                // Report a snapshot in progress all the same.
                left = Vec::new().into_iter();
                break;
            }
            under_way.push_back(async move { (at, read(set, at).await) });
        }
        let Some((at, found)) = under_way.next().await else { break };
        match found {
            Ok(root) => {
                let told = MapSummary::of(&root);
                bytes = bytes - at.bytes + told.objects.memory_bytes();
                roots.insert(at.object, told);
            }
            Err(why) => {
                tracing::debug!(set = %set.name, why, "the map of a snapshot or of a clone is left out");
                reply.incomplete = true;
                break;
            }
        }
    }
    tell_kept(state, &roots, reply);
}

/// How many maps may be read at once. The map of a snapshot is about as large as the current one.
fn at_once(current: Option<&Map>) -> usize {
    match current {
        Some(Map::All(root)) => {
            let most = ROOTS_BYTES_MAX / root.memory_bytes().max(1);
            usize::try_from(most).unwrap_or(ROOTS_AT_ONCE).clamp(1, ROOTS_AT_ONCE)
        }
        // A map that is not kept as a whole is large.
        Some(Map::Part(_)) | None => 1,
    }
}

/// Adds the space of all kept roots together, each object counted once, and for each snapshot the space that no other
/// kept root references. `roots`: the roots that were read.
fn tell_kept(state: &SetState, roots: &BTreeMap<ObjectId, MapSummary>, reply: &mut v1::GetSpaceReply) {
    // For each object: its bytes, and the root that references it if there is only one.
    let mut named: BTreeMap<_, (u64, Option<ObjectId>)> = BTreeMap::new();
    for (at, told) in roots {
        for (object, bytes) in stored(&told.objects) {
            named.entry(object).and_modify(|found| found.1 = None).or_insert((bytes, Some(*at)));
        }
    }
    reply.kept_stored_bytes = named.values().map(|(bytes, _)| bytes).sum();
    for (name, snapshot) in &state.snapshots {
        let Some(told) = roots.get(&snapshot.root.object) else { continue };
        // Two snapshots of the same checkpoint share everything, and so do a snapshot and its clone: deleting only one
        // of them frees nothing.
        let shared = state.keepers_of(snapshot.root) > 1;
        let only = |of: &Option<ObjectId>| !shared && *of == Some(snapshot.root.object);
        reply.snapshots.push(v1::SnapshotSpace {
            name: name.to_string(),
            provisioned_bytes: provisioned(snapshot.volumes.values()),
            written_bytes: told.written_bytes,
            unique_bytes: named.values().filter(|(_, of)| only(of)).map(|(bytes, _)| bytes).sum(),
        });
    }
}

/// The map of the last checkpoint: the part in memory, or all of it if the store returns it soon.
async fn current_map(set: &SetServer, at: RootRef) -> Result<Map, String> {
    match set.reader.mapping().in_part(at) {
        Some(root) => Ok(Map::Part(root)),
        None => read(set, at).await.map(Map::All),
    }
}

/// A map, if the store returns it soon.
async fn read(set: &SetServer, at: RootRef) -> Result<Arc<Root>, String> {
    match tokio::time::timeout(TIME, set.reader.mapping().root_once(at)).await {
        Ok(Ok(root)) => Ok(root),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err(format!("the store did not return the map within {TIME:?}")),
    }
}

/// Raw bytes of segments that volumes use.
fn written_bytes(objects: &Objects) -> u64 {
    objects.segments().map(|(_, usage)| usage.live_sectors.0 * SECTOR_BYTES).sum()
}

/// The objects that the root references, with their bytes in the store.
fn stored(root: &Objects) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
    root.packs().into_iter().chain(root.segments().map(|(object, usage)| (object, usage.stored_bytes)))
}

fn provisioned<'a>(volumes: impl Iterator<Item = &'a Volume>) -> u64 {
    volumes.map(|volume| volume.size.to_bytes().unwrap_or(0)).sum()
}

fn volume_space(set: &SetServer, id: VolumeId, volume: &Volume, map: Option<&Map>) -> v1::VolumeSpace {
    let pages = map.map_or(0, |map| map.pages(id, volume));
    let size_bytes = volume.size.to_bytes().unwrap_or(0);
    v1::VolumeSpace {
        volume: Some(v1::Volume { id: id.0, name: volume.name.to_string(), size_bytes }),
        mapped_bytes: (pages * PAGE_SECTORS * SECTOR_BYTES).min(size_bytes),
        connections: set.volume_users(id),
        limit: None,
    }
}

#[cfg(test)]
mod tests;
