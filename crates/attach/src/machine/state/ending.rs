//! The end of an attached set in good order.

use super::Machine;
use crate::machine::{Action, Grant, Phase};

impl Machine {
    /// Ends in good order: no new requests, unanswered ones are waited for, then the lease is given back.
    pub fn detach(&mut self, out: &mut Vec<Action>) {
        if self.detach || matches!(self.phase, Phase::Fenced | Phase::Detached) {
            return;
        }
        self.detach = true;
        if self.lease.grant.is_none() && !self.lease.resumed {
            return self.go(Phase::Detached, out);
        }
        self.go(Phase::Detaching, out);
        self.end_if_drained(out);
    }

    pub(super) fn end_if_drained(&mut self, out: &mut Vec<Action>) {
        if !self.detach || !self.carries() || self.table.len() > 0 {
            return;
        }
        self.releasing = true;
        if let Some(Grant { epoch, token, .. }) = self.lease.grant {
            out.push(Action::Shut { incarnation: self.incarnation });
            out.push(Action::Release { epoch, token });
        }
    }

    /// The lease was given back (`given`), or no gateway took it back: it will expire.
    pub fn released(&mut self, given: bool, out: &mut Vec<Action>) {
        if self.phase == Phase::Detaching {
            self.view.lease_left = !given;
            self.go(Phase::Detached, out);
        }
    }
}
