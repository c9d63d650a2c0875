//! Starts and lives (C3): every start of this gateway is registered in group 0, and what group 0 knows of the members' lives goes to
//! the peer protocol, which refuses any other. What a registration changes is decided by `control::cluster`.

use crate::cluster::{Cluster, ClusterError};
use crate::heal;
use crate::node::{Adopted, Node};
use holdfast_control::cluster::{ClusterCommand, ClusterRefusal, ClusterState, FEATURE_LEVEL, Standing};
use holdfast_raft::{Group, KnownLife, Life, RaftNode, Registered, Registrar};
use holdfast_types::MemberId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two tries. Group 0 may have no leader for a while.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Between two questions of a member that leaves whether it is out. Each is an entry of group 0 until it is.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Without a leader of group 0 for so long, a member asks whether it is one still.
const LONELY: Duration = Duration::from_secs(10);

/// What the peer protocol is to know.
pub fn known_lives(state: &ClusterState) -> BTreeMap<MemberId, KnownLife> {
    let boot = |id: &MemberId| state.boots.get(id).map(|b| (b.boot, b.nonce));
    state.members.iter().map(|(id, m)| (*id, KnownLife { disk: m.disk, boot: boot(id) })).collect()
}

/// Commits registrations where this gateway leads group 0.
pub fn registrar(cluster: Arc<Cluster>, group: Group) -> Registrar {
    Box::new(move |member, life, level| {
        let (cluster, group) = (cluster.clone(), group.clone());
        Box::pin(async move {
            let Life { disk, boot, nonce } = life;
            outcome(
                cluster
                    .command(&group, &ClusterCommand::RegisterBoot { member, disk, boot, nonce, level })
                    .await
                    .map(drop),
            )
        })
    })
}

fn outcome(result: Result<(), ClusterError>) -> Registered {
    match result {
        Ok(()) => Registered::Done,
        Err(ClusterError::Refused(
            why @ (ClusterRefusal::BootReplayed { .. }
            | ClusterRefusal::BootCloned { .. }
            | ClusterRefusal::DiskMismatch { .. }
            | ClusterRefusal::MemberRemoved { .. }
            | ClusterRefusal::TooOld { .. }),
        )) => Registered::Refused(why.to_string()),
        // A member that is not there yet may come.
        Err(why) => Registered::NotNow(why.to_string()),
    }
}

/// Registers this start; tried again until it is answered. A start that is refused ends the gateway.
pub async fn register(node: Arc<Node>, adopted: Adopted) {
    loop {
        let peers = heal::peers(&node);
        let asked = tokio::select! {
            () = node.stop.cancelled() => return,
            asked = adopted.raft.register(&peers, FEATURE_LEVEL) => asked,
        };
        match asked {
            Registered::Done => {
                tracing::info!(boot = node.identity().boot, "start registered");
                leave_when_removed(&node, &adopted).await;
                return;
            }
            Registered::Refused(why) => {
                tracing::error!(%why, "C3: this gateway must not take part; it ends");
                node.refuse(why);
                return;
            }
            Registered::NotNow(why) => tracing::debug!(%why, "start not registered yet"),
        }
        tokio::select! {
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    }
}

/// A member that leaves is out of group 0 before the entry that removes it, and one that was cut off hears nothing of it: it has to ask.
async fn leave_when_removed(node: &Arc<Node>, adopted: &Adopted) {
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
        let state = node.cluster.state();
        let leaving = state.members.get(&adopted.member).is_none_or(|m| m.standing == Standing::Leaving);
        if !leaving && adopted.group.unheard() < LONELY {
            continue;
        }
        if refused(node, &adopted.raft).await {
            return;
        }
    }
}

/// Whether group 0 does not have this start any more, as far as anybody says; the gateway ends then.
pub(crate) async fn refused(node: &Node, raft: &RaftNode) -> bool {
    match raft.register(&heal::peers(node), FEATURE_LEVEL).await {
        Registered::Refused(why) => {
            tracing::warn!(%why, "this gateway ends");
            node.refuse(why);
            true
        }
        Registered::Done | Registered::NotNow(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_raft::ProposeError;

    #[test]
    fn only_what_group_0_decided_is_final() {
        let member = MemberId(3);
        let refused = |why: ClusterRefusal| outcome(Err(ClusterError::Refused(why)));
        assert!(matches!(refused(ClusterRefusal::BootReplayed { member, found: 3, seen: 4 }), Registered::Refused(_)));
        assert!(matches!(refused(ClusterRefusal::BootCloned { member, boot: 4 }), Registered::Refused(_)));
        assert!(matches!(
            refused(ClusterRefusal::DiskMismatch { member, found: 1, expected: 2 }),
            Registered::Refused(_)
        ));
        assert!(matches!(refused(ClusterRefusal::TooOld { member, found: 1, expected: 2 }), Registered::Refused(_)));
        assert!(matches!(refused(ClusterRefusal::MemberRemoved { id: member }), Registered::Refused(_)));
        assert!(matches!(refused(ClusterRefusal::NoSuchMember { id: member }), Registered::NotNow(_)));
        let lost = ClusterError::Propose(ProposeError::Unknown { reason: "late".into() });
        assert!(matches!(outcome(Err(lost)), Registered::NotNow(_)), "R12");
        assert_eq!(outcome(Ok(())), Registered::Done);
    }
}
