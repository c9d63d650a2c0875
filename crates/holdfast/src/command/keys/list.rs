//! The list of keys, from which both commands that rotate a key read their progress.

use crate::client::{Client, ClusterClient, Effect};
use crate::exit::CliError;
use holdfast_api::v1;

/// Asks for the keys of all gateways and sets.
pub(super) async fn list(api: &mut ClusterClient) -> Result<v1::ListKeysReply, CliError> {
    let call = async |mut client: Client| client.list_keys(v1::ListKeysRequest {}).await;
    api.call("list the keys", Effect::Reads, call).await
}
