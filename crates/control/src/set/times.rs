//! The times of the set's group (ADR 0058).
//!
//! SET-S19  The round trip that the set's times are computed from is one that its leader chose: the entry is of the
//!     proposer's own term. It decides nothing here; each voter has these times from when it applies the entry, and
//!     keeps what it promised before (`holdfast_types::pledge`).

use super::checkpoint::check_term;
use super::command::SetAnswer;
use super::refusal::SetRefusal;
use super::state::SetState;
use holdfast_types::{LogId, Term};

impl SetState {
    /// From now on the times are computed from `rtt_ms` milliseconds.
    pub(super) fn retime(&mut self, id: LogId, term: Term, rtt_ms: u32) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        self.rtt_ms = Some(rtt_ms);
        Ok(SetAnswer::Retimed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::SetCommand;
    use super::*;
    use holdfast_types::Epoch;

    #[test]
    fn only_the_leader_of_the_entrys_term_chooses_the_times() {
        let mut state = SetState::new(Epoch(0));
        assert_eq!(state.rtt_ms, None);
        let retime = |term, rtt_ms| SetCommand::Retime(Term(term), rtt_ms);
        assert_eq!(state.apply(LogId::new(4, 1), &retime(4, 25)), SetAnswer::Retimed);
        let late = SetRefusal::WrongTerm { found: Term(4), expected: Term(5) };
        assert_eq!(state.apply(LogId::new(5, 2), &retime(4, 1)), SetAnswer::Refused(late));
        assert_eq!(state.rtt_ms, Some(25));
        assert_eq!(state.apply(LogId::new(5, 3), &retime(5, 1)), SetAnswer::Retimed);
        assert_eq!(state.rtt_ms, Some(1));
    }
}
