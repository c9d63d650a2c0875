//! The controller against a cluster in memory.

use super::*;
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_capability::{AccessMode, AccessType, BlockVolume};
use crate::v1::volume_content_source::{SnapshotSource, VolumeSource};
use holdfast_types::sync::LockExt;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

const GIB: u64 = 1 << 30;

#[derive(Clone, Default)]
struct Set {
    id: u64,
    clone_of: String,
    volumes: Vec<api::Volume>,
    snapshots: Vec<api::Snapshot>,
    owner: Option<&'static str>,
    home: String,
    ending: bool,
}

/// Refuses what gateways refuse.
#[derive(Default)]
struct Fake(Mutex<BTreeMap<String, Set>>);

impl Fake {
    fn with<T>(&self, set: &str, change: impl FnOnce(&mut Set) -> T) -> Result<T, Refused> {
        let mut sets = self.0.locked();
        sets.get_mut(set).map(change).ok_or_else(|| Refused::not_found(set))
    }

    fn add(&self, name: &str, clone_of: &str, volumes: Vec<api::Volume>) {
        let mut sets = self.0.locked();
        let id = sets.len() as u64 + 1;
        sets.insert(name.to_string(), Set { id, clone_of: clone_of.into(), volumes, ..Default::default() });
    }

    fn names(&self) -> Vec<String> {
        self.0.locked().keys().cloned().collect()
    }
}

/// Clones of a set, those that are being deleted too.
fn clones_of<'a>(sets: &'a BTreeMap<String, Set>, origin: &'a str) -> impl Iterator<Item = (&'a String, &'a Set)> {
    sets.iter().filter(move |(_, set)| set.clone_of.split('@').next() == Some(origin))
}

fn volume(name: &str, size_bytes: u64) -> api::Volume {
    api::Volume { id: 1, name: name.into(), size_bytes }
}

impl Cluster for Fake {
    fn regions(&self) -> Result<Vec<String>, Refused> {
        Ok(vec!["eu".into(), "us".into()])
    }

    fn sets(&self) -> Result<Vec<api::SetSummary>, Refused> {
        let named = |name: String| api::SetSummary { name, ..Default::default() };
        Ok(self.names().into_iter().map(named).collect())
    }

    fn set(&self, set: &Name) -> Result<Option<api::SetStatus>, Refused> {
        let sets = self.0.locked();
        Ok(sets.get(set.as_str()).map(|found| {
            let summary = api::SetSummary {
                id: found.id,
                name: set.to_string(),
                clone_of: found.clone_of.clone(),
                ..Default::default()
            };
            let deletion = found.ending.then(|| api::Deletion { stage: "ending".into(), ..Default::default() });
            // One that is being deleted is no set any more, and has no name.
            let name = |(name, copy): (&String, &Set)| if copy.ending { String::new() } else { name.clone() };
            let clones =
                clones_of(&sets, set.as_str()).map(|copy| api::Clone { name: name(copy), ..Default::default() });
            let (clones, volumes) = (clones.collect(), found.volumes.clone());
            api::SetStatus { set: Some(summary), volumes, deletion, clones, ..Default::default() }
        }))
    }

    fn create_set(&self, set: &Name, _: &str, policy: Option<api::Policy>) -> Result<(), Refused> {
        if !self.names().contains(&set.to_string()) {
            self.add(set.as_str(), "", Vec::new());
        }
        self.with(set.as_str(), |found| found.home = policy.map_or(String::new(), |policy| policy.home))
    }

    fn create_volume(&self, set: &Name, name: &Name, bytes: u64) -> Result<(), Refused> {
        self.with(set.as_str(), |found| found.volumes.push(volume(name.as_str(), bytes)))
    }

    fn grow(&self, set: &Name, grown: &api::Volume, bytes: u64) -> Result<(), Refused> {
        self.with(set.as_str(), |found| {
            found.volumes.iter_mut().filter(|v| v.name == grown.name).for_each(|v| v.size_bytes = bytes);
        })
    }

    fn delete_set(&self, request: api::DeleteSetRequest) -> Result<(), Refused> {
        if clones_of(&self.0.locked(), &request.set).next().is_some() {
            return Err(Refused::of_cluster("precondition", "a clone reads its objects"));
        }
        self.with(&request.set, |found| {
            assert_eq!(request.id, found.id);
            if found.owner.is_some() && !request.force || !found.snapshots.is_empty() && !request.with_snapshots {
                return Err(Refused::of_cluster("precondition", "the set is used"));
            }
            found.ending = true;
            Ok(())
        })?
    }

    fn snapshots(&self, set: &Name) -> Result<Option<Vec<api::Snapshot>>, Refused> {
        Ok(self.with(set.as_str(), |found| found.snapshots.clone()).ok())
    }

    fn create_snapshot(&self, set: &Name, name: &Name) -> Result<api::Snapshot, Refused> {
        self.with(set.as_str(), |found| {
            let volumes = found.volumes.clone();
            let made = api::Snapshot { name: name.to_string(), created_unix_ms: 1_500, volumes, ..Default::default() };
            found.snapshots.push(made.clone());
            made
        })
    }

    fn delete_snapshot(&self, set: &Name, snapshot: &api::Snapshot) -> Result<(), Refused> {
        self.with(set.as_str(), |found| found.snapshots.retain(|other| other.name != snapshot.name))
    }

    fn clone_set(&self, origin: &Name, snapshot: &api::Snapshot, set: &Name) -> Result<(), Refused> {
        self.add(set.as_str(), &format!("{origin}@{}", snapshot.name), snapshot.volumes.clone());
        Ok(())
    }
}

fn controller() -> (Arc<Fake>, Controller) {
    let fake = Arc::new(Fake::default());
    let controller = Controller::new(fake.clone(), "csi-".parse().unwrap(), Some("s3://b/p".into()));
    (fake, controller)
}

fn block() -> v1::VolumeCapability {
    let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter as i32 });
    v1::VolumeCapability { access_mode, access_type: Some(AccessType::Block(BlockVolume {})) }
}

fn asked(name: &str, gib: u64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: signed(gib * GIB), limit_bytes: 0 }),
        volume_capabilities: vec![block()],
        ..Default::default()
    }
}

fn of(source: Source) -> Option<v1::VolumeContentSource> {
    Some(v1::VolumeContentSource { r#type: Some(source) })
}

fn of_volume(id: &str) -> Option<v1::VolumeContentSource> {
    of(Source::Volume(VolumeSource { volume_id: id.into() }))
}

fn of_snapshot(id: &str) -> Option<v1::VolumeContentSource> {
    of(Source::Snapshot(SnapshotSource { snapshot_id: id.into() }))
}

fn snapshot(controller: &Controller, source: &str, name: &str) -> Result<v1::Snapshot, Refused> {
    let (source_volume_id, name) = (source.to_string(), name.to_string());
    controller.create_snapshot(&v1::CreateSnapshotRequest { source_volume_id, name })
}

#[test]
fn a_repeated_call_finds_the_volume_and_a_different_one_is_refused() {
    let (fake, controller) = controller();
    let made = controller.create_volume(&asked("a", 2)).unwrap();
    assert_eq!((made.volume_id.as_str(), made.capacity_bytes), ("csi-a/data", signed(2 * GIB)));
    assert_eq!(controller.create_volume(&asked("a", 2)).unwrap().volume_id, made.volume_id);
    assert_eq!(controller.create_volume(&asked("a", 3)).unwrap_err().code, Code::AlreadyExists);
    let copy = v1::CreateVolumeRequest { volume_content_source: of_volume("csi-a/data"), ..asked("a", 2) };
    assert_eq!(controller.create_volume(&copy).unwrap_err().code, Code::AlreadyExists);
    assert_eq!(fake.names(), ["csi-a"]);
}

#[test]
fn an_interrupted_creation_is_completed() {
    let (fake, controller) = controller();
    fake.add("csi-a", "", Vec::new());
    let made = controller.create_volume(&asked("a", 1)).unwrap();
    assert_eq!(made.capacity_bytes, signed(GIB));
    assert_eq!(fake.with("csi-a", |set| set.volumes.len()).unwrap(), 1);
}

#[test]
fn the_first_node_with_gateways_near_it_is_home() {
    let (fake, controller) = controller();
    let place = |region: &str| v1::Topology { segments: HashMap::from([(topology::REGION.into(), region.into())]) };
    let wished = v1::TopologyRequirement { preferred: vec![place("ap"), place("us")], requisite: vec![place("eu")] };
    let request = v1::CreateVolumeRequest { accessibility_requirements: Some(wished), ..asked("a", 1) };
    let made = controller.create_volume(&request).unwrap();
    assert_eq!(fake.with("csi-a", |set| set.home.clone()).unwrap(), "us");
    assert!(made.accessible_topology.is_empty(), "every node can use it");
}

/// A node that holds the lease, a snapshot, a set of somebody else.
#[test]
fn what_is_used_is_not_deleted() {
    let (fake, controller) = controller();
    controller.create_volume(&asked("a", 1)).unwrap();
    fake.with("csi-a", |set| set.owner = Some("node1")).unwrap();
    assert_eq!(controller.delete_volume("csi-a/data").unwrap_err().code, Code::FailedPrecondition);
    fake.with("csi-a", |set| set.owner = None).unwrap();
    let made = snapshot(&controller, "csi-a/data", "s").unwrap();
    assert_eq!(controller.delete_volume("csi-a/data").unwrap_err().code, Code::FailedPrecondition);
    controller.delete_snapshot(&made.snapshot_id).unwrap();
    controller.delete_volume("csi-a/data").unwrap();
    controller.delete_volume("csi-a/data").unwrap();
    assert_eq!(controller.create_volume(&asked("a", 1)).unwrap_err().code, Code::Aborted, "it is being deleted");
    fake.add("demo", "", vec![volume("data", GIB)]);
    assert_eq!(controller.delete_volume("demo/data").unwrap_err().code, Code::FailedPrecondition);
    for none in ["no-id", "csi-b/data"] {
        controller.delete_volume(none).unwrap();
    }
}

#[test]
fn other_volumes_of_a_set_are_not_deleted() {
    let (fake, controller) = controller();
    let is_ending = |set: &str| fake.with(set, |set| set.ending).unwrap();
    controller.create_volume(&asked("a", 1)).unwrap();
    controller.delete_volume("csi-a/other").unwrap();
    assert!(!is_ending("csi-a"), "there is no such volume");
    fake.with("csi-a", |set| set.volumes.push(volume("other", GIB))).unwrap();
    assert_eq!(controller.delete_volume("csi-a/data").unwrap_err().code, Code::FailedPrecondition);
    assert!(!is_ending("csi-a"));
    fake.add("csi-b", "demo@monday", vec![volume("data", GIB), volume("log", GIB)]);
    controller.delete_volume("csi-b/log").unwrap();
    fake.add("csi-c", "", Vec::new());
    controller.delete_volume("csi-c/data").unwrap();
    assert!(is_ending("csi-b") && is_ending("csi-c"), "a copy has all volumes, an interrupted creation none");
}

/// csi-sanity deletes a copy and its source, one right after the other, and takes no refusal.
#[test]
fn a_source_is_deleted_when_its_copies_have_gone() {
    let (fake, controller) = controller();
    controller.create_volume(&asked("a", 1)).unwrap();
    let copy = v1::CreateVolumeRequest { volume_content_source: of_volume("csi-a/data"), ..asked("b", 1) };
    controller.create_volume(&copy).unwrap();
    assert_eq!(controller.delete_volume("csi-a/data").unwrap_err().code, Code::FailedPrecondition, "it is needed");
    controller.delete_volume("csi-b/data").unwrap();
    assert_eq!(controller.delete_volume("csi-a/data").unwrap_err().code, Code::Aborted, "its copy goes");
    fake.0.locked().remove("csi-b");
    controller.delete_volume("csi-a/data").unwrap();
    assert!(fake.with("csi-a", |set| set.ending).unwrap());
}

/// The id of a snapshot names the set only.
#[test]
fn a_snapshot_of_several_volumes_is_not_restored_by_a_guess() {
    let (fake, controller) = controller();
    fake.add("demo", "", vec![volume("data", GIB), volume("log", GIB)]);
    let made = snapshot(&controller, "demo/log", "s").unwrap();
    let restored = v1::CreateVolumeRequest { volume_content_source: of_snapshot(&made.snapshot_id), ..asked("r", 1) };
    assert_eq!(controller.create_volume(&restored).unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(fake.names(), ["demo"]);
}

#[test]
fn copies_are_made_once_and_leave_no_snapshot() {
    let (fake, controller) = controller();
    controller.create_volume(&asked("a", 2)).unwrap();
    let copy = v1::CreateVolumeRequest { volume_content_source: of_volume("csi-a/data"), ..asked("b", 3) };
    for _ in 0..2 {
        let made = controller.create_volume(&copy).unwrap();
        assert_eq!((made.volume_id.as_str(), made.capacity_bytes), ("csi-b/data", signed(3 * GIB)));
        assert!(made.content_source.is_some());
    }
    assert!(fake.with("csi-a", |set| set.snapshots.is_empty()).unwrap());
    let other = v1::CreateVolumeRequest { volume_content_source: of_volume("csi-c/data"), ..asked("b", 3) };
    assert_eq!(controller.create_volume(&other).unwrap_err().code, Code::AlreadyExists);
    let none = v1::CreateVolumeRequest { volume_content_source: of_volume("csi-c/data"), ..asked("d", 3) };
    assert_eq!(controller.create_volume(&none).unwrap_err().code, Code::NotFound);
    assert_eq!(fake.names(), ["csi-a", "csi-b"]);
}

#[test]
fn snapshots_are_made_once_and_restored() {
    let (fake, controller) = controller();
    for name in ["a", "b"] {
        controller.create_volume(&asked(name, 2)).unwrap();
    }
    let made = snapshot(&controller, "csi-a/data", "s").unwrap();
    assert_eq!((made.snapshot_id.as_str(), made.size_bytes, made.ready_to_use), ("csi-a@csi-s", signed(2 * GIB), true));
    assert_eq!(snapshot(&controller, "csi-a/data", "s").unwrap().snapshot_id, made.snapshot_id);
    assert_eq!(snapshot(&controller, "csi-b/data", "s").unwrap_err().code, Code::AlreadyExists);
    assert_eq!(snapshot(&controller, "csi-c/data", "t").unwrap_err().code, Code::NotFound);
    let held = controller.locks.take("@csi-t").unwrap();
    let refused = snapshot(&controller, "csi-b/data", "t").unwrap_err();
    assert_eq!(refused.code, Code::Aborted, "another call makes a snapshot of that name");
    drop(held);
    let restored = v1::CreateVolumeRequest { volume_content_source: of_snapshot("csi-a@csi-s"), ..asked("r", 1) };
    assert_eq!(controller.create_volume(&restored).unwrap().capacity_bytes, signed(2 * GIB));
    assert_eq!(fake.with("csi-r", |set| set.clone_of.clone()).unwrap(), "csi-a@csi-s");
    let none = v1::CreateVolumeRequest { volume_content_source: of_snapshot("csi-a@csi-t"), ..asked("x", 1) };
    assert_eq!(controller.create_volume(&none).unwrap_err().code, Code::NotFound);
    fake.with("csi-a", |set| set.snapshots.push(api::Snapshot { name: "monday".into(), ..Default::default() }))
        .unwrap();
    assert_eq!(controller.delete_snapshot("csi-a@monday").unwrap_err().code, Code::FailedPrecondition);
}

#[test]
fn lists_come_in_pages_that_survive_deletions() {
    let (fake, controller) = controller();
    for name in ["a", "b", "c"] {
        let made = controller.create_volume(&asked(name, 1)).unwrap();
        snapshot(&controller, &made.volume_id, &format!("s{name}")).unwrap();
    }
    fake.add("demo", "", vec![volume("data", GIB)]);
    let list = |token: &str| {
        let request = v1::ListVolumesRequest { max_entries: 2, starting_token: token.into() };
        controller.list_volumes(&request)
    };
    let first = list("").unwrap();
    assert_eq!((first.entries.len(), first.next_token.as_str()), (2, "after/csi-b"));
    fake.with("csi-b", |set| set.ending = true).unwrap();
    let second = list(&first.next_token).unwrap();
    assert_eq!((second.entries.len(), second.next_token.as_str()), (1, ""));
    assert_eq!(list("invalid-token").unwrap_err().code, Code::Aborted);
    fake.with("csi-b", |set| set.ending = false).unwrap();
    let list = |token: &str, one: &str| {
        let (starting_token, snapshot_id) = (token.to_string(), one.to_string());
        let request = v1::ListSnapshotsRequest { max_entries: 2, starting_token, snapshot_id, ..Default::default() };
        controller.list_snapshots(&request).unwrap()
    };
    let first = list("", "");
    assert_eq!((first.entries.len(), first.next_token.as_str()), (2, "after/csi-b@csi-sb"));
    assert_eq!(list(&first.next_token, "").entries.len(), 1);
    assert_eq!(list("", "csi-c@csi-sc").entries.len(), 1);
    assert!(list("", "csi-c@csi-none").entries.is_empty());
}

#[test]
fn volumes_grow_and_never_shrink() {
    let (fake, controller) = controller();
    controller.create_volume(&asked("a", 2)).unwrap();
    let grow = |gib: u64| {
        let capacity_range = Some(v1::CapacityRange { required_bytes: signed(gib * GIB), limit_bytes: 0 });
        let volume_id = "csi-a/data".to_string();
        controller.expand(&v1::ControllerExpandVolumeRequest { volume_id, capacity_range })
    };
    for (asked, has) in [(3, 3), (1, 3), (3, 3)] {
        assert_eq!(grow(asked).unwrap().capacity_bytes, signed(has * GIB));
    }
    assert_eq!(fake.with("csi-a", |set| set.volumes[0].size_bytes).unwrap(), 3 * GIB);
}
