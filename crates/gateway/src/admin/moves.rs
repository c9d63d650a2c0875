//! Moves a set to another gateway: planned (switchover) or forced (failover).

use super::AdminDoor;
use crate::node::lacks;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{Member, MemberRole};
use holdfast_control::members::{CLOSE_BYTES, CLOSE_ENTRIES, is_close};
use holdfast_set::random::random_u128;
use holdfast_set::server::SetServer;
use holdfast_types::{MemberId, Token};
use std::sync::Arc;

/// How long a planned move waits for clients to get their answers, in election timeouts. After that it continues
/// without them.
const DRAIN_ELECTIONS: u32 = 1;

/// Maximum duration of the hand-over, in election timeouts.
const TRANSFER_ELECTIONS: u32 = 12;

/// How far behind a candidate is, for people; `None` if it is near enough: it would take over in a few heartbeats.
fn behind_text((entries, bytes): (u64, u64)) -> Option<String> {
    if is_close(entries, bytes) {
        return None;
    }
    if entries == u64::MAX {
        return Some("behind by an unknown number of entries".to_string());
    }
    let expected = format!("expected at most {CLOSE_ENTRIES} entries and {} MiB", CLOSE_BYTES >> 20);
    Some(match bytes {
        u64::MAX => format!("{entries} entries behind, {expected}"),
        bytes => format!("{entries} entries ({} MiB) behind, {expected}", bytes >> 20),
    })
}

impl AdminDoor {
    fn gateway_named(&self, name: &str) -> Result<Member, Refusal> {
        let name = holdfast_api::name("gateway", name)?;
        self.node.cluster.member_named(&name).ok_or_else(|| {
            let known: Vec<String> = self.node.cluster.state().members.values().map(|m| m.name.to_string()).collect();
            Refusal::new(RefusalCode::NotFound, format!("no gateway is named {name}; there are {}", known.join(", ")))
        })
    }

    /// A transfer cannot be undone, so the candidate must be alive and caught up before it begins.
    fn check_candidate(&self, set: &SetServer, candidate: &Member) -> Result<(), Refusal> {
        let status = set.group.status();
        let refuse = |why: String| Err(Refusal::new(RefusalCode::Precondition, why));
        if !candidate.serves() {
            let what = match candidate.role {
                MemberRole::Witness => "a witness".to_string(),
                MemberRole::Gateway => super::standing_text(candidate.standing).to_string(),
            };
            return refuse(format!(
                "gateway {} is {what} and serves no clients: choose another one (`holdfast gateway list`), or undrain it if it is drained",
                candidate.name
            ));
        }
        let Some(member) = status.members.iter().find(|m| m.member == candidate.id && m.voter) else {
            let (name, set_name) = (&candidate.name, &set.name);
            return refuse(match self.node.cluster.has_place(set.id, candidate.id) {
                true => format!(
                    "gateway {name} is not a voter of set {set_name} yet: wait until it has caught up (`holdfast gateway list`), or choose another one"
                ),
                false => format!(
                    "set {set_name} is not placed on gateway {name}: choose one of its gateways (`holdfast set place {set_name}` shows them)"
                ),
            });
        };
        let patience = self.node.timing.election_max();
        if member.silent.is_none_or(|silent| silent > patience) {
            let heard = member.silent.map_or("not heard of yet".to_string(), |silent| format!("silent for {silent:?}"));
            return refuse(format!(
                "gateway {} does not answer ({heard}, expected a message within {patience:?}): start it or repair its network, or choose another one",
                candidate.name
            ));
        }
        if let Some(behind) = behind_text(lacks(&status, member)) {
            return refuse(format!(
                "gateway {} is {behind}: wait until it has caught up (`holdfast gateway list`), or choose another one",
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

    /// Carries a part out that must not end in the middle, even if the caller stops waiting. A set that was drained but
    /// not handed over would accept nobody for as long as this gateway leads it.
    pub(super) async fn to_its_end<T, F>(&self, part: impl FnOnce(Self) -> F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let lost =
            |e| Refusal::new(RefusalCode::Unknown, format!("the change was abandoned while this gateway stops: {e}"));
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
        // Looked at once: what is checked is what is ended.
        let held = set.lease();
        let ended = held.as_ref().map(|lease| self.lease_message(&set, lease));
        let mut reply = self.moved(elsewhere.as_ref().map_or(set.me(), |c| c.id), false);
        let granted = if request.owner.is_empty() {
            if let Some(lease) = held {
                // R12: a late copy of this call must not end a lease that was granted since.
                if request.seen_epoch.is_some_and(|seen| seen != lease.epoch.0) {
                    let message = format!(
                        "set {} is held by {} with epoch {}, which is not the lease that was to end (epoch {}): it was taken meanwhile; \
                         check with `holdfast lease show`, then decide again",
                        set.name,
                        lease.owner,
                        lease.epoch.0,
                        request.seen_epoch.unwrap_or_default()
                    );
                    return Err(Refusal::new(RefusalCode::Precondition, message));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_that_lacks_a_gibibyte_is_told_by_how_much_it_is_behind() {
        assert_eq!(behind_text((1000, 4 << 20)), None);
        let text = behind_text((1000, 1000 << 20)).unwrap_or_default();
        assert_eq!(text, "1000 entries (1000 MiB) behind, expected at most 1024 entries and 32 MiB");
        let text = behind_text((9000, u64::MAX)).unwrap_or_default();
        assert_eq!(text, "9000 entries behind, expected at most 1024 entries and 32 MiB");
        assert!(behind_text((u64::MAX, u64::MAX)).is_some_and(|text| text.contains("unknown")));
    }
}
