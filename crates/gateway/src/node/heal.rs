//! Healing of damaged groups (R9, docs/adr/0011-healing.md). For a quarantined group, this member asks its peers until
//! the group's leader has removed it from the group. `raft` defines quarantine.

use super::{Node, NodeError, peer_book, registration};
use holdfast_raft::RaftNode;
use holdfast_types::GroupId;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two rounds of requests, to keep the load on the peers low.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How often to ask whether this gateway is still a member, while group 0 itself is quarantined. Each question is an
/// entry of group 0.
const MEMBER_STILL: Duration = Duration::from_secs(5);

/// Minimum time before the same refusal is logged again.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// The group, if this is damage that peers can heal.
pub fn healable(error: &NodeError) -> Option<GroupId> {
    match error {
        NodeError::Raft(holdfast_raft::NodeError::Damaged { group, .. }) => Some(*group),
        _ => None,
    }
}

/// Asks the other gateways until this member is removed from the quarantined `group` and may start it as a newcomer.
/// Returns false if the gateway stops first.
///
/// If the group is group 0, this gateway cannot learn in any other way that it was removed, and peers never readmit a
/// removed member. So it asks about that too, and stops (found by simulation, seed 200).
pub async fn readmit(node: &Arc<Node>, raft: &RaftNode, group: GroupId) -> bool {
    let mut said: Option<(String, std::time::Instant)> = None;
    let mut asked_whether: Option<tokio::time::Instant> = None;
    loop {
        let peers = peer_book::peers(node);
        let asked = tokio::select! {
            () = node.stop.cancelled() => return false,
            asked = raft.readmit(group, &peers) => asked,
        };
        match asked {
            Ok(since) => {
                tracing::info!(%group, %since, "R9: removed from the group at that entry; its log here is dropped and copied again from the leader");
                return true;
            }
            Err(error) => {
                let text = error.to_string();
                if said.as_ref().is_none_or(|(last, at)| *last != text || at.elapsed() > SAY_AGAIN) {
                    tracing::warn!(%group, %error, "not readmitted yet; trying again");
                    said = Some((text, std::time::Instant::now()));
                }
                if group == GroupId::CLUSTER && asked_whether.is_none_or(|at| at.elapsed() > MEMBER_STILL) {
                    asked_whether = Some(tokio::time::Instant::now());
                    let refused = tokio::select! {
                        () = node.stop.cancelled() => return false,
                        refused = registration::refused(node, raft) => refused,
                    };
                    if refused {
                        return false;
                    }
                }
            }
        }
        if !node.passes(ASK_AGAIN).await {
            return false;
        }
    }
}
