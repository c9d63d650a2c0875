//! Starts and lives (C3): every start of this gateway is registered in group 0, and so is every renewal of its life while it runs; what group 0 knows of the
//! members' lives goes to the peer protocol, which refuses any other. What a registration changes is decided by `control::cluster`; whether the disk that asks
//! remembers the life that was registered last, by `raft::KnownLife`.

use crate::heal;
use crate::identity::{Identity, IdentityError};
use crate::node::{Adopted, Node};
use holdfast_control::cluster::{ClusterCommand, ClusterRefusal, ClusterState, FEATURE_LEVEL, Standing};
use holdfast_raft::{Group, KnownLife, Life, Lineage, RaftNode, Registered, Registrar, not_who_it_says};
use holdfast_set::cluster::{Cluster, ClusterError};
use holdfast_types::MemberId;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Between two tries. Group 0 may have no leader for a while.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Between two questions of a member that leaves whether it is out. Each is an entry of group 0 until it is.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Between a life's first word to the others and its registration: a call that was sent under the life before has arrived by then, as a rule, and is sent again where it has not.
const SETTLES: Duration = Duration::from_secs(5);

/// How long the leader of group 0 may take to apply what it has. Whoever asks waits for 5 s.
const SETTLED_LIMIT: Duration = Duration::from_secs(2);

/// Without a leader of group 0 for so long, a member asks whether it is one still.
const LONELY: Duration = Duration::from_secs(10);

/// What the peer protocol is to know.
pub fn known_lives(state: &ClusterState) -> BTreeMap<MemberId, KnownLife> {
    let boot = |id: &MemberId| state.boots.get(id).map(|b| (b.boot, b.nonce));
    state.members.iter().map(|(id, m)| (*id, KnownLife { disk: m.disk, boot: boot(id) })).collect()
}

/// Commits registrations where this gateway leads group 0.
pub fn registrar(cluster: Arc<Cluster>, group: Group) -> Registrar {
    let one = Arc::new(tokio::sync::Mutex::new(()));
    Box::new(move |member, lineage, level| {
        let (cluster, group, one) = (cluster.clone(), group.clone(), one.clone());
        Box::pin(async move {
            // What is judged must be what it is applied to: a leader that was just elected has entries that it has not applied, and a registration may be among them.
            let _one = one.lock().await;
            let Some(term) = cluster.settled(&group, SETTLED_LIMIT).await else {
                return Registered::NotNow("the leader has not applied all that it has".to_string());
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
            | ClusterRefusal::BootCloned { .. }
            | ClusterRefusal::DiskMismatch { .. }
            | ClusterRefusal::MemberRemoved { .. }
            | ClusterRefusal::TooOld { .. }),
        )) => Registered::Refused(why.to_string()),
        // A member that is not there yet may come.
        Err(why) => Registered::NotNow(why.to_string()),
    }
}

/// Whatever group 0 says of addresses and lives goes to the peer protocol as soon as it is applied.
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

/// Registers this start, and its renewals; tried again until it is answered. A life that is refused ends the gateway.
pub async fn register(node: Arc<Node>, adopted: Adopted) {
    if registered(&node, &adopted).await {
        tracing::info!(boot = node.identity().boot, "start registered");
        tokio::join!(leave_when_removed(&node, &adopted), renew(&node, &adopted));
    }
}

/// Whether the present life is registered; else the gateway ends.
async fn registered(node: &Arc<Node>, adopted: &Adopted) -> bool {
    let life = adopted.raft.lineage().life;
    loop {
        let peers = heal::peers(node);
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
                tracing::error!(%why, "C3: this gateway must not take part; it ends");
                node.refuse(why);
                return false;
            }
            Registered::NotNow(why) => tracing::debug!(%why, "not registered yet"),
        }
        if !passes(node, TRY_AGAIN).await {
            return false;
        }
    }
}

/// Whether so much time passes before the gateway ends.
async fn passes(node: &Node, time: Duration) -> bool {
    tokio::select! {
        () = node.stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}

async fn change_life(
    node: &Arc<Node>,
    change: impl FnOnce(&mut Identity, &Path) -> Result<Lineage, IdentityError> + Send + 'static,
) {
    if let Err(error) = node.change_identity(change).await {
        tracing::warn!(%error, "the lives of this disk stay as they are");
    }
}

/// A copy of this disk is older than its last renewal, or knows nothing of the next: the others refuse it.
async fn renew(node: &Arc<Node>, adopted: &Adopted) {
    let pace = node.renewal_pace();
    while passes(node, pace).await {
        change_life(node, Identity::renew_life).await;
        if !passes(node, SETTLES.min(pace)).await || !registered(node, adopted).await {
            return;
        }
    }
}

/// A member that leaves is out of group 0 before the entry that removes it, and one that was cut off hears nothing of it: it has to ask.
async fn leave_when_removed(node: &Arc<Node>, adopted: &Adopted) {
    while passes(node, ASK_AGAIN).await {
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
