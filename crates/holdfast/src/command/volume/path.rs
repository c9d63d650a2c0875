//! The name of a volume on the command line, and where it is looked up.

use crate::client::ClusterClient;
use crate::command::set_calls::status;
use crate::exit::CliError;
use holdfast_api::v1;
use holdfast_types::Name;
use std::fmt;
use std::str::FromStr;

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

/// The volume as its set's leader has it.
pub async fn find(api: &mut ClusterClient, volume: &VolumePath) -> Result<v1::Volume, CliError> {
    let found = status(api, volume.set.as_str(), false).await?;
    let found = found.volumes.into_iter().find(|found| found.name == volume.name.as_str());
    found.ok_or_else(|| no_volume(volume))
}

/// The error for a volume that does not exist.
pub fn no_volume(volume: &VolumePath) -> CliError {
    CliError::refused(format!("there is no volume {volume}"))
        .next(format!("`holdfast volume list {}` shows all", volume.set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let found: VolumePath = "demo/vol-1".parse().unwrap();
        assert_eq!((found.set.as_str(), found.name.as_str()), ("demo", "vol-1"));
        for bad in ["demo", "demo/", "/vol", "demo/a/b", "demo/vol@a"] {
            assert!(bad.parse::<VolumePath>().is_err(), "{bad}");
        }
    }
}
