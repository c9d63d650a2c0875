//! The name of a snapshot on the command line, and calls about snapshots that commands share.

use crate::client::{Client, ClusterClient, Effect};
use crate::exit::CliError;
use holdfast_api::v1;
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

/// The token that opens exports of a snapshot.
pub async fn token(api: &mut ClusterClient, snapshot: &SnapshotArg) -> Result<v1::GetSnapshotTokenReply, CliError> {
    let (set, name) = (snapshot.set.to_string(), snapshot.name.to_string());
    let request = v1::GetSnapshotTokenRequest { set, name };
    let call = async |mut client: Client| client.get_snapshot_token(request.clone()).await;
    api.call(&format!("get the token of snapshot {snapshot}"), Effect::Reads, call).await
}

/// The snapshot, from the list of its set's leader.
pub async fn find(api: &mut ClusterClient, snapshot: &SnapshotArg) -> Result<Option<v1::Snapshot>, CliError> {
    let request = v1::ListSnapshotsRequest { set: snapshot.set.to_string() };
    let call = async |mut client: Client| client.list_snapshots(request.clone()).await;
    let reply = api.call(&format!("list the snapshots of {}", snapshot.set), Effect::Reads, call).await?;
    Ok(reply.snapshots.into_iter().find(|found| found.name == snapshot.name.as_str()))
}

/// The error for a snapshot that does not exist.
pub fn no_snapshot(snapshot: &SnapshotArg) -> CliError {
    CliError::refused(format!("there is no snapshot {snapshot}"))
        .next(format!("`holdfast snapshot list {}` shows all", snapshot.set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let found: SnapshotArg = "demo@monday-1".parse().unwrap();
        assert_eq!((found.set.as_str(), found.name.as_str()), ("demo", "monday-1"));
        for bad in ["demo", "demo@", "@monday", "demo@a@b", "demo/vol@a"] {
            assert!(bad.parse::<SnapshotArg>().is_err(), "{bad}");
        }
    }
}
