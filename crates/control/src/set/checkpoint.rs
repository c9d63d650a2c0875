//! Checkpoints of a set: begin, segments, end (SET-S5).

use super::command::{SEGMENT_NOTES_MAX, SetAnswer};
use super::refusal::SetRefusal;
use super::state::{Begin, Checkpoint, RootRef, SegmentNote, SetState};
use holdfast_types::{LogId, Term};

impl SetState {
    /// F(copy, root): the state in the snapshot of a finished checkpoint, made from the copy taken at its begin.
    /// Replaying the entries after `begin` onto it gives, from the end's entry on, the same state as direct apply.
    ///
    /// # Panics
    /// When the copy is not the one of `begin` (R4): a root must never be combined with another moment's state.
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
        holdfast_reached::reached!("checkpoint: an unfinished one is given up", self.begin.is_some());
        // An unfinished checkpoint before is given up: its segments are orphans, its memtable is merged into this
        // one's.
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
            holdfast_reached::reached!("checkpoint: a segment without a begin");
            return Err(SetRefusal::NoBegin);
        }
        if self.segments.iter().any(|present| present.object == note.object) {
            holdfast_reached::reached!("checkpoint: a segment is noted twice");
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
        // Refuses a second copy of an applied end too: it must not drop what a later begin has sealed. Its proposer
        // finds the outcome in `checkpoint`. `checkpoint` is not read here: on a replay from the snapshot it has this
        // end's root already, but the end must be applied all the same.
        let Some(Begin { base, .. }) = self.begin.filter(|latest| latest.at == begin) else {
            holdfast_reached::reached!("checkpoint: an end of an earlier begin, or a second end");
            let latest = self.begin.map(|begin| begin.at);
            return Err(SetRefusal::NotLatestBegin { found: begin, latest });
        };
        self.checkpoint = Some(Checkpoint { upto: begin, root });
        self.begin = None;
        self.segments.clear();
        // A rollback clears `begin`, so this checkpoint began after it.
        self.rolled_back = None;
        self.root_replaced(begin, base, root);
        Ok(SetAnswer::CheckpointEnded)
    }
}

/// A command of the leader's own work is valid only in the term in which it was proposed: it is never forwarded, and a
/// copy appended in another term may rest on facts that the new term does not know.
pub(super) fn check_term(id: LogId, found: Term) -> Result<(), SetRefusal> {
    holdfast_reached::reached!("checkpoint: an entry lands outside the term of its proposer", id.term != found);
    if id.term == found { Ok(()) } else { Err(SetRefusal::WrongTerm { found, expected: id.term }) }
}
