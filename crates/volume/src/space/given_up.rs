//! What checkpoints of this leadership wrote and that came to no end, for the sweep of the leader that wrote it (G4).
//!
//! ```text
//!   Begin A ─▶ objects ─▶ root ─▶ head? ─▶ End?     it failed, or nobody knows what became of it
//!   Begin B ─▶ objects ─▶ root ─▶ head ──▶ End B is applied: no End of A counts any more (S5), and the head does not name A's root
//!                                           └──▶ what was made for A, and no kept root names, is an orphan
//! ```
//! Why that is so, whatever became of A:
//! 1. End A was not applied before Begin B: it never will be, and A's root is nobody's base.
//! 2. End A was applied before Begin B, unknown to who proposed it: its root was a kept one, B was built on it, and snapshots of it are kept roots. What none of
//!    them names is garbage, and stays so (G1).
//! 3. The head named A's root: B's head took its place before End B was proposed. A swap for A that comes late expects what is there no more.
//!
//! All of it is read from one state, the one whose kept roots are looked through: that B has ended, and which roots those are. What this list has too much of is
//! spared by them; what it lacks waits for the next term.

use holdfast_control::set::SetState;
use holdfast_types::{LogId, ObjectId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Objects that are remembered at most, of all tries together, the one under way included: some 5 MiB, and what 1 TiB of segments fail with. What is made beyond
/// it waits for the sweep of the next term.
pub const GIVEN_UP_MAX: usize = 1 << 16;

/// The objects that the tries of a checkpoint in this term began to write; those that ended are forgotten.
#[derive(Debug, Default)]
pub struct GivenUp {
    /// Where the last try began.
    began: LogId,
    /// Each with where the try began that it was made for, all of one term.
    made: BTreeMap<ObjectId, LogId>,
}

impl GivenUp {
    /// A try begins at this entry. Whatever was tried before in this term has come to no end; what was in an earlier one, that term tells.
    pub fn begin(&mut self, at: LogId) {
        if self.began.term != at.term {
            self.made.clear();
        }
        self.began = at;
    }

    /// An object of the try under way is about to be written. To be told of every one, before it is sent: what was sent may come to be there.
    pub fn made(&mut self, object: ObjectId) {
        if self.made.len() < GIVEN_UP_MAX {
            self.made.insert(object, self.began);
        }
    }

    /// The try that began at this entry has ended: its root is kept, and tells what was made for it.
    pub fn ended(&mut self, at: LogId) {
        self.made.retain(|_, began| *began != at);
    }

    /// How many objects are remembered.
    pub fn count(&self) -> usize {
        self.made.len()
    }

    /// Those that a leader of `term` may judge by this state, which is its own, applied here: a checkpoint of the term that began later has ended.
    pub fn lapsed(&self, term: Term, state: &SetState) -> Lapsed {
        // S12: a rollback takes the place of a checkpoint without one, and the head may name what was there before it.
        let checkpoint = state.checkpoint.filter(|_| state.rolled_back.is_none());
        let Some(ended) = checkpoint.map(|checkpoint| checkpoint.upto).filter(|ended| ended.term == term) else {
            return Lapsed::default();
        };
        let over = |began: &LogId| began.term == term && began.index < ended.index;
        let objects = self.made.iter().filter(|(_, began)| over(began)).map(|(object, _)| *object).collect();
        Lapsed { ended, objects }
    }

    /// They are retired, or a root names them: who comes to dropped roots finds them.
    pub fn forget(&mut self, objects: impl Iterator<Item = ObjectId>) {
        for object in objects {
            self.made.remove(&object);
        }
    }
}

/// What may be judged of what was given up.
#[derive(Clone, Debug, Default)]
pub struct Lapsed {
    /// Where the checkpoint began that has ended.
    pub(super) ended: LogId,
    pub(super) objects: BTreeSet<ObjectId>,
}

#[cfg(test)]
mod tests;
