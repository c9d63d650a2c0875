//! Names of snapshots and volumes on the command line.

use holdfast_types::Name;
use std::fmt;
use std::str::FromStr;

/// `SET@NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotArg {
    /// The set.
    pub set: Name,
    /// The snapshot in it.
    pub name: Name,
}

impl fmt::Display for SnapshotArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.set, self.name)
    }
}

impl FromStr for SnapshotArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (set, name) = text.split_once('@').ok_or_else(|| format!("found {text:?}, expected SET@NAME"))?;
        let read = |part: &str| Name::new(part).map_err(|error| error.to_string());
        Ok(Self { set: read(set)?, name: read(name)? })
    }
}

/// `SET/VOLUME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The set.
    pub set: Name,
    /// The volume in it.
    pub name: Name,
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.set, self.name)
    }
}

impl FromStr for VolumePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (set, name) = text.split_once('/').ok_or_else(|| format!("found {text:?}, expected SET/VOLUME"))?;
        let read = |part: &str| Name::new(part).map_err(|error| error.to_string());
        Ok(Self { set: read(set)?, name: read(name)? })
    }
}

/// `SET/VOLUME` or `SET/VOLUME@SNAPSHOT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPath {
    /// The volume.
    pub volume: VolumePath,
    /// The snapshot, if any.
    pub snapshot: Option<Name>,
}

impl fmt::Display for ExportPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.volume),
            None => self.volume.fmt(f),
        }
    }
}

impl FromStr for ExportPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (volume, snapshot) = match text.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(Name::new(snapshot).map_err(|error| error.to_string())?)),
            None => (text, None),
        };
        Ok(Self { volume: volume.parse()?, snapshot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots() {
        let found: SnapshotArg = "demo@monday-1".parse().unwrap();
        assert_eq!((found.set.as_str(), found.name.as_str()), ("demo", "monday-1"));
        for bad in ["demo", "demo@", "@monday", "demo@a@b", "demo/vol@a"] {
            assert!(bad.parse::<SnapshotArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn volumes() {
        let found: VolumePath = "demo/vol-1".parse().unwrap();
        assert_eq!((found.set.as_str(), found.name.as_str()), ("demo", "vol-1"));
        for bad in ["demo", "demo/", "/vol", "demo/a/b", "demo/vol@a"] {
            assert!(bad.parse::<VolumePath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn exports() {
        let found: ExportPath = "demo/vol1@monday".parse().unwrap();
        assert_eq!(found.to_string(), "demo/vol1@monday");
        assert_eq!("demo/vol1".parse::<ExportPath>().unwrap().snapshot, None);
        for bad in ["demo", "demo@a", "demo/vol@", "demo/vol@a@b"] {
            assert!(bad.parse::<ExportPath>().is_err(), "{bad}");
        }
    }
}
