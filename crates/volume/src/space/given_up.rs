//! Objects of checkpoints that this leader began and did not end, for its own sweep (SPACE-G4).
//!
//! ```text
//!   Begin A ─▶ objects ─▶ root ─▶ head? ─▶ End?     it failed, or its outcome is unknown
//!   Begin B ─▶ objects ─▶ root ─▶ head ──▶ End B is applied: no End of A counts any more (SET-S5), and the head does not name A's root
//!                                           └──▶ what was made for A, and no kept root names, is an orphan
//! ```
//! Why this is safe, whatever the outcome of A:
//! 1. End A was not applied before Begin B: then it never will be, and no root has A's root as its base.
//! 2. End A was applied before Begin B, and its proposer does not know: then A's root was a kept root, B was built on
//!    it, and snapshots of it are kept roots. What none of them names is garbage, and stays garbage (SPACE-G1).
//! 3. The head named A's root: B's head replaced it before End B was proposed. A late swap for A fails, since it
//!    expects an older head.
//!
//! Both facts come from one state: that B has ended, and which roots are kept. Objects that a kept root names are
//! spared. Objects that this list lacks wait for the next term's sweep.

use holdfast_control::set::SetState;
use holdfast_types::{LogId, ObjectId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Most objects that are remembered, of all tries together: about 5 MiB of memory, enough for 1 TiB of segments.
/// Further objects wait for the sweep of the next term.
pub const GIVEN_UP_MAX: usize = 1 << 16;

/// Objects that this term's checkpoints began to write, without those of checkpoints that have ended.
#[derive(Debug, Default)]
pub struct GivenUp {
    /// Begin of the last try.
    began: LogId,
    /// Each object with the begin of its try; all of one term.
    made: BTreeMap<ObjectId, LogId>,
}

impl GivenUp {
    /// A try begins at this entry. Earlier tries of this term have failed. Objects of an earlier term are found by
    /// their term.
    pub fn begin(&mut self, at: LogId) {
        if self.began.term != at.term {
            self.made.clear();
        }
        self.began = at;
    }

    /// An object of the present try is about to be written. Must be called for each object before it is sent: a request
    /// that was sent may take effect.
    pub fn made(&mut self, object: ObjectId) {
        if self.made.len() < GIVEN_UP_MAX {
            self.made.insert(object, self.began);
        }
    }

    /// The try that began at this entry has ended: its root is kept, and names its objects.
    pub fn ended(&mut self, at: LogId) {
        self.made.retain(|_, began| *began != at);
    }

    /// How many objects are remembered.
    pub fn count(&self) -> usize {
        self.made.len()
    }

    /// The objects that a leader of `term` may judge by this state, which it has applied itself: a later checkpoint of
    /// the term has ended.
    pub fn lapsed(&self, term: Term, state: &SetState) -> Lapsed {
        // SET-S12: a rollback replaces a checkpoint without one, and the head may name the state before it.
        let checkpoint = state.checkpoint.filter(|_| state.rolled_back.is_none());
        let Some(ended) = checkpoint.map(|checkpoint| checkpoint.upto).filter(|ended| ended.term == term) else {
            return Lapsed::default();
        };
        let over = |began: &LogId| began.term == term && began.index < ended.index;
        let objects = self.made.iter().filter(|(_, began)| over(began)).map(|(object, _)| *object).collect();
        Lapsed { ended, objects }
    }

    /// Forgets objects that were retired, or that a root names: garbage collection of dropped roots handles them.
    pub fn forget(&mut self, objects: impl Iterator<Item = ObjectId>) {
        for object in objects {
            self.made.remove(&object);
        }
    }
}

/// Given-up objects that may be judged now.
#[derive(Clone, Debug, Default)]
pub struct Lapsed {
    /// Begin of the checkpoint that has ended.
    pub(super) ended: LogId,
    pub(super) objects: BTreeSet<ObjectId>,
}

#[cfg(test)]
mod tests;
