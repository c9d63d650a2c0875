//! `holdfast snapshot`.

use super::connect::{connect, incomplete};
use super::console::confirm;
use super::set_calls::status;
use super::snapshot_calls::{find, no_snapshot, token};
use super::text::since;
use crate::cli::{Common, SnapshotArg, SnapshotCommand};
use crate::client::{Client, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// Runs one of `holdfast snapshot`'s commands.
pub async fn run(common: &Common, command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create { snapshot } => create(common, &snapshot).await,
        SnapshotCommand::List { set } => list(common, &set).await,
        SnapshotCommand::Token { snapshot } => show_token(common, &snapshot).await,
        SnapshotCommand::Rollback { snapshot, force, yes } => rollback(common, &snapshot, force, yes).await,
        SnapshotCommand::Diff { set, earlier, later } => super::diff::run(common, &set, &earlier, &later).await,
        SnapshotCommand::Delete { snapshot, yes } => delete(common, &snapshot, yes).await,
    }
}

async fn create(common: &Common, snapshot: &SnapshotArg) -> Result<(), CliError> {
    let SnapshotArg { set, name } = snapshot;
    let request = v1::CreateSnapshotRequest { set: set.to_string(), name: name.to_string(), request_id: request_id() };
    let call = async |mut client: Client| client.create_snapshot(request.clone()).await;
    let reply = connect(common).call(&format!("create snapshot {set}@{name}"), Effect::Changes, call).await?;
    let made = reply.snapshot.ok_or_else(|| incomplete("the snapshot"))?;
    output::show(common.output, &made, || format!("snapshot {set}@{name} created at log position {}", place(&made)))
}

async fn list(common: &Common, set: &Name) -> Result<(), CliError> {
    let request = v1::ListSnapshotsRequest { set: set.to_string() };
    let call = async |mut client: Client| client.list_snapshots(request.clone()).await;
    let reply = connect(common).call(&format!("list the snapshots of {set}"), Effect::Reads, call).await?;
    output::show(common.output, &reply, || {
        let rows = reply.snapshots.iter().map(|found| {
            let state = match (found.pending, found.scheduled) {
                (true, _) => "pending",
                (false, true) => "scheduled",
                (false, false) => "ready",
            };
            let volumes: Vec<&str> = found.volumes.iter().map(|volume| volume.name.as_str()).collect();
            [found.name.clone(), state.to_string(), place(found), since(found.created_unix_ms), volumes.join(" ")]
        });
        output::table(["SNAPSHOT", "STATE", "POSITION", "CREATED", "VOLUMES"], rows)
    })
}

async fn delete(common: &Common, snapshot: &SnapshotArg, yes: bool) -> Result<(), CliError> {
    let SnapshotArg { set, name } = snapshot;
    let mut api = connect(common);
    // By its id: a delayed copy of the call cannot hit a newer snapshot of that name.
    let reply = match find(&mut api, snapshot).await? {
        None => v1::DeleteSnapshotReply { deleted: false },
        Some(found) => {
            if !yes {
                let (of, since) = (found.volumes.len(), since(found.created_unix_ms));
                confirm(&format!("Delete snapshot {snapshot} ({of} volumes, created {since}) permanently?"))?;
                // The time limit starts after the answer.
                api = connect(common);
            }
            let (set, name) = (set.to_string(), name.to_string());
            let request = v1::DeleteSnapshotRequest { set, name, request_id: request_id(), id: found.id };
            let call = async |mut client: Client| client.delete_snapshot(request.clone()).await;
            api.call(&format!("delete snapshot {snapshot}"), Effect::Changes, call).await?
        }
    };
    output::show(common.output, &reply, || {
        if reply.deleted {
            format!("snapshot {set}@{name} deleted")
        } else {
            format!("there is no snapshot {set}@{name}; it may have been deleted before")
        }
    })
}

async fn rollback(common: &Common, snapshot: &SnapshotArg, force: bool, yes: bool) -> Result<(), CliError> {
    let mut api = connect(common);
    let found = find(&mut api, snapshot).await?.ok_or_else(|| no_snapshot(snapshot))?;
    if !yes {
        let asked = since(found.created_unix_ms);
        confirm(&format!("Roll set {} back to {snapshot} (created {asked})?", snapshot.set))?;
        api = connect(common);
    }
    let (set, name) = (snapshot.set.to_string(), snapshot.name.to_string());
    let request = v1::RollbackSnapshotRequest { set, name, id: found.id, request_id: request_id(), force };
    let call = async |mut client: Client| client.rollback_snapshot(request.clone()).await;
    let reply = api.patient().call(&format!("roll back to {snapshot}"), Effect::Changes, call).await?;
    let safety = reply.safety.as_ref().map(|safety| safety.name.clone());
    output::show(common.output, &reply, || match safety {
        Some(safety) => format!(
            "set {set} was rolled back to {snapshot}. Its former state is {set}@{safety}; delete that when it is no longer needed",
            set = snapshot.set
        ),
        None => {
            format!("set {} was already rolled back to {snapshot} by an earlier attempt of this request", snapshot.set)
        }
    })
}

/// The token, and the NBD address of each volume at the set's leader. The `?` in the export's name is escaped.
async fn show_token(common: &Common, snapshot: &SnapshotArg) -> Result<(), CliError> {
    let mut api = connect(common);
    let found = token(&mut api, snapshot).await?;
    let leader = status(&mut api, snapshot.set.as_str(), false).await?.leader;
    let nbd = leader.and_then(|leader| leader.addresses).map(|addresses| addresses.nbd).unwrap_or_default();
    let (SnapshotArg { set, name }, token) = (snapshot, &found.token);
    let scheme = common.nbd_scheme();
    let export = |volume: &v1::Volume| format!("{scheme}://{nbd}/{set}/{}@{name}%3Ftoken={token}", volume.name);
    let exports: Vec<String> = found.volumes.iter().map(export).collect();
    output::show(common.output, &serde_json::json!({ "token": token, "exports": exports }), || exports.join("\n"))
}

/// `t3/1234`, or "" while it is not known.
fn place(snapshot: &v1::Snapshot) -> String {
    if snapshot.pending { String::new() } else { format!("t{}/{}", snapshot.term, snapshot.index) }
}
