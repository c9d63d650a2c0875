//! What a caller wants to do with a volume, and whether it can be done: a block device or a file system, at one node at
//! a time.

use crate::refused::Refused;
use crate::v1;
use crate::v1::volume_capability::AccessType;
use crate::v1::volume_capability::access_mode::Mode;
use serde::{Deserialize, Serialize};

/// A file system that is made on a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ext4, the default.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Its name for mount and blkid.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// How a volume is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// As a block device.
    Block,
    /// As a file system.
    Mount {
        /// Which.
        kind: FileSystem,
        /// Options for mount.
        options: Vec<String>,
    },
}

/// What a caller wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How.
    pub access: Access,
    /// Without writing.
    pub read_only: bool,
    /// At one path of the node only.
    pub one_target: bool,
}

/// Longest option for mount, in bytes.
const OPTION_BYTES_MAX: usize = 128;

/// Reads a capability.
///
/// # Errors
/// It is missing, or it cannot be fulfilled: several nodes, another file system.
pub fn read(capability: Option<&v1::VolumeCapability>) -> Result<Wanted, Refused> {
    let capability = capability.ok_or_else(|| Refused::invalid("volume_capability is missing"))?;
    let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, v1::volume_capability::AccessMode::mode);
    let (read_only, one_target) = match mode {
        Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter => (false, false),
        Mode::SingleNodeSingleWriter => (false, true),
        Mode::SingleNodeReaderOnly => (true, false),
        other => {
            return Err(Refused::invalid(format!(
                "access mode: found {}, expected one of a single node (ReadWriteOnce, ReadWriteOncePod): a volume is used at one node at a time",
                other.as_str_name()
            )));
        }
    };
    let access = match &capability.access_type {
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) => mounted(mount)?,
        None => return Err(Refused::invalid("volume_capability: found no access_type, expected block or mount")),
    };
    Ok(Wanted { access, read_only, one_target })
}

fn mounted(mount: &v1::volume_capability::MountVolume) -> Result<Access, Refused> {
    let kind = match mount.fs_type.as_str() {
        "" | "ext4" => FileSystem::Ext4,
        "xfs" => FileSystem::Xfs,
        other => return Err(Refused::invalid(format!("fs_type: found {other:?}, expected ext4 or xfs"))),
    };
    let fits = |option: &&String| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-=:/".contains(&byte);
        !option.is_empty() && option.len() <= OPTION_BYTES_MAX && !option.starts_with('-') && option.bytes().all(known)
    };
    if let Some(bad) = mount.mount_flags.iter().find(|option| !fits(option)) {
        return Err(Refused::invalid(format!("mount_flags: found {bad:?}, expected one option for mount in each")));
    }
    Ok(Access::Mount { kind, options: mount.mount_flags.clone() })
}

/// Checks all capabilities of a volume.
///
/// # Errors
/// There is none, or one cannot be fulfilled.
pub fn check(capabilities: &[v1::VolumeCapability]) -> Result<(), Refused> {
    if capabilities.is_empty() {
        return Err(Refused::invalid("volume_capabilities is missing"));
    }
    capabilities.iter().try_for_each(|capability| read(Some(capability)).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn capability(mode: Mode, access_type: Option<AccessType>) -> v1::VolumeCapability {
        v1::VolumeCapability { access_mode: Some(AccessMode { mode: mode as i32 }), access_type }
    }

    fn mount(fs_type: &str, flags: &[&str]) -> Option<AccessType> {
        let mount_flags = flags.iter().map(ToString::to_string).collect();
        Some(AccessType::Mount(MountVolume { fs_type: fs_type.into(), mount_flags, ..Default::default() }))
    }

    #[test]
    fn one_node_at_a_time() {
        let block = || Some(AccessType::Block(BlockVolume {}));
        let single = [
            Mode::SingleNodeWriter,
            Mode::SingleNodeReaderOnly,
            Mode::SingleNodeSingleWriter,
            Mode::SingleNodeMultiWriter,
        ];
        for mode in single {
            let wanted = read(Some(&capability(mode, block()))).unwrap();
            assert_eq!(wanted.access, Access::Block);
            assert_eq!(wanted.read_only, mode == Mode::SingleNodeReaderOnly);
            assert_eq!(wanted.one_target, mode == Mode::SingleNodeSingleWriter);
        }
        let several =
            [Mode::Unknown, Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter];
        for mode in several {
            assert!(check(&[capability(mode, block())]).is_err(), "{mode:?}");
        }
        assert!(read(None).is_err() && check(&[]).is_err());
        assert!(read(Some(&capability(Mode::SingleNodeWriter, None))).is_err());
    }

    #[test]
    fn file_systems_and_options_are_checked() {
        let ask = |kind: &str, flags: &[&str]| read(Some(&capability(Mode::SingleNodeWriter, mount(kind, flags))));
        let ext4 = ask("", &["noatime", "data=ordered"]).unwrap().access;
        let options = vec!["noatime".to_string(), "data=ordered".to_string()];
        assert_eq!(ext4, Access::Mount { kind: FileSystem::Ext4, options });
        assert!(matches!(ask("xfs", &[]).unwrap().access, Access::Mount { kind: FileSystem::Xfs, .. }));
        assert!(ask("zfs", &[]).is_err());
        for bad in ["", "-o", "a,b", "a b", &"a".repeat(129)] {
            assert!(ask("ext4", &[bad]).is_err(), "{bad}");
        }
    }
}
