//! Calls about snapshots that commands share.

use crate::cli::SnapshotArg;
use crate::client::{Client, ClusterClient, Effect};
use crate::exit::CliError;
use holdfast_api::v1;

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
