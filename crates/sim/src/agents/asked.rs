//! What people asked for: that a host takes the lease by force, that a lease ends. Each is an excuse for what a check would call a broken rule otherwise, so it counts only while it may
//! have had its effect, or may still have it (R12): from before it is asked for until it is known to have been carried out once, or that it never will be.

use crate::host::lock;
use crate::world::MS;
use holdfast_agent::client::{Answer, ClientError};
use holdfast_api::v1::MoveReply;
use holdfast_api::{Disposition, Refusal, RefusalCode};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};
use tonic::{Response, Status};

/// An order of which nothing was heard for so long has no effect any more: the operator waits for 16 s (8 to be connected, 8 for the answer), an agent is at a request for 8 s at most, by a
/// clock that loses 40 % at most, and links hold back, an agent hangs and a host is stopped for 6 s each.
const ORDER_LIMIT: u64 = 50_000 * MS;

/// What an agent's door answers where it does not know whether a command was carried out.
const UNKNOWN: u16 = 504;

/// What the agent says of a failover by which it takes the lease from somebody.
const BY_FORCE: &str = "by force";

/// Orders to a host to take the lease by force that may still be carried out (HOSTS-T1), by the moment from which they are not.
#[derive(Default)]
pub struct Orders(VecDeque<u64>);

impl Orders {
    /// One is about to be sent.
    pub fn sent(&mut self, now: u64) {
        self.0.push_back(now + ORDER_LIMIT);
    }

    /// One was carried out, or never will be; false: there is none, nobody told the host to. Which of several it was is not to be seen: the oldest goes, so that none of the others ends
    /// before its time.
    pub fn settled(&mut self, now: u64) -> bool {
        self.0.retain(|until| *until > now);
        self.0.pop_front().is_some()
    }
}

/// Whether it is known by its answer that an order leads to no start of attach by force, neither yet nor before. A start of attach alone does not say so: it may be the agent's own, with
/// the order still on its way.
pub fn came_to_no_force(answer: &Result<Answer, ClientError>) -> bool {
    match answer {
        // By force: attach was started before that was said, and the order was settled then.
        Ok(answer) if answer.code == 200 => !answer.words().contains(BY_FORCE),
        Ok(answer) => answer.code != UNKNOWN,
        Err(ClientError::NotSent { .. }) => true,
        Err(ClientError::NoAnswer { .. }) => false,
    }
}

/// Leases that were to be ended by hand, by their epoch, each with the number of calls that may have done it.
#[derive(Default)]
pub struct Freed {
    calls: BTreeMap<u64, usize>,
    refused: Arc<Mutex<Vec<u64>>>,
}

/// A call that ends a lease. Where its gateway dies with it, it is answered nothing, and may have done it.
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

    /// Takes out what is known to have ended nothing.
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

    /// One of these may have been ended by hand.
    pub fn any(&self, epochs: impl RangeBounds<u64>) -> bool {
        self.calls.range(epochs).next().is_some()
    }
}

impl Call {
    /// It was answered.
    pub fn answered(self, outcome: Result<Response<MoveReply>, Status>) {
        let may_have_ended = match outcome {
            // It says what it ended: nothing, where that lease was gone already.
            Ok(reply) => reply.into_inner().ended.is_some_and(|lease| lease.epoch == self.epoch),
            Err(status) => Refusal::from_status(&status).is_none_or(|refusal| {
                // A group that has stopped on its gateway is such a failure, whatever it was at.
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
        assert!(!orders.settled(0), "nobody told it to");
        orders.sent(0);
        orders.sent(5 * MS);
        assert_eq!([(); 3].map(|()| orders.settled(6 * MS)), [true, true, false]);
        orders.sent(0);
        orders.sent(MS);
        assert!(orders.settled(ORDER_LIMIT), "the later one is not over yet");
        assert!(!orders.settled(ORDER_LIMIT), "the earlier one is");
    }

    #[test]
    fn an_answer_tells_that_nothing_is_taken_by_force_or_leaves_it_open() {
        let answer = |code: u16, words: &str| {
            let body = serde_json::json!({ "message": words }).to_string();
            came_to_no_force(&Ok(Answer { code, body }))
        };
        assert!(answer(200, "db2 takes the lease") && answer(412, "not now") && answer(503, "nothing was done"));
        assert!(!answer(200, "db2 takes the lease by force"), "it was counted when attach was started");
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
        assert!(freed.any(7..8), "the other one may have done it");
        // Its gateway died.
        drop(other);
        freed.hear();
        assert!(freed.any(7..8));
    }
}
