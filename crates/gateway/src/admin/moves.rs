//! Moving a set to another gateway: planned (switchover) and forced (failover).

use super::AdminDoor;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{Member, MemberRole};
use holdfast_control::set::Lease;
use holdfast_set::random::random_u128;
use holdfast_set::server::SetServer;
use holdfast_types::{MemberId, Token};
use std::sync::Arc;

/// Entries that a candidate may be behind before leadership is handed to it: it catches up in less than a heartbeat.
const LAG_MAX: u64 = 1024;

/// How long clients may take to get what they asked for before a planned move goes on without that, in election timeouts.
const DRAIN_ELECTIONS: u32 = 1;

/// How long the hand-over may take, in election timeouts.
const TRANSFER_ELECTIONS: u32 = 12;

impl AdminDoor {
    fn gateway_named(&self, name: &str) -> Result<Member, Refusal> {
        let name = holdfast_api::name("gateway", name)?;
        self.node.cluster.member_named(&name).ok_or_else(|| {
            let known: Vec<String> = self.node.cluster.state().members.values().map(|m| m.name.to_string()).collect();
            Refusal::new(RefusalCode::NotFound, format!("no gateway is named {name}; there are {}", known.join(", ")))
        })
    }

    /// A transfer has no way back, so the candidate must be alive and caught up before it begins.
    fn check_candidate(&self, set: &SetServer, candidate: &Member) -> Result<(), Refusal> {
        let status = set.group.status();
        let refuse = |why: String| Err(Refusal::new(RefusalCode::Precondition, why));
        if !candidate.serves() {
            let what = match candidate.role {
                MemberRole::Witness => "a witness".to_string(),
                MemberRole::Gateway => super::standing_text(candidate.standing).to_string(),
            };
            return refuse(format!(
                "gateway {} is {what} and serves nobody: choose another one (`holdfast gateway list`), or undrain it where it is drained",
                candidate.name
            ));
        }
        let Some(member) = status.members.iter().find(|m| m.member == candidate.id && m.voter) else {
            return refuse(format!(
                "gateway {} is not a voter of set {} yet: wait until it has caught up (`holdfast gateway list`), or choose another one",
                candidate.name, set.name
            ));
        };
        let patience = self.node.timing.election_max();
        if member.silent.is_none_or(|silent| silent > patience) {
            let heard = member.silent.map_or("not heard of yet".to_string(), |silent| format!("silent for {silent:?}"));
            return refuse(format!(
                "gateway {} does not answer ({heard}, expected a word within {patience:?}): start it or mend the network to it, or choose another one",
                candidate.name
            ));
        }
        let behind = status.last.map_or(0, |l| l.0).saturating_sub(member.matched.map_or(0, |m| m.0));
        if behind > LAG_MAX {
            return refuse(format!(
                "gateway {} is {behind} entries behind, expected at most {LAG_MAX}: wait until it has caught up (`holdfast gateway list`), or choose another one",
                candidate.name
            ));
        }
        Ok(())
    }

    /// Stops serving, hands leadership over, and waits until the candidate leads.
    async fn hand_over(&self, set: &Arc<SetServer>, to: &Member) -> Result<(), Refusal> {
        let failed = |e: &dyn std::fmt::Display| Refusal::new(RefusalCode::Unknown, e.to_string());
        set.stop_serving_for_transfer();
        set.group.transfer_leader(to.id).await.map_err(|e| failed(&e))?;
        let mut leadership = set.group.leadership();
        let limit = self.node.timing.election_max() * TRANSFER_ELECTIONS;
        let target = to.id;
        let wait = leadership.wait_for(|l| l.leader == Some(target));
        match tokio::time::timeout(limit, wait).await {
            Ok(Ok(_)) => Ok(()),
            _ => {
                let leader = set.group.leadership().borrow().leader;
                let message = format!(
                    "gateway {} has not taken over within {limit:?}; the leader is {}",
                    to.name,
                    leader.map_or("unknown".to_string(), |l| l.to_string())
                );
                Err(Refusal::new(RefusalCode::Unknown, message))
            }
        }
    }

    pub(super) async fn switchover(&self, request: v1::SwitchoverRequest) -> Result<v1::MoveReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let to = self.gateway_named(&request.to_gateway)?;
        if to.id == set.me() {
            return Ok(self.moved(set.me(), true));
        }
        self.check_candidate(&set, &to)?;
        self.confirm(&set).await?;
        let leader = to.id;
        self.to_its_end(move |door| async move {
            let left = set.drain(door.node.timing.election_max() * DRAIN_ELECTIONS).await;
            tracing::info!(set = %set.name, to = %to.name, left, "switchover: drained");
            door.hand_over(&set, &to).await
        })
        .await?;
        Ok(self.moved(leader, false))
    }

    /// Carries out what has no way back, also when the caller does not wait any more: a set that was drained and not handed over would let nobody in for as long as
    /// this gateway leads it.
    async fn to_its_end<F>(&self, part: impl FnOnce(Self) -> F) -> Result<(), Refusal>
    where
        F: Future<Output = Result<(), Refusal>> + Send + 'static,
    {
        let lost =
            |e| Refusal::new(RefusalCode::Unknown, format!("the move was abandoned while this gateway stops: {e}"));
        tokio::spawn(part(self.clone())).await.unwrap_or_else(|e| Err(lost(e)))
    }

    pub(super) async fn failover(&self, request: v1::FailoverRequest) -> Result<v1::MoveReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let candidate = if request.candidate.is_empty() { None } else { Some(self.gateway_named(&request.candidate)?) };
        let elsewhere = candidate.filter(|c| c.id != set.me());
        if let Some(to) = &elsewhere {
            self.check_candidate(&set, to)?;
        }
        tracing::warn!(set = %set.name, reason = %request.reason, candidate = %request.candidate, "forced failover");
        let ended = set.lease().map(|l| self.lease_message(&set, &l));
        let mut reply = self.moved(elsewhere.as_ref().map_or(set.me(), |c| c.id), false);
        let granted = if request.owner.is_empty() {
            // R12: a copy of this call that comes after its effect must not end what was granted since.
            let other = |lease: &Lease| request.seen_epoch.is_some_and(|seen| seen != lease.epoch.0);
            if let Some(lease) = set.lease().filter(other) {
                let message = format!(
                    "set {} is held by {} with epoch {}, which is not the lease that was to end (epoch {}): it was taken meanwhile; look with \
                     `holdfast lease show`, then decide anew",
                    set.name,
                    lease.owner,
                    lease.epoch.0,
                    request.seen_epoch.unwrap_or_default()
                );
                return Err(Refusal::new(RefusalCode::Precondition, message));
            }
            if let Some(lease) = set.lease() {
                set.release(lease.epoch, None).await.map_err(|e| self.of_set(&set, &e))?;
            }
            None
        } else {
            let owner = holdfast_api::owner(&request.owner)?;
            let ttl = self.ttl(request.ttl_ms);
            let token = Token(random_u128());
            let lease = set.acquire(owner, token, ttl, id, true, false).await.map_err(|e| self.of_set(&set, &e))?;
            Some(self.grant_message(&set, &lease))
        };
        if let Some(to) = elsewhere {
            self.to_its_end(move |door| async move { door.hand_over(&set, &to).await }).await?;
        }
        reply.ended = ended;
        reply.granted = granted;
        Ok(reply)
    }

    fn moved(&self, leader: MemberId, already: bool) -> v1::MoveReply {
        v1::MoveReply { leader: self.member_message(leader), ended: None, granted: None, already }
    }
}
