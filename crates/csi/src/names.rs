//! Names: from what CSI calls a volume or a snapshot to the names of sets and snapshots, and the ids that are given
//! back.
//!
//! CSI-N1  Two names of CSI never become the same name of a set, and one always becomes the same: a repeated call finds
//!     what the first one made. A name that is no name of a set, is too long, or looks like a hashed one is hashed.
//! CSI-N2  Whatever the driver deletes has its prefix. A set that a person made is never deleted, whoever asks.

use crate::refused::Refused;
use holdfast_types::Name;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// The volume in a set of the driver.
pub const VOLUME: &str = "data";

/// Maximum length of a name in CSI, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Maximum length of the prefix: the rest has room for a hash.
const PREFIX_BYTES_MAX: usize = 16;

/// Begins the rest of a name that is a hash.
const HASHED: &str = "x-";

/// Begins the name of a snapshot that exists only while a volume is cloned.
const FOR_A_CLONE: &str = "clone-";

/// Bytes of the hash that a name has: 160 bits.
const HASH_BYTES: usize = 20;

/// The beginning of the names of the driver's sets and snapshots. Each Kubernetes cluster that shares a Holdfast
/// cluster has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// Why a text is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "prefix: found {found:?}, expected 2 to {PREFIX_BYTES_MAX} of a-z A-Z 0-9 . _ - that begin with a letter or digit and end with `-`"
)]
pub struct PrefixError {
    found: String,
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let fits = (2..=PREFIX_BYTES_MAX).contains(&text.len()) && text.ends_with('-') && Name::new(text).is_ok();
        if fits && text != FOR_A_CLONE {
            return Ok(Self(text.to_string()));
        }
        Err(PrefixError { found: text.chars().take(80).collect() })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

impl Prefix {
    /// The name of the set, or of the snapshot, that CSI calls `name` (CSI-N1).
    ///
    /// # Errors
    /// The name is empty, or longer than CSI allows.
    pub fn named(&self, name: &str) -> Result<Name, Refused> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let found = name.len();
            return Err(Refused::invalid(format!("name: found {found} bytes, expected 1 to {NAME_BYTES_MAX}")));
        }
        if !name.starts_with(HASHED)
            && let Ok(plain) = Name::new(format!("{}{name}", self.0))
        {
            return Ok(plain);
        }
        let hashed = Name::new(format!("{}{HASHED}{}", self.0, hash(name)));
        hashed.map_err(|error| Refused::failed(error.to_string()))
    }

    /// Whether the driver has made what has this name (CSI-N2).
    pub fn is_ours(&self, name: &str) -> bool {
        name.strip_prefix(&self.0).is_some_and(|rest| !rest.is_empty())
    }
}

/// The snapshot of the source that exists while `set` is made as a clone of a volume.
pub fn for_a_clone(set: &Name) -> String {
    format!("{FOR_A_CLONE}{}", hash(set.as_str()))
}

/// Whether a snapshot is one of those.
pub fn is_for_a_clone(name: &str) -> bool {
    name.strip_prefix(FOR_A_CLONE).is_some_and(|rest| {
        rest.len() == 2 * HASH_BYTES && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// A volume's id in CSI: `SET/VOLUME`. Also for a set that a person made (a volume that is provisioned by hand).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeId {
    /// The set.
    pub set: Name,
    /// Its volume.
    pub volume: Name,
}

impl VolumeId {
    /// Reads an id. `None` if it is none: then there is no such volume.
    ///
    /// # Errors
    /// The id is empty.
    pub fn read(text: &str) -> Result<Option<Self>, Refused> {
        if text.is_empty() {
            return Err(Refused::invalid("volume_id is missing"));
        }
        let read = text.split_once('/').map(|(set, volume)| (Name::new(set), Name::new(volume)));
        Ok(match read {
            Some((Ok(set), Ok(volume))) => Some(Self { set, volume }),
            _ => None,
        })
    }

    /// Like `read`, for a call that needs the volume.
    ///
    /// # Errors
    /// The id is empty, or no id of this driver.
    pub fn of(text: &str) -> Result<Self, Refused> {
        Self::read(text)?.ok_or_else(|| no_volume(text))
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.set, self.volume)
    }
}

/// The refusal for a volume that does not exist.
pub fn no_volume(id: impl fmt::Display) -> Refused {
    Refused::not_found(format!("there is no volume {id}: expected the id SET/VOLUME of a volume that exists"))
}

/// A snapshot's id in CSI: `SET@SNAPSHOT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotId {
    /// The set.
    pub set: Name,
    /// Its snapshot.
    pub snapshot: Name,
}

impl SnapshotId {
    /// Reads an id. `None` if it is none: then there is no such snapshot.
    ///
    /// # Errors
    /// The id is empty.
    pub fn read(text: &str) -> Result<Option<Self>, Refused> {
        if text.is_empty() {
            return Err(Refused::invalid("snapshot_id is missing"));
        }
        let read = text.split_once('@').map(|(set, snapshot)| (Name::new(set), Name::new(snapshot)));
        Ok(match read {
            Some((Ok(set), Ok(snapshot))) => Some(Self { set, snapshot }),
            _ => None,
        })
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.set, self.snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tonic::Code;

    fn prefix() -> Prefix {
        "csi-".parse().unwrap()
    }

    /// CSI-N1.
    #[test]
    fn a_name_has_one_set_and_a_set_one_name() {
        let long = "n".repeat(128);
        let hashed = format!("x-{}", hash(&long));
        let names = ["pvc-1", "a b", "a/b", "a?b", "ä", "A", "a", &long, &hashed, &"n".repeat(127), &"n".repeat(59)];
        let mut seen = BTreeMap::new();
        for name in names {
            let set = prefix().named(name).unwrap();
            assert_eq!(prefix().named(name).unwrap(), set, "a repeated call finds the same");
            assert!(prefix().is_ours(set.as_str()));
            let other = seen.insert(set.clone(), name);
            assert_eq!(other, None, "{name} and another name have the set {set}");
        }
        assert_eq!(prefix().named("pvc-1").unwrap().as_str(), "csi-pvc-1");
    }

    #[test]
    fn names_that_csi_does_not_allow_are_refused() {
        for name in ["", &"n".repeat(129)] {
            assert_eq!(prefix().named(name).unwrap_err().code, Code::InvalidArgument);
        }
        for bad in ["", "-", "csi", "clone-", "a/-", &"n".repeat(17)] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    /// CSI-N2.
    #[test]
    fn sets_of_others_are_not_ours() {
        for other in ["demo", "csi", "csi-", "CSI-a", "x-csi-a"] {
            assert!(!prefix().is_ours(other), "{other}");
        }
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = VolumeId::read("csi-pvc-1/data").unwrap().unwrap();
        assert_eq!(
            (id.set.as_str(), id.volume.as_str(), id.to_string().as_str()),
            ("csi-pvc-1", "data", "csi-pvc-1/data")
        );
        let id = SnapshotId::read("demo@csi-s").unwrap().unwrap();
        assert_eq!(id.to_string(), "demo@csi-s");
        for none in ["x", "a/b/c", "/b", "a/", "a@b"] {
            assert_eq!(VolumeId::read(none).unwrap(), None, "{none}");
        }
        assert_eq!(VolumeId::of("x").unwrap_err().code, Code::NotFound);
        assert_eq!(VolumeId::read("").unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn snapshots_for_clones_are_told_from_others() {
        let name = for_a_clone(&Name::new("csi-pvc-1").unwrap());
        assert!(is_for_a_clone(&name) && Name::new(name.clone()).is_ok(), "{name}");
        assert!(!is_for_a_clone("clone-of-monday") && !prefix().is_ours(&name));
    }
}
