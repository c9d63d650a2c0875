//! Orders of the operator: to take the lease by force, to end a lease. Each excuses what a check would otherwise
//! report, so it is valid only while it may take effect (R12): from before it is sent until it is known to be carried
//! out once, or never.

use crate::sync::lock;
use crate::world::MS;
use holdfast_agent::client::{Answer, ClientError};
use holdfast_api::v1::MoveReply;
use holdfast_api::{Disposition, Refusal, RefusalCode};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};
use tonic::{Response, Status};

/// After this time an unanswered order has no effect any more: the operator waits 16 s (8 to connect, 8 for the
/// answer), an agent works 8 s at most on a request, by a clock that loses 40 % at most; and held-back links, a hanging
/// agent and a stopped host take 6 s each.
const ORDER_LIMIT: u64 = 50_000 * MS;

/// The agent's answer if it does not know whether a command was carried out.
const UNKNOWN: u16 = 504;

/// The agent's words for a failover that takes the lease from its owner.
const BY_FORCE: &str = "by force";

/// Forced orders to a host that may still be carried out (HOSTS-T1), each with its end of validity.
#[derive(Default)]
pub struct Orders(VecDeque<u64>);

impl Orders {
    /// An order is about to be sent.
    pub fn sent(&mut self, now: u64) {
        self.0.push_back(now + ORDER_LIMIT);
    }

    /// An order was carried out, or never will be. False: there is none. If there are several, it is unknown which one
    /// it was: the oldest is removed, so that none of the others ends early.
    pub fn settled(&mut self, now: u64) -> bool {
        self.0.retain(|until| *until > now);
        self.0.pop_front().is_some()
    }
}

/// Whether the answer shows that the order starts no forced attach, neither now nor earlier. A start of attach alone
/// does not show it: it may be the agent's own, with the order still on its way.
pub fn came_to_no_force(answer: &Result<Answer, ClientError>) -> bool {
    match answer {
        // By force: attach was started before that answer, and the order was settled then.
        Ok(answer) if answer.code == 200 => !answer.words().contains(BY_FORCE),
        Ok(answer) => answer.code != UNKNOWN,
        Err(ClientError::NotSent { .. }) => true,
        Err(ClientError::NoAnswer { .. }) => false,
    }
}

/// Leases that were to be ended by hand, by epoch, each with the number of calls that may have done it.
#[derive(Default)]
pub struct Freed {
    calls: BTreeMap<u64, usize>,
    refused: Arc<Mutex<Vec<u64>>>,
}

/// A call that ends a lease. If its gateway dies it gets no answer, and may have had its effect.
pub struct Call {
    epoch: u64,
    refused: Arc<Mutex<Vec<u64>>>,
}

impl Freed {
    /// The lease of this epoch is about to be ended.
    pub fn asked(&mut self, epoch: u64) -> Call {
        *self.calls.entry(epoch).or_default() += 1;
        Call { epoch, refused: self.refused.clone() }
    }

    /// Removes calls that are known to have ended nothing.
    pub fn hear(&mut self) {
        let refused = std::mem::take(&mut *lock(&self.refused));
        for epoch in refused {
            if let Some(calls) = self.calls.get_mut(&epoch) {
                *calls -= 1;
                if *calls == 0 {
                    self.calls.remove(&epoch);
                }
            }
        }
    }

    /// Whether one of these epochs may have been ended by hand.
    pub fn any(&self, epochs: impl RangeBounds<u64>) -> bool {
        self.calls.range(epochs).next().is_some()
    }
}

impl Call {
    /// Notes its answer.
    pub fn answered(self, outcome: Result<Response<MoveReply>, Status>) {
        let may_have_ended = match outcome {
            // The answer names the ended lease: none, if that lease was gone already.
            Ok(reply) => reply.into_inner().ended.is_some_and(|lease| lease.epoch == self.epoch),
            Err(status) => Refusal::from_status(&status).is_none_or(|refusal| {
                // A stopped group on the gateway is such a failure, whatever it was doing.
                refusal.disposition() == Disposition::Unknown || refusal.code == RefusalCode::Failed
            }),
        };
        if !may_have_ended {
            lock(&self.refused).push(self.epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_api::v1::Lease;

    #[test]
    fn an_order_is_an_excuse_once_and_for_a_while() {
        let mut orders = Orders::default();
        assert!(!orders.settled(0), "expected no order to settle");
        orders.sent(0);
        orders.sent(5 * MS);
        assert_eq!([(); 3].map(|()| orders.settled(6 * MS)), [true, true, false]);
        orders.sent(0);
        orders.sent(MS);
        assert!(orders.settled(ORDER_LIMIT), "expected the later order to be valid still");
        assert!(!orders.settled(ORDER_LIMIT), "expected the earlier order to have ended");
    }

    #[test]
    fn an_answer_tells_that_nothing_is_taken_by_force_or_leaves_it_open() {
        let answer = |code: u16, words: &str| {
            let body = serde_json::json!({ "message": words }).to_string();
            came_to_no_force(&Ok(Answer { code, body }))
        };
        assert!(answer(200, "db2 takes the lease") && answer(412, "not now") && answer(503, "nothing was done"));
        assert!(!answer(200, "db2 takes the lease by force"), "a forced failover is settled at the start of attach");
        assert!(!answer(504, "not known"));
        let (address, why) = ("db2".to_string(), "cut".to_string());
        assert!(!came_to_no_force(&Err(ClientError::NoAnswer { address: address.clone(), why: why.clone() })));
        assert!(came_to_no_force(&Err(ClientError::NotSent { address, why })));
    }

    #[test]
    fn a_lease_may_have_been_ended_by_hand_until_all_calls_are_known_to_have_ended_nothing() {
        let no = |code: RefusalCode| Err(Status::from(Refusal::new(code, "no")));
        let yes = |epoch: Option<u64>| {
            let ended = epoch.map(|epoch| Lease { epoch, ..Lease::default() });
            Ok(Response::new(MoveReply { ended, ..MoveReply::default() }))
        };
        for (outcome, counts) in [
            (yes(Some(7)), true),
            (yes(None), false),
            (no(RefusalCode::Precondition), false),
            (no(RefusalCode::NotLeader), false),
            (no(RefusalCode::Unknown), true),
            (no(RefusalCode::Failed), true),
            (Err(Status::cancelled("no gateway's")), true),
        ] {
            let said = format!("{outcome:?}");
            let mut freed = Freed::default();
            freed.asked(7).answered(outcome);
            freed.hear();
            assert_eq!((freed.any(7..8), freed.any(8..)), (counts, false), "{said}");
        }
        let mut freed = Freed::default();
        let (one, other) = (freed.asked(7), freed.asked(7));
        one.answered(no(RefusalCode::NotLeader));
        freed.hear();
        assert!(freed.any(7..8), "the other call may have ended it");
        // Its gateway died.
        drop(other);
        freed.hear();
        assert!(freed.any(7..8));
    }
}
