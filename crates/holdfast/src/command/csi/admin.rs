//! The cluster as the driver sees it: each call by a client of its own, with the time of `--timeout`.

use crate::cli::{Common, SnapshotArg};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::command::connect::{connect, incomplete};
use crate::command::{clone, cluster, set_calls};
use crate::exit::{CliError, Exit};
use holdfast_api::v1;
use holdfast_api::v1::change_volume_request::Change;
use holdfast_csi::{Cluster, Refused};
use holdfast_types::{ByteSize, Name};
use tokio::runtime::Handle;

/// A cluster, by its admin API.
pub struct Admin {
    common: Common,
}

/// An error in CSI's terms.
fn refused(error: &CliError) -> Refused {
    let text = match &error.next {
        Some(next) => format!("{}; {next}", error.message),
        None => error.message.clone(),
    };
    // An earlier attempt may have had an effect, whatever the last one was refused for.
    let code = if error.exit == Exit::Unknown { "unknown" } else { error.code };
    Refused::of_cluster(code, text)
}

/// What is left of a set that no gateway has any more: its name is taken until its objects are deleted.
async fn ending(api: &mut ClusterClient, set: &Name) -> Result<Option<v1::SetStatus>, CliError> {
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let listed = api.call("list the sets", Effect::Reads, call).await?;
    let left = listed.deletions.into_iter().find(|found| found.name == set.as_str());
    Ok(left.map(|deletion| v1::SetStatus { deletion: Some(deletion), ..Default::default() }))
}

impl Admin {
    /// The cluster of these addresses and this certificate.
    pub fn new(common: Common) -> Self {
        Self { common }
    }

    /// Runs calls to their end. On a thread for blocking work, as the driver's calls are.
    fn wait<T>(&self, work: impl AsyncFnOnce(&mut ClusterClient) -> Result<T, CliError>) -> Result<T, Refused> {
        let mut api = connect(&self.common);
        Handle::current().block_on(work(&mut api)).map_err(|error| refused(&error))
    }
}

impl Cluster for Admin {
    fn regions(&self) -> Result<Vec<String>, Refused> {
        let status = self.wait(async |api: &mut ClusterClient| cluster::status(api).await)?;
        let mut regions: Vec<String> =
            status.members.into_iter().filter_map(|found| found.member).map(|member| member.region).collect();
        regions.sort();
        regions.dedup();
        Ok(regions)
    }

    fn sets(&self) -> Result<Vec<v1::SetSummary>, Refused> {
        self.wait(async |api: &mut ClusterClient| {
            let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
            Ok(api.call("list the sets", Effect::Reads, call).await?.sets)
        })
    }

    fn set(&self, set: &Name) -> Result<Option<v1::SetStatus>, Refused> {
        self.wait(async |api: &mut ClusterClient| match set_calls::status(api, set.as_str(), false).await {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.code == "not-found" => ending(api, set).await,
            Err(error) => Err(error),
        })
    }

    fn create_set(&self, set: &Name, store: &str, policy: Option<v1::Policy>) -> Result<(), Refused> {
        self.wait(async |api: &mut ClusterClient| {
            set_calls::create_set(api, set.as_str(), store, policy).await.map(drop)
        })
    }

    fn create_volume(&self, set: &Name, volume: &Name, bytes: u64) -> Result<(), Refused> {
        self.wait(async |api: &mut ClusterClient| {
            set_calls::create_volume(api, set.as_str(), volume.as_str(), ByteSize(bytes)).await.map(drop)
        })
    }

    fn grow(&self, set: &Name, volume: &v1::Volume, bytes: u64) -> Result<(), Refused> {
        let request = v1::ChangeVolumeRequest {
            set: set.to_string(),
            request_id: request_id(),
            volume: volume.id,
            force: false,
            change: Some(Change::Grow(v1::GrowVolume { size_bytes: bytes })),
        };
        self.wait(async |api: &mut ClusterClient| {
            let call = async |mut client: Client| client.change_volume(request.clone()).await;
            api.call(&format!("grow volume {set}/{}", volume.name), Effect::Changes, call).await.map(drop)
        })
    }

    fn delete_set(&self, request: v1::DeleteSetRequest) -> Result<(), Refused> {
        let request = v1::DeleteSetRequest { request_id: request_id(), ..request };
        self.wait(async |api: &mut ClusterClient| {
            let call = async |mut client: Client| client.delete_set(request.clone()).await;
            api.call(&format!("delete set {}", request.set), Effect::Changes, call).await.map(drop)
        })
    }

    fn snapshots(&self, set: &Name) -> Result<Option<Vec<v1::Snapshot>>, Refused> {
        let request = v1::ListSnapshotsRequest { set: set.to_string() };
        self.wait(async |api: &mut ClusterClient| {
            let call = async |mut client: Client| client.list_snapshots(request.clone()).await;
            match api.call(&format!("list the snapshots of {set}"), Effect::Reads, call).await {
                Ok(reply) => Ok(Some(reply.snapshots)),
                Err(error) if error.code == "not-found" => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn create_snapshot(&self, set: &Name, name: &Name) -> Result<v1::Snapshot, Refused> {
        let request =
            v1::CreateSnapshotRequest { set: set.to_string(), name: name.to_string(), request_id: request_id() };
        self.wait(async |api: &mut ClusterClient| {
            let call = async |mut client: Client| client.create_snapshot(request.clone()).await;
            // It waits for a checkpoint.
            let reply = api.patiently().call(&format!("create snapshot {set}@{name}"), Effect::Changes, call).await?;
            reply.snapshot.ok_or_else(|| incomplete("the snapshot"))
        })
    }

    fn delete_snapshot(&self, set: &Name, snapshot: &v1::Snapshot) -> Result<(), Refused> {
        let request = v1::DeleteSnapshotRequest {
            set: set.to_string(),
            name: snapshot.name.clone(),
            request_id: request_id(),
            id: snapshot.id.clone(),
        };
        self.wait(async |api: &mut ClusterClient| {
            let call = async |mut client: Client| client.delete_snapshot(request.clone()).await;
            api.call(&format!("delete snapshot {set}@{}", snapshot.name), Effect::Changes, call).await.map(drop)
        })
    }

    fn clone_set(&self, origin: &Name, snapshot: &v1::Snapshot, set: &Name) -> Result<(), Refused> {
        let name = Name::new(snapshot.name.clone()).map_err(|error| Refused::failed(error.to_string()))?;
        let of = SnapshotArg { set: origin.clone(), name };
        self.wait(async |api: &mut ClusterClient| clone::make(api, &of, &snapshot.id, set).await.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_api::{Refusal, RefusalCode};

    /// R12: a refusal of a repeated request says nothing of the first one.
    #[test]
    fn an_unknown_outcome_is_not_a_refusal() {
        let refusal = Refusal::new(RefusalCode::Exists, "it exists");
        let error = CliError::from_refusal(&refusal);
        let first = refused(&error).code;
        let repeated = refused(&error.after_an_unanswered_attempt()).code;
        assert_ne!(first, repeated);
        assert_eq!(repeated, Refused::of_cluster("unknown", "").code);
    }
}
