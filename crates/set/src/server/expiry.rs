//! When the lease may be judged expired, by the clock of this gateway while it leads.

use holdfast_control::serve::ExpiryJudge;
use holdfast_control::set::Lease;
use holdfast_types::{MonoTime, Term};

#[derive(Default)]
pub(super) struct Expiry {
    pub(super) judge: ExpiryJudge,
    /// The term in which this gateway led at the last call of [`Expiry::watch`].
    watched: Option<Term>,
}

impl Expiry {
    /// Reports the leadership and the lease as applied here.
    pub(super) fn watch(&mut self, leading: Option<Term>, lease: Option<&Lease>, now: MonoTime) {
        if self.watched != leading {
            self.watched = leading;
            match leading {
                Some(_) => self.judge.elected(now),
                None => self.judge.leadership_lost(),
            }
        }
        self.judge.observe(now, lease);
    }
}

#[cfg(test)]
mod tests;
