//! Checkpoints of a set: begin, segments, end (SET-S5).

use super::command::{SEGMENT_NOTES_MAX, SetAnswer, SetRefusal};
use super::state::{Begin, Checkpoint, RootRef, SegmentNote, SetState};
use holdfast_types::{LogId, Term};

impl SetState {
    /// F(copy, root): the state that the snapshot of a finished checkpoint holds, made from the copy that was kept at its
    /// begin. Replaying the entries after `begin` onto it gives, from the end's entry on, the same state as the straight run.
    ///
    /// # Panics
    /// When the copy is not the one of `begin` (R4): a root must never be joined to another moment's state.
    pub fn after_checkpoint(copy_at_begin: &SetState, root: RootRef, begin: LogId) -> SetState {
        assert_eq!(
            copy_at_begin.begin.map(|copied| copied.at),
            Some(begin),
            "R4: the copy is not the state at the begin {begin}"
        );
        // `begin` stays: the replayed end must find it, and then clears it as it did the first time.
        SetState { checkpoint: Some(Checkpoint { upto: begin, root }), ..copy_at_begin.clone() }
    }

    pub(super) fn checkpoint_begin(&mut self, id: LogId, term: Term) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        // An unfinished one before it is given up: its segments are orphans, its generation goes into this one.
        self.begin = Some(Begin { at: id, base: self.current_root() });
        self.segments.clear();
        self.pin_pending(id);
        Ok(SetAnswer::CheckpointBegun { at: id })
    }

    pub(super) fn segment_committed(
        &mut self,
        id: LogId,
        term: Term,
        note: SegmentNote,
    ) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        if self.begin.is_none() {
            return Err(SetRefusal::NoBegin);
        }
        if self.segments.iter().any(|present| present.object == note.object) {
            return Ok(SetAnswer::SegmentNoted);
        }
        if self.segments.len() >= SEGMENT_NOTES_MAX {
            return Err(SetRefusal::TooManySegments { max: SEGMENT_NOTES_MAX as u32 });
        }
        self.segments.push_back(note);
        Ok(SetAnswer::SegmentNoted)
    }

    pub(super) fn checkpoint_end(
        &mut self,
        id: LogId,
        term: Term,
        begin: LogId,
        root: RootRef,
    ) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        // Also a second copy of an end that was applied is refused: it must not drop what a later begin has sealed. Its
        // proposer finds the outcome in `checkpoint`. And `checkpoint` is not asked here: on a replay from the snapshot it
        // names this end already, and yet the end must run as it did.
        let Some(Begin { base, .. }) = self.begin.filter(|latest| latest.at == begin) else {
            let latest = self.begin.map(|begin| begin.at);
            return Err(SetRefusal::NotLatestBegin { found: begin, latest });
        };
        self.checkpoint = Some(Checkpoint { upto: begin, root });
        self.begin = None;
        self.segments.clear();
        // A rollback clears `begin`: the one that ends here came after it.
        self.rolled_back = None;
        self.root_replaced(begin, base, root);
        Ok(SetAnswer::CheckpointEnded)
    }
}

/// A command of the leader's own work counts only in the term that it was proposed in: it is never forwarded, and a copy that
/// another term appended rests on what that term does not know.
pub(super) fn check_term(id: LogId, found: Term) -> Result<(), SetRefusal> {
    if id.term == found { Ok(()) } else { Err(SetRefusal::WrongTerm { found, expected: id.term }) }
}
