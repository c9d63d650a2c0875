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

/// Whether `new` has a cluster key in common with one of `others`. With another key it would be a member that runs no
/// set, and whose own files open by that key alone. A build that says nothing of its keys is left out.
pub fn fit_key<'a>(new: &v1::Node, others: impl Iterator<Item = &'a v1::Node>) -> Result<(), CliError> {
    let Some(ours) = &new.keys else { return Ok(()) };
    let has = |key: &String| !key.is_empty() && (*key == ours.current || *key == ours.previous);
    let mut first = None;
    for other in others {
        let Some(theirs) = &other.keys else { continue };
        if has(&theirs.current) || has(&theirs.previous) {
            return Ok(());
        }
        first = first.or(Some((&other.name, &theirs.current)));
    }
    let Some((name, expected)) = first else { return Ok(()) };
    let found = &ours.current;
    let error = CliError::refused(format!(
        "gateway {}: found cluster key {found}, expected {expected}, which gateway {name} has",
        new.name
    ));
    Err(error.next("put the cluster's key into its [key] and restart it; `holdfast key list` shows the keys"))
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
    let registered = || format!("the gateway is registered as {}", MemberId(reply.member));
    let adopted = adopt(only, &reply.cluster_id, reply.member, &node.disk).await;
    adopted.map_err(|error| error.after_a_change(&registered()))?;
    Ok(MemberId(reply.member))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str, current: &str, previous: &str) -> v1::Node {
        let keys = v1::NodeKeys { current: current.into(), previous: previous.into(), ..Default::default() };
        v1::Node { name: name.into(), keys: Some(keys), ..Default::default() }
    }

    #[test]
    fn a_gateway_with_another_cluster_key_is_no_member() {
        let cluster = [gateway("g1", "aa", ""), gateway("g2", "aa", "")];
        let told = fit_key(&gateway("g3", "bb", ""), cluster.iter()).unwrap_err().message;
        assert!(told.contains("gateway g3: found cluster key bb, expected aa, which gateway g1 has"), "{told}");
        assert!(fit_key(&gateway("g3", "aa", ""), cluster.iter()).is_ok());
        // In the middle of a change either key will do.
        assert!(fit_key(&gateway("g3", "bb", "aa"), cluster.iter()).is_ok());
        assert!(fit_key(&gateway("g3", "aa", ""), [gateway("g1", "bb", "aa")].iter()).is_ok());
        // Nobody to compare with.
        assert!(fit_key(&v1::Node::default(), cluster.iter()).is_ok());
        assert!(fit_key(&gateway("g3", "bb", ""), [v1::Node::default()].iter()).is_ok());
        assert!(fit_key(&gateway("g1", "bb", ""), std::iter::empty()).is_ok());
    }
}
