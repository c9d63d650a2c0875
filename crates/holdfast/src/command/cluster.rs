//! Calls about the cluster that several commands share.

use super::connect::incomplete;
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use holdfast_api::{member_of, v1};
use holdfast_types::MemberId;

/// Identity of the gateway.
pub async fn node(api: &mut ClusterClient) -> Result<v1::Node, CliError> {
    api.call("get the gateway's identity", Effect::Reads, async |mut client: Client| {
        client.get_node(v1::GetNodeRequest {}).await
    })
    .await
}

/// Status of the cluster, from any gateway.
pub async fn status(api: &mut ClusterClient) -> Result<v1::ClusterStatusReply, CliError> {
    let call = async |mut client: Client| client.cluster_status(v1::ClusterStatusRequest {}).await;
    api.call("get the cluster status", Effect::Reads, call).await
}

/// Adopts the gateway of `only` as a member.
pub async fn adopt(only: &mut ClusterClient, cluster_id: &str, member: u64, disk: &str) -> Result<v1::Node, CliError> {
    let request = v1::AdoptRequest { cluster_id: cluster_id.into(), member, disk: disk.into() };
    only.call("adopt the gateway", Effect::Changes, async |mut client: Client| client.adopt(request.clone()).await)
        .await
}

/// Registers `node` with the cluster, then adopts it. Both are idempotent.
pub async fn admit(
    api: &mut ClusterClient,
    only: &mut ClusterClient,
    node: &v1::Node,
    replaces: Option<MemberId>,
) -> Result<MemberId, CliError> {
    let replaces = replaces.map_or(0, |member| member.0);
    let request = v1::JoinMemberRequest { gateway: Some(member_of(node)), replaces, request_id: request_id() };
    let call = async |mut client: Client| client.join_member(request.clone()).await;
    let reply = api.call("register the gateway", Effect::Changes, call).await?;
    if reply.member == 0 {
        return Err(incomplete("the member's id"));
    }
    adopt(only, &reply.cluster_id, reply.member, &node.disk).await?;
    Ok(MemberId(reply.member))
}
