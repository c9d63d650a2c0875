//! Decides whether this member stands for election.

use crate::clock::boot_now;
use holdfast_types::MonoTime;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// This member stands for election once the embargo after its start is over, unless it was told to stand aside, or
/// learns a group again and has not learnt enough.
#[derive(Debug)]
pub(crate) struct Candidacy {
    embargo_over: AtomicBool,
    aside: AtomicBool,
    /// Its log ends before the entry at which it was taken out of the group (QUARANTINE-Q4, VOTERS-V4).
    learning: AtomicBool,
    /// The time when a leader was last heard, or this member was last seen to lead.
    heard: AtomicU64,
}

impl Candidacy {
    pub(crate) fn new(now: MonoTime) -> Self {
        Self {
            embargo_over: AtomicBool::new(false),
            aside: AtomicBool::new(false),
            learning: AtomicBool::new(false),
            heard: AtomicU64::new(now.0),
        }
    }

    /// A leader was heard now.
    pub(crate) fn heard(&self) {
        self.heard.fetch_max(boot_now().0, Ordering::AcqRel);
    }

    /// Time since a leader was last heard.
    pub(crate) fn unheard(&self) -> Duration {
        boot_now().saturating_since(MonoTime(self.heard.load(Ordering::Acquire)))
    }

    pub(crate) fn end_embargo(&self) {
        self.embargo_over.store(true, Ordering::Release);
    }

    /// True if that changed something.
    pub(crate) fn set_aside(&self, aside: bool) -> bool {
        self.aside.swap(aside, Ordering::AcqRel) != aside
    }

    pub(crate) fn set_learning(&self, learning: bool) {
        self.learning.store(learning, Ordering::Release);
    }

    pub(crate) fn is_learning(&self) -> bool {
        self.learning.load(Ordering::Acquire)
    }

    pub(crate) fn stands(&self) -> bool {
        self.embargo_over.load(Ordering::Acquire) && !self.aside.load(Ordering::Acquire) && !self.is_learning()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R3, MEMBER-M4: each of the two keeps it from standing by itself.
    #[test]
    fn who_is_under_an_embargo_or_stands_aside_does_not_stand() {
        let candidacy = Candidacy::new(MonoTime(0));
        assert!(!candidacy.stands(), "what it promised before its start is not known");
        assert!(candidacy.set_aside(true) && !candidacy.set_aside(true), "once it is a change");
        assert!(!candidacy.stands());
        candidacy.end_embargo();
        assert!(!candidacy.stands(), "it stands aside still");
        assert!(candidacy.set_aside(false) && candidacy.stands());
        assert!(candidacy.set_aside(true) && !candidacy.stands());
    }

    /// VOTERS-V4: the memberships that it learns on the way may name few voters, or this member alone.
    #[test]
    fn who_has_not_learnt_enough_does_not_stand() {
        let candidacy = Candidacy::new(MonoTime(0));
        candidacy.end_embargo();
        candidacy.set_learning(true);
        assert!(candidacy.is_learning() && !candidacy.stands());
        candidacy.set_learning(false);
        assert!(candidacy.stands());
    }

    #[test]
    fn silence_is_counted_from_the_last_leader_that_was_heard() {
        let candidacy = Candidacy::new(MonoTime(0));
        let since_the_machine_started = candidacy.unheard();
        assert!(since_the_machine_started > Duration::ZERO);
        candidacy.heard();
        let heard = candidacy.heard.load(Ordering::Acquire);
        assert!(
            Duration::from_nanos(heard) >= since_the_machine_started
                && candidacy.unheard() < Duration::from_nanos(heard)
        );
    }
}
