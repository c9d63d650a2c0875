//! Members: `holdfast cluster join` and `remove`, and the calls that bootstrap shares with them.

use super::{confirm, door, incomplete, tell};
use crate::cli::Common;
use crate::door::{Client, Door, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::{member_of, v1};
use holdfast_types::MemberId;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a wait looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Entries behind the leader with which a member counts as caught up: fewer than one apply round under load.
const CAUGHT_UP_ENTRIES: u64 = 64;

/// Who the gateway behind this door is.
pub async fn node(door: &mut Door) -> Result<v1::Node, CliError> {
    door.call("ask who it is", Effect::Reads, async |mut client: Client| client.get_node(v1::GetNodeRequest {}).await)
        .await
}

/// What any gateway knows of the cluster.
pub async fn status(door: &mut Door) -> Result<v1::ClusterStatusReply, CliError> {
    let call = async |mut client: Client| client.cluster_status(v1::ClusterStatusRequest {}).await;
    door.call("ask for the cluster's status", Effect::Reads, call).await
}

/// Gives the gateway behind `only` its place.
pub async fn adopt(only: &mut Door, cluster_id: &str, member: u64, disk: &str) -> Result<v1::Node, CliError> {
    let request = v1::AdoptRequest { cluster_id: cluster_id.into(), member, disk: disk.into() };
    only.call("adopt the gateway", Effect::Changes, async |mut client: Client| client.adopt(request.clone()).await)
        .await
}

/// Registers `node` with the cluster, then adopts it. Both have one effect however often they are sent.
pub async fn admit(
    door: &mut Door,
    only: &mut Door,
    node: &v1::Node,
    replaces: Option<MemberId>,
) -> Result<MemberId, CliError> {
    let replaces = replaces.map_or(0, |member| member.0);
    let request = v1::JoinMemberRequest { gateway: Some(member_of(node)), replaces, request_id: request_id() };
    let call = async |mut client: Client| client.join_member(request.clone()).await;
    let reply = door.call("register the gateway", Effect::Changes, call).await?;
    if reply.member == 0 {
        return Err(incomplete("the member's id"));
    }
    adopt(only, &reply.cluster_id, reply.member, &node.disk).await?;
    Ok(MemberId(reply.member))
}

/// `holdfast cluster join`.
pub async fn join(common: &Common, gateway: &str, replaces: Option<MemberId>, wait: bool) -> Result<(), CliError> {
    let mut door = door(common);
    let mut only = door.only(gateway);
    let node = node(&mut only).await?;
    let member = admit(&mut door, &mut only, &node, replaces).await?;
    tell(common, &format!("gateway {} is {member}; it is catching up", node.name));
    let caught_up = wait && wait_for(&mut door, member, replaces).await?;
    let json = serde_json::json!({ "gateway": node.name, "member": member.0, "caught_up": caught_up });
    output::show(common.output, &json, || match caught_up {
        true => format!("{member} ({}) takes part in every group.", node.name),
        false => format!("{member} ({}) is registered. `holdfast cluster status` shows how far it is.", node.name),
    })?;
    if wait && !caught_up {
        let error = CliError::failed(format!("{member} is in, but has not caught up within {:?}", common.timeout()));
        return Err(error.next("it goes on by itself: watch `holdfast cluster status`"));
    }
    Ok(())
}

/// Waits until `member` votes in every group and is hardly behind, and the one that it replaces is gone. `false` when the time is up.
async fn wait_for(door: &mut Door, member: MemberId, replaces: Option<MemberId>) -> Result<bool, CliError> {
    while Instant::now() < door.deadline() {
        let status = status(door).await?;
        if is_in(&status, member) && !replaces.is_some_and(|gone| status.members.iter().any(|m| id_of(m) == gone.0)) {
            return Ok(true);
        }
        sleep(LOOK_INTERVAL).await;
    }
    Ok(false)
}

fn id_of(member: &v1::MemberStatus) -> u64 {
    member.member.as_ref().map_or(0, |member| member.id)
}

/// Every group's leader counts `member` among the voters, it knows so itself, and it is hardly behind anywhere.
pub fn is_in(status: &v1::ClusterStatusReply, member: MemberId) -> bool {
    let Some(own) = status.members.iter().find(|m| id_of(m) == member.0) else { return false };
    let votes = |group: &v1::GroupSummary| {
        let leader = status.members.iter().find(|m| group.leader != 0 && id_of(m) == group.leader);
        let seen =
            leader.and_then(|m| m.node.as_ref()).and_then(|node| node.groups.iter().find(|g| g.group == group.group));
        seen.is_some_and(|seen| seen.voters.contains(&member.0))
    };
    let close = |group: &v1::GroupSummary| {
        own.lags.iter().any(|lag| lag.group == group.group && lag.entries <= CAUGHT_UP_ENTRIES)
    };
    let knows = |group: &v1::GroupSummary| {
        let seen = own.node.as_ref().and_then(|node| node.groups.iter().find(|seen| seen.group == group.group));
        seen.is_some_and(|seen| matches!(seen.role(), v1::Role::Leader | v1::Role::Follower))
    };
    !status.groups.is_empty() && status.groups.iter().all(|group| votes(group) && knows(group) && close(group))
}

/// `holdfast cluster remove`.
pub async fn remove(common: &Common, member: MemberId, yes: bool) -> Result<(), CliError> {
    let mut door = door(common);
    let seen = status(&mut door).await?;
    let found = seen.members.iter().find(|m| id_of(m) == member.0).and_then(|m| m.member.clone());
    let Some(found) = found else {
        let error = CliError::refused(format!("there is no member {member}"));
        return Err(error.next("`holdfast cluster status` shows the members"));
    };
    if !yes {
        confirm(&format!(
            "Take {member} ({}) out of the cluster for ever, leaving {} members?",
            found.name,
            seen.members.len() - 1
        ))?;
    }
    let request = v1::RemoveMemberRequest { member: member.0, request_id: request_id() };
    let call = async |mut client: Client| client.remove_member(request.clone()).await;
    door.call("remove the member", Effect::Changes, call).await?;
    let json = serde_json::json!({ "member": member.0, "gateway": found.name });
    output::show(common.output, &json, || {
        format!(
            "{member} ({}) leaves the cluster. Stop its gateway once `holdfast cluster status` no longer shows it.",
            found.name
        )
    })
}
