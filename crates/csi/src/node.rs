//! The node service: brings a volume to a node of Kubernetes, and to the pods there.
//!
//! ```text
//!   stage    attach the set (lease, device), make the file system if the volume is empty, mount it at the staging path
//!   publish  bind the staging path, or the device, to the path of a pod
//! ```
//!
//! STAGED-S1  A volume is staged on one node at a time: the owner of the lease is the node, and no node takes it by
//!     force. While another node holds it, staging is refused. A node that has died holds it until its lease ends by
//!     itself (3 s by default); a node that is only cut off is fenced by the next grant (R2).
//! STAGED-S2  What is staged is written down before it is attached, and forgotten after it is detached. So a new
//!     process of the driver starts again whatever has ended, and a node never forgets a lease that it holds, nor a
//!     device that an unmounted file system is still written to.
//! STAGED-S3  A file system is made only on a volume that is empty: blkid knows nothing on it, and its first MiB can be
//!     read and is zero.

mod attach;
mod mount;
mod options;
mod program;
mod record;

use crate::capability::{self, Access, Wanted};
use crate::capacity::signed;
use crate::locks::Locks;
use crate::names::{self, VolumeId};
use crate::refused::Refused;
use crate::{topology, v1};
use attach::Attached;
use holdfast_reached::reached;
use record::{Record, Records, TARGETS_MAX};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Code;

pub use options::{DeviceChoice, NodeOptions};

/// Where the kernel shows its nbd driver.
const NBD: &str = "/sys/module/nbd";

/// Time limit of modprobe.
const MODPROBE_LIMIT: Duration = Duration::from_secs(20);

/// How long a device may take to show that its volume grew: a renewal of the lease tells it.
const GROWN_LIMIT: Duration = Duration::from_secs(15);

/// Pause between two looks at it.
const GROWN_PAUSE: Duration = Duration::from_millis(100);

/// The node service.
#[derive(Debug)]
pub struct Node {
    options: NodeOptions,
    attached: Attached,
    records: Arc<Records>,
    locks: Arc<Locks>,
}

fn required<'a>(value: &'a str, field: &str) -> Result<&'a Path, Refused> {
    if value.is_empty() {
        return Err(Refused::invalid(format!("{field} is missing")));
    }
    Ok(Path::new(value))
}

/// A path of the mount table, which has whole ones only.
fn whole<'a>(value: &'a str, field: &str) -> Result<&'a Path, Refused> {
    let path = required(value, field)?;
    if path.is_absolute() {
        return Ok(path);
    }
    Err(Refused::invalid(format!("{field}: found {value:?}, expected an absolute path")))
}

/// Whether volumes can become devices on this node.
fn check_device(choice: DeviceChoice) -> Result<(), Refused> {
    if choice == DeviceChoice::Nbdfuse || Path::new(NBD).exists() {
        return Ok(());
    }
    let mut modprobe = program::command("modprobe");
    modprobe.arg("nbd");
    let why = match program::run(modprobe, MODPROBE_LIMIT) {
        Ok(ended) if ended.status.success() && Path::new(NBD).exists() => return Ok(()),
        Ok(ended) => ended.refused("modprobe nbd").text,
        Err(refused) => refused.text,
    };
    Err(Refused::precondition(format!(
        "the kernel of this node has no nbd driver, and volumes need it: load it on the node by `modprobe nbd`, and at each start by a line `nbd` in \
         /etc/modules-load.d/nbd.conf; Debian has it in linux-image, others in linux-modules-extra or kernel-modules-extra ({why})"
    )))
}

/// Whether a volume may be published at one more path.
fn may_publish(record: &Record, wanted: &Wanted, target: &Path) -> Result<(), Refused> {
    let is_same_kind = matches!(
        (&record.access, &wanted.access),
        (Access::Block, Access::Block) | (Access::Mount { .. }, Access::Mount { .. })
    );
    if !is_same_kind {
        return Err(Refused::precondition(
            "the volume is staged as a block device and asked for as a file system, or the other way round",
        ));
    }
    let others = record.targets.iter().filter(|other| *other != target).count();
    if wanted.one_target && others > 0 {
        return Err(Refused::precondition(
            "the volume is published at another path, and its access mode allows only one",
        ));
    }
    if others >= TARGETS_MAX {
        return Err(Refused::new(
            Code::ResourceExhausted,
            format!("the volume is published at {TARGETS_MAX} paths already"),
        ));
    }
    Ok(())
}

impl Node {
    /// A node with these settings. Watches the volumes that an earlier process has staged.
    ///
    /// # Errors
    /// Its folder cannot be used.
    pub fn start(options: NodeOptions) -> Result<Self, Refused> {
        let records = Arc::new(Records::open(&options.dir)?);
        let locks = Arc::new(Locks::default());
        let attached = Attached::new(options.clone(), records.clone(), locks.clone());
        attached.adopt()?;
        Ok(Self { options, attached, records, locks })
    }

    /// Whether volumes can be staged here.
    ///
    /// # Errors
    /// They cannot, with what to do about it.
    pub fn check(&self) -> Result<(), Refused> {
        check_device(self.options.device)
    }

    /// NodeStageVolume.
    ///
    /// # Errors
    /// A field that cannot be used; no nbd driver; another node holds the volume; a program failed.
    pub fn stage(&self, request: &v1::NodeStageVolumeRequest) -> Result<(), Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        let staging = whole(&request.staging_target_path, "staging_target_path")?;
        let wanted = capability::read(request.volume_capability.as_ref())?;
        let id = id.ok_or_else(|| names::no_volume(&request.volume_id))?;
        let _held = self.locks.take(id.set.as_str())?;
        self.check()?;
        let is_new = match self.records.read(&id)? {
            Some(found) if found.staging == staging && found.access == wanted.access => false,
            Some(found) => {
                let at = found.staging.display();
                return Err(Refused::exists(format!("{id} is staged at {at} already, in another way than asked for")));
            }
            None => true,
        };
        if is_new {
            self.room(&id)?;
            self.records.write(&id, &self.records.new_of(staging, wanted.access.clone()))?;
        }
        let device = self.attached.device(&id.set, &id.volume);
        let staged = device.and_then(|device| self.mount(&device, staging, &wanted.access));
        staged.map_err(|refused| self.not_staged(&id, staging, is_new, refused))
    }

    /// The error of a stage that failed. A final one means that nothing is left here: Kubernetes does not unstage then,
    /// and a lease that stays would keep the volume from every other node.
    fn not_staged(&self, id: &VolumeId, staging: &Path, is_new: bool, refused: Refused) -> Refused {
        let is_open = refused.clone().left_open() == refused;
        let is_undone =
            is_new && (!is_open || matches!(self.attached.look(&id.set), Ok(None))) && self.forget(id, staging).is_ok();
        if is_undone {
            return refused;
        }
        reached!("csi: a stage failed and left something to undo");
        refused.left_open()
    }

    /// Unmounts a volume, and detaches its set if no other volume of it is staged.
    fn forget(&self, id: &VolumeId, staging: &Path) -> Result<(), Refused> {
        mount::unmount(staging)?;
        if self.records.volumes(&id.set)?.iter().all(|other| other == id) {
            self.attached.detach(&id.set)?;
        }
        self.records.remove(id)
    }

    /// Whether one more set may be attached.
    fn room(&self, id: &VolumeId) -> Result<(), Refused> {
        let sets = self.records.sets()?;
        let max = self.options.volumes_max;
        if sets.len() < max || sets.contains(&id.set) {
            return Ok(());
        }
        Err(Refused::new(Code::ResourceExhausted, format!("{max} sets are attached on this node, which is its limit")))
    }

    fn mount(&self, device: &Path, staging: &Path, access: &Access) -> Result<(), Refused> {
        let Access::Mount { kind, options } = access else { return Ok(()) };
        mount::mount(device, staging, *kind, options)?;
        if options.iter().any(|option| option == "ro") {
            return Ok(());
        }
        // A copy may be larger than its source was, or the volume grew while it was nowhere.
        mount::grow(device, staging, *kind)
    }

    /// NodeUnstageVolume.
    ///
    /// # Errors
    /// A field is missing, the volume is in use, or a program failed.
    pub fn unstage(&self, request: &v1::NodeUnstageVolumeRequest) -> Result<(), Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        let staging = whole(&request.staging_target_path, "staging_target_path")?;
        let Some(id) = id else { return Ok(()) };
        let _held = self.locks.take(id.set.as_str())?;
        if let Some(record) = self.records.read(&id)? {
            if let Some(target) = record.targets.first() {
                let target = target.display();
                return Err(Refused::precondition(format!("{id} is still published at {target}: unpublish it first")));
            }
            // Data that is not written yet needs the device.
            self.attached.revive(&id.set)?;
            mount::unmount(&record.staging)?;
        }
        self.forget(&id, staging)
    }

    /// NodePublishVolume.
    ///
    /// # Errors
    /// A field that cannot be used, the volume is not staged, or a program failed.
    pub fn publish(&self, request: &v1::NodePublishVolumeRequest) -> Result<(), Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        let target = whole(&request.target_path, "target_path")?;
        let wanted = capability::read(request.volume_capability.as_ref())?;
        let id = id.ok_or_else(|| names::no_volume(&request.volume_id))?;
        let _held = self.locks.take(id.set.as_str())?;
        let staged = self.records.read(&id)?;
        let mut record = staged.ok_or_else(|| Refused::precondition(format!("{id} is not staged on this node")))?;
        may_publish(&record, &wanted, target)?;
        let read_only = request.readonly || wanted.read_only;
        let from = match record.access {
            Access::Block if read_only => {
                return Err(Refused::invalid("a block device cannot be published read-only: use a file system"));
            }
            Access::Block => self.attached.device(&id.set, &id.volume)?,
            Access::Mount { .. } => {
                self.attached.volume(&id.set, &id.volume)?;
                if !mount::is_mounted(&record.staging)? {
                    return Err(Refused::precondition(format!(
                        "{id} is not mounted at its staging path: stage it again"
                    )));
                }
                record.staging.clone()
            }
        };
        if !record.targets.iter().any(|known| known == target) {
            record.targets.push(target.to_path_buf());
            self.records.write(&id, &record)?;
        }
        mount::bind(&from, target, read_only).map_err(|refused| self.not_published(&id, record, target, refused))
    }

    /// The error of a publish that failed. A final one means that nothing is left here: Kubernetes does not unpublish
    /// then, and what counts as published is never unstaged, so its lease would stay.
    fn not_published(&self, id: &VolumeId, mut record: Record, target: &Path, refused: Refused) -> Refused {
        record.targets.retain(|known| known != target);
        let is_undone = matches!(mount::is_mounted(target), Ok(false)) && self.records.write(id, &record).is_ok();
        if is_undone { refused } else { refused.left_open() }
    }

    /// NodeUnpublishVolume.
    ///
    /// # Errors
    /// A field is missing, or the path is in use.
    pub fn unpublish(&self, request: &v1::NodeUnpublishVolumeRequest) -> Result<(), Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        let target = whole(&request.target_path, "target_path")?;
        let Some(id) = id else { return Ok(()) };
        let _held = self.locks.take(id.set.as_str())?;
        mount::unmount(target)?;
        mount::remove(target)?;
        if let Some(mut record) = self.records.read(&id)? {
            record.targets.retain(|known| known != target);
            self.records.write(&id, &record)?;
        }
        Ok(())
    }

    /// The record of a volume that is at `path`.
    fn find(&self, id: Option<VolumeId>, path: &Path) -> Result<(VolumeId, Record), Refused> {
        let none = || Refused::not_found(format!("there is no volume of this driver at {}", path.display()));
        let id = id.ok_or_else(none)?;
        let record = self.records.read(&id)?.ok_or_else(none)?;
        let is_there = record.staging == path || record.targets.iter().any(|target| target == path);
        if is_there { Ok((id, record)) } else { Err(none()) }
    }

    /// NodeExpandVolume: the file system gets the size that the volume has.
    ///
    /// # Errors
    /// There is no such volume here, or its device has not grown yet.
    pub fn expand(&self, request: &v1::NodeExpandVolumeRequest) -> Result<u64, Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        let path = required(&request.volume_path, "volume_path")?;
        let (id, record) = self.find(id, path)?;
        let _held = self.locks.take(id.set.as_str())?;
        let asked = request.capacity_range.as_ref().map_or(0, |range| u64::try_from(range.required_bytes).unwrap_or(0));
        let begun = Instant::now();
        let bytes = loop {
            let volume = self.attached.volume(&id.set, &id.volume)?;
            if volume.device_bytes.is_none() && volume.size_bytes >= asked {
                break volume.size_bytes;
            }
            if begun.elapsed() >= GROWN_LIMIT {
                let has = volume.device_bytes.unwrap_or(volume.size_bytes);
                let next = match self.options.device {
                    DeviceChoice::Kernel => "repeat this call",
                    DeviceChoice::Nbdfuse => "a device of nbdfuse grows when the volume is staged again",
                };
                let late =
                    format!("the device of {id} has {has} bytes, expected {}: {next}", asked.max(volume.size_bytes));
                return Err(Refused::new(Code::DeadlineExceeded, late));
            }
            std::thread::sleep(GROWN_PAUSE);
        };
        if let Access::Mount { kind, .. } = record.access {
            let device = self.attached.device(&id.set, &id.volume)?;
            mount::grow(&device, &record.staging, kind)?;
            reached!("csi: a mounted file system grew");
        }
        Ok(bytes)
    }

    /// NodeGetVolumeStats.
    ///
    /// # Errors
    /// There is no such volume here, or its file system does not answer.
    pub fn stats(&self, request: &v1::NodeGetVolumeStatsRequest) -> Result<Vec<v1::VolumeUsage>, Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        let path = required(&request.volume_path, "volume_path")?;
        let (id, record) = self.find(id, path)?;
        let volume = self.attached.volume(&id.set, &id.volume)?;
        if record.access == Access::Block {
            let unit = v1::volume_usage::Unit::Bytes as i32;
            return Ok(vec![v1::VolumeUsage { total: signed(volume.size_bytes), unit, ..Default::default() }]);
        }
        let stat =
            rustix::fs::statvfs(path).map_err(|error| Refused::failed(format!("{}: {error}", path.display())))?;
        let bytes = |blocks: u64| signed(blocks.saturating_mul(stat.f_frsize));
        let used = |total: u64, free: u64| total.saturating_sub(free);
        Ok(vec![
            v1::VolumeUsage {
                available: bytes(stat.f_bavail),
                total: bytes(stat.f_blocks),
                used: bytes(used(stat.f_blocks, stat.f_bfree)),
                unit: v1::volume_usage::Unit::Bytes as i32,
            },
            v1::VolumeUsage {
                available: signed(stat.f_favail),
                total: signed(stat.f_files),
                used: signed(used(stat.f_files, stat.f_ffree)),
                unit: v1::volume_usage::Unit::Inodes as i32,
            },
        ])
    }

    /// NodeGetInfo.
    pub fn info(&self) -> v1::NodeGetInfoResponse {
        v1::NodeGetInfoResponse {
            node_id: self.options.node.to_string(),
            max_volumes_per_node: i64::try_from(self.options.volumes_max).unwrap_or(i64::MAX),
            accessible_topology: topology::of_node(self.options.locality.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_attach::{Phase, RunDir};
    use holdfast_types::Owner;
    use std::path::PathBuf;

    fn options(dir: &Path, volumes_max: usize) -> NodeOptions {
        NodeOptions {
            node: Owner::new("node1").unwrap(),
            locality: Some("region=eu".parse().unwrap()),
            dir: dir.to_path_buf(),
            device: DeviceChoice::Nbdfuse,
            program: "/no/such/program".into(),
            connection: Vec::new(),
            volumes_max,
        }
    }

    fn block() -> v1::VolumeCapability {
        use v1::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};
        let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter as i32 });
        v1::VolumeCapability { access_mode, access_type: Some(AccessType::Block(BlockVolume {})) }
    }

    /// STAGED-S2, and the limit of a node.
    #[test]
    fn a_failed_stage_leaves_nothing_and_a_node_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(options(dir.path(), 1)).unwrap();
        let request = v1::NodeStageVolumeRequest {
            volume_id: "csi-a/data".into(),
            staging_target_path: "/staging".into(),
            volume_capability: Some(block()),
        };
        assert!(node.stage(&request).unwrap_err().text.contains("/no/such/program"));
        assert!(node.records.sets().unwrap().is_empty());
        let other = VolumeId::of("csi-b/data").unwrap();
        node.records.write(&other, &node.records.new_of(Path::new("/other"), Access::Block)).unwrap();
        assert_eq!(node.stage(&request).unwrap_err().code, Code::ResourceExhausted);
        let record = node.records.new_of(Path::new("/staging"), Access::Block);
        node.records.write(&VolumeId::of("csi-a/data").unwrap(), &record).unwrap();
        assert_eq!(node.stage(&request).unwrap_err().code, Code::Unavailable, "an earlier call left it here");
        let relative = v1::NodeStageVolumeRequest { staging_target_path: "staging".into(), ..request.clone() };
        assert_eq!(node.stage(&relative).unwrap_err().code, Code::InvalidArgument);
        let elsewhere = v1::NodeStageVolumeRequest { volume_id: "csi-b/data".into(), ..request };
        assert_eq!(node.stage(&elsewhere).unwrap_err().code, Code::AlreadyExists);
    }

    /// STAGED-S2: otherwise nothing starts the process again, and the file system's last writes wait for it.
    #[test]
    fn a_volume_is_forgotten_after_it_is_detached() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(options(dir.path(), 1)).unwrap();
        let id = VolumeId::of("csi-a/data").unwrap();
        node.records.write(&id, &node.records.new_of(Path::new("/staging"), Access::Block)).unwrap();
        let attach = node.records.of_set(&id.set).join("attach");
        std::fs::create_dir(&attach).unwrap();
        std::fs::write(attach.join("lease.json"), "{}").unwrap();
        let request =
            v1::NodeUnstageVolumeRequest { volume_id: id.to_string(), staging_target_path: "/staging".into() };
        assert!(node.unstage(&request).unwrap_err().text.contains("/no/such/program"));
        assert!(node.records.read(&id).unwrap().is_some());
        std::fs::remove_file(attach.join("lease.json")).unwrap();
        node.unstage(&request).unwrap();
        assert!(node.records.read(&id).unwrap().is_none());
    }

    /// STAGED-S2.
    #[test]
    fn a_failed_publish_leaves_nothing() {
        use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(options(dir.path(), 1)).unwrap();
        let id = VolumeId::of("csi-a/data").unwrap();
        let attached = RunDir::take(&node.records.of_set(&id.set).join("attach")).unwrap();
        attached.show(&attach::status_for_test(&id.set, Phase::Serving, &["data"])).unwrap();
        // Something is mounted there on each machine.
        let mounted = Access::Mount { kind: capability::FileSystem::Ext4, options: Vec::new() };
        node.records.write(&id, &node.records.new_of(Path::new("/proc"), mounted)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/nowhere", &link).unwrap();
        let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter as i32 });
        let access_type = Some(AccessType::Mount(MountVolume::default()));
        let request = v1::NodePublishVolumeRequest {
            volume_id: id.to_string(),
            target_path: link.display().to_string(),
            volume_capability: Some(v1::VolumeCapability { access_mode, access_type }),
            ..Default::default()
        };
        let refused = node.publish(&request).unwrap_err();
        assert!(refused.code == Code::FailedPrecondition && refused.text.contains("symbolic link"), "{refused}");
        assert_eq!(node.records.read(&id).unwrap().unwrap().targets, Vec::<PathBuf>::new(), "it can be unstaged");
    }

    #[test]
    fn a_volume_is_published_as_it_is_staged() {
        let record = |targets: &[&str], access| Record {
            boot: String::new(),
            staging: "/staging".into(),
            access,
            targets: targets.iter().map(PathBuf::from).collect(),
        };
        let wanted = |one_target| Wanted { access: Access::Block, read_only: false, one_target };
        let at = Path::new("/b");
        may_publish(&record(&["/a"], Access::Block), &wanted(false), at).unwrap();
        may_publish(&record(&["/b"], Access::Block), &wanted(true), at).unwrap();
        let refused = may_publish(&record(&["/a"], Access::Block), &wanted(true), at).unwrap_err();
        assert_eq!(refused.code, Code::FailedPrecondition);
        let mounted = Access::Mount { kind: capability::FileSystem::Ext4, options: Vec::new() };
        assert!(may_publish(&record(&[], mounted), &wanted(false), at).is_err());
    }

    #[test]
    fn what_is_not_here_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(options(dir.path(), 1)).unwrap();
        let of = |id: &str| v1::NodeGetVolumeStatsRequest { volume_id: id.into(), volume_path: "some/path".into() };
        for id in ["csi-a/data", "no-id"] {
            assert_eq!(node.stats(&of(id)).unwrap_err().code, Code::NotFound);
        }
        assert_eq!(node.stats(&of("")).unwrap_err().code, Code::InvalidArgument);
        let info = node.info();
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node1", 1));
        assert!(info.accessible_topology.is_some());
    }
}
