//! Calls about sets that commands share.

use super::connect::incomplete;
use crate::cli::VolumePath;
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use holdfast_api::v1;
use holdfast_set::recovery::Stores;
use holdfast_types::ByteSize;

/// The stores of one set from the command line: one per `--store`, or all in one text.
pub fn several(named: Vec<String>, write_quorum: Option<usize>) -> Result<Stores, CliError> {
    let usage = |error: &(dyn std::error::Error + 'static)| CliError::usage("--store").because(error);
    let form = match (named.as_slice(), write_quorum) {
        ([_], None) => "use s3://BUCKET/PREFIX or file:///DIRECTORY",
        _ => "use s3://BUCKET/PREFIX or file:///DIRECTORY, each once, and a --write-quorum of more than half",
    };
    let stores = match named.as_slice() {
        [one] if one.starts_with("w=") => Stores::parse(one).map_err(|error| usage(&error))?,
        _ => Stores::new(named, write_quorum).map_err(|error| usage(&error).next(form))?,
    };
    stores.check_new().map_err(|error| {
        usage(&error).next("use one store, three stores with --write-quorum 2, or five stores with --write-quorum 3")
    })?;
    match write_quorum {
        Some(w) if w != stores.write_quorum() => {
            Err(CliError::usage(format!("--write-quorum: found {w}, expected {} as in --store", stores.write_quorum())))
        }
        _ => Ok(stores),
    }
}

/// Creates the set, or finds that it exists with the same store.
pub async fn create_set(
    api: &mut ClusterClient,
    name: &str,
    store: &str,
    policy: Option<v1::Policy>,
) -> Result<(v1::SetSummary, bool), CliError> {
    let request = v1::CreateSetRequest { name: name.into(), store: store.into(), request_id: request_id(), policy };
    let call = async |mut client: Client| client.create_set(request.clone()).await;
    // The gateway checks the stores before it answers.
    let reply = api.patiently().call(&format!("create set {name}"), Effect::Changes, call).await?;
    Ok((reply.set.ok_or_else(|| incomplete("the set"))?, reply.created))
}

/// Creates the volume, or finds that it exists with the same size.
pub async fn create_volume(api: &mut ClusterClient, set: &str, name: &str, size: ByteSize) -> Result<bool, CliError> {
    let request =
        v1::CreateVolumeRequest { set: set.into(), name: name.into(), size_bytes: size.0, request_id: request_id() };
    let call = async |mut client: Client| client.create_volume(request.clone()).await;
    Ok(api.call(&format!("create volume {set}/{name}"), Effect::Changes, call).await?.created)
}

/// Status of a set from its leader, or (with `any_view`) from any gateway.
pub async fn status(api: &mut ClusterClient, set: &str, any_view: bool) -> Result<v1::SetStatus, CliError> {
    let request = v1::GetSetRequest { set: set.into(), any_view };
    let call = async |mut client: Client| client.get_set(request.clone()).await;
    api.call(&format!("show set {set}"), Effect::Reads, call).await
}

/// The space of a set.
pub async fn space(api: &mut ClusterClient, set: &str) -> Result<v1::GetSpaceReply, CliError> {
    let request = v1::GetSpaceRequest { set: set.into() };
    let call = async |mut client: Client| client.get_space(request.clone()).await;
    api.call(&format!("get the space of set {set}"), Effect::Reads, call).await
}

/// The error for a volume that does not exist.
pub fn no_volume(volume: &VolumePath) -> CliError {
    CliError::refused(format!("there is no volume {volume}"))
        .next(format!("`holdfast volume list {}` shows all", volume.set))
}
