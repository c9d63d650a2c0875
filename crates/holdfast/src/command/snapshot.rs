//! `holdfast snapshot`.

use super::{door, incomplete, set::since, tell};
use crate::cli::{Common, with_codes};
use crate::door::{Client, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use clap::Subcommand;
use holdfast_api::v1;
use holdfast_types::Name;
use std::str::FromStr;

const CREATE: &str = "\
A snapshot shows all volumes of a set at one moment, which lies between the call and its answer. What was answered before the call is in it.
It costs what changes afterwards, whatever the volumes' size. Connect to it read-only, at any gateway, as SET/VOLUME@NAME.

Examples:
  holdfast snapshot create demo@monday
  nbdcopy nbd://gateway-1:10809/demo/vol1@monday monday.img
";

const DELETE: &str = "\
What only this snapshot held is deleted from the store after the readers' grace (space.grace_ms).

Example:
  holdfast snapshot delete demo@monday
";

/// `holdfast snapshot`.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep a set as it is now under a name; answers once it is in the store
    #[command(after_long_help = with_codes(CREATE))]
    Create {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
    },
    /// List the snapshots of a set, oldest first
    List {
        /// The set
        set: Name,
    },
    /// Delete a snapshot
    #[command(after_long_help = with_codes(DELETE))]
    Delete {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
    },
}

/// `SET@NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotArg {
    /// The set.
    pub set: Name,
    /// The snapshot in it.
    pub name: Name,
}

impl FromStr for SnapshotArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (set, name) = text.split_once('@').ok_or_else(|| format!("found {text:?}, expected SET@NAME"))?;
        let read = |part: &str| Name::new(part).map_err(|error| error.to_string());
        Ok(Self { set: read(set)?, name: read(name)? })
    }
}

/// Runs one of `holdfast snapshot`'s commands.
pub async fn run(common: &Common, command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create { snapshot } => create(common, &snapshot).await,
        SnapshotCommand::List { set } => list(common, &set).await,
        SnapshotCommand::Delete { snapshot } => delete(common, &snapshot).await,
    }
}

async fn create(common: &Common, snapshot: &SnapshotArg) -> Result<(), CliError> {
    let SnapshotArg { set, name } = snapshot;
    let request = v1::CreateSnapshotRequest { set: set.to_string(), name: name.to_string(), request_id: request_id() };
    let call = async |mut client: Client| client.create_snapshot(request.clone()).await;
    let reply = door(common).call(&format!("create snapshot {set}@{name}"), Effect::Changes, call).await?;
    let made = reply.snapshot.ok_or_else(|| incomplete("the snapshot"))?;
    output::show(common.output, &made, || format!("snapshot {set}@{name} shows everything up to {}", place(&made)))
}

async fn list(common: &Common, set: &Name) -> Result<(), CliError> {
    let request = v1::ListSnapshotsRequest { set: set.to_string() };
    let call = async |mut client: Client| client.list_snapshots(request.clone()).await;
    let reply = door(common).call(&format!("list the snapshots of {set}"), Effect::Reads, call).await?;
    output::show(common.output, &reply, || {
        let rows = reply.snapshots.iter().map(|found| {
            let state = if found.pending { "pending" } else { "ready" };
            let volumes: Vec<&str> = found.volumes.iter().map(|volume| volume.name.as_str()).collect();
            [found.name.clone(), state.to_string(), place(found), since(found.created_unix_ms), volumes.join(" ")]
        });
        output::table(["SNAPSHOT", "STATE", "UP TO", "ASKED FOR", "VOLUMES"], rows)
    })
}

async fn delete(common: &Common, snapshot: &SnapshotArg) -> Result<(), CliError> {
    let SnapshotArg { set, name } = snapshot;
    let request = v1::DeleteSnapshotRequest { set: set.to_string(), name: name.to_string(), request_id: request_id() };
    let call = async |mut client: Client| client.delete_snapshot(request.clone()).await;
    let reply = door(common).call(&format!("delete snapshot {set}@{name}"), Effect::Changes, call).await?;
    if !reply.deleted {
        tell(common, &format!("there is no snapshot {set}@{name}: it may have been deleted before"));
    }
    output::show(common.output, &reply, || {
        format!("snapshot {set}@{name} {}", if reply.deleted { "deleted" } else { "is not there" })
    })
}

/// `t3/1234`, or nothing while it is not known.
fn place(snapshot: &v1::Snapshot) -> String {
    if snapshot.pending { String::new() } else { format!("t{}/{}", snapshot.term, snapshot.index) }
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
