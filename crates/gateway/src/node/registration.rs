//! Registers starts and lives (CLUSTER-C3). Every start of this gateway is registered in group 0, and so is every
//! renewal of its life while it runs. The peer protocol gets the registered lives of all members from group 0 and
//! refuses any other. `control::cluster` decides what a registration changes. `raft::KnownLife` decides whether a disk
//! remembers the life that was registered last.

use super::{Adopted, Node, peer_book};
use crate::identity::{Identity, IdentityError};
use holdfast_control::cluster::{ClusterCommand, ClusterRefusal, ClusterState, FEATURE_LEVEL, Standing};
use holdfast_raft::{Group, KnownLife, Life, Lineage, RaftNode, Registered, Registrar, not_who_it_says};
use holdfast_set::cluster::{Cluster, ClusterError};
use holdfast_types::MemberId;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two attempts. Group 0 may have no leader for a while.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// How often a leaving member asks whether it has been removed. Each question is an entry of group 0 until it has been.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Time from the first use of a new life to its registration. Calls sent under the previous life have normally arrived
/// by then; the others are sent again.
const SETTLES: Duration = Duration::from_secs(5);

/// How long the leader of group 0 may take to apply its log. Callers wait for 5 s.
const SETTLED_LIMIT: Duration = Duration::from_secs(2);

/// A member that has had no leader of group 0 for this long asks whether it is still a member.
const LONELY: Duration = Duration::from_secs(10);

/// The lives that the peer protocol accepts.
pub fn known_lives(state: &ClusterState) -> BTreeMap<MemberId, KnownLife> {
    let boot = |id: &MemberId| state.boots.get(id).map(|b| (b.boot, b.nonce));
    state.members.iter().map(|(id, m)| (*id, KnownLife { disk: m.disk, boot: boot(id) })).collect()
}

/// Commits registrations while this gateway leads group 0.
pub fn registrar(cluster: Arc<Cluster>, group: Group) -> Registrar {
    let one = Arc::new(tokio::sync::Mutex::new(()));
    Box::new(move |member, lineage, level| {
        let (cluster, group, one) = (cluster.clone(), group.clone(), one.clone());
        Box::pin(async move {
            // The check must use the same state to which the registration is applied: a leader that was just elected
            // may have unapplied entries, and one of them may be a registration.
            let _one = one.lock().await;
            let Some(term) = cluster.settled(&group, SETTLED_LIMIT).await else {
                return Registered::NotNow("the leader has not applied all of its log yet".to_string());
            };
            let state = cluster.state();
            if level < state.level {
                let too_old = ClusterRefusal::TooOld { member, found: level, expected: state.level };
                return Registered::Refused(too_old.to_string());
            }
            if let Some(Err(why)) = known_lives(&state).get(&member).map(|known| known.judge(&lineage)) {
                return Registered::Refused(not_who_it_says(member, &why));
            }
            let Life { disk, boot, nonce } = lineage.life;
            let command = ClusterCommand::RegisterBoot { member, disk, boot, nonce, level };
            outcome(cluster.command_in(&group, Some(term), &command).await.map(drop))
        })
    })
}

fn outcome(result: Result<(), ClusterError>) -> Registered {
    match result {
        Ok(()) => Registered::Done,
        Err(ClusterError::Refused(
            why @ (ClusterRefusal::BootReplayed { .. }
            | ClusterRefusal::BootCopied { .. }
            | ClusterRefusal::DiskMismatch { .. }
            | ClusterRefusal::MemberRemoved { .. }
            | ClusterRefusal::TooOld { .. }),
        )) => Registered::Refused(why.to_string()),
        // A member that is still unknown may be added later.
        Err(why) => Registered::NotNow(why.to_string()),
    }
}

/// Passes addresses and lives from group 0 to the peer protocol as soon as they are applied.
pub async fn follow(node: Arc<Node>, adopted: Adopted) {
    let mut changes = node.cluster.changes();
    loop {
        let state = node.cluster.state();
        for member in state.members.values().filter(|m| m.id != adopted.member) {
            adopted.raft.set_address(member.id, member.peer_addr.clone());
        }
        adopted.raft.set_lives(known_lives(&state), MemberId(state.next_member), state.level);
        // The answer to a registration may have been lost.
        let heard = state.boots.get(&adopted.member).map(|boot| (boot.boot, boot.nonce));
        let lineage = adopted.raft.lineage();
        let own = (lineage.life.boot, lineage.life.nonce);
        if let Some((boot, nonce)) =
            heard.filter(|heard| !lineage.before.is_empty() && (*heard == own || lineage.before[1..].contains(heard)))
        {
            let life = Life { boot, nonce, ..lineage.life };
            let forgets = move |identity: &mut Identity, dir: &Path| identity.life_registered(dir, &life);
            change_life(&node, forgets).await;
        }
        tokio::select! {
            () = node.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Registers this start and its renewals, and retries until there is an answer. If a life is refused, the gateway
/// stops.
pub async fn register(node: Arc<Node>, adopted: Adopted) {
    if registered(&node, &adopted).await {
        tracing::info!(boot = node.identity().boot, "start registered");
        tokio::join!(leave_when_removed(&node, &adopted), renew(&node, &adopted));
    }
}

/// Returns true once the current life is registered; false if the gateway stops.
async fn registered(node: &Arc<Node>, adopted: &Adopted) -> bool {
    let life = adopted.raft.lineage().life;
    loop {
        let peers = peer_book::peers(node);
        let asked = tokio::select! {
            () = node.stop.cancelled() => return false,
            asked = adopted.raft.register(&peers, FEATURE_LEVEL) => asked,
        };
        match asked {
            Registered::Done => {
                let forgets = move |identity: &mut Identity, dir: &Path| identity.life_registered(dir, &life);
                change_life(node, forgets).await;
                return true;
            }
            Registered::Refused(why) => {
                tracing::error!(%why, "CLUSTER-C3: this gateway must not take part; stopping it");
                node.refuse(why);
                return false;
            }
            Registered::NotNow(why) => tracing::debug!(%why, "not registered yet"),
        }
        if !node.passes(TRY_AGAIN).await {
            return false;
        }
    }
}

async fn change_life(
    node: &Arc<Node>,
    change: impl FnOnce(&mut Identity, &Path) -> Result<Lineage, IdentityError> + Send + 'static,
) {
    if let Err(error) = node.change_identity(change).await {
        tracing::warn!(%error, "cannot write the start numbers of this disk");
    }
}

/// A copy of this disk is older than its last renewal, or does not know the next one. So the others refuse it.
async fn renew(node: &Arc<Node>, adopted: &Adopted) {
    let pace = node.renewal_pace();
    while node.passes(pace).await {
        change_life(node, Identity::renew_life).await;
        if !node.passes(SETTLES.min(pace)).await || !registered(node, adopted).await {
            return;
        }
    }
}

/// A leaving member is out of group 0 before the entry that removes it, and a member that was cut off receives nothing.
/// So it has to ask.
async fn leave_when_removed(node: &Arc<Node>, adopted: &Adopted) {
    while node.passes(ASK_AGAIN).await {
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

/// Whether group 0 has removed this start, as far as any peer knows. If so, the gateway stops.
pub(crate) async fn refused(node: &Node, raft: &RaftNode) -> bool {
    match raft.register(&peer_book::peers(node), FEATURE_LEVEL).await {
        Registered::Refused(why) => {
            tracing::warn!(%why, "this gateway stops");
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
        assert!(matches!(refused(ClusterRefusal::BootCopied { member, boot: 4 }), Registered::Refused(_)));
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
