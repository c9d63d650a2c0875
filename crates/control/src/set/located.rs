//! Where the owner of the lease stands.
//!
//! SET-S17  The place is that of the present lease's owner: it ends with a release and with a grant to another owner,
//!     and a continuation keeps it. A late word of an earlier grant changes nothing. It decides nothing here; leaders
//!     choose by it where the set is served best (`following`).

use super::command::SetAnswer;
use super::refusal::SetRefusal;
use super::state::SetState;
use holdfast_types::{Epoch, Locality, Owner};

impl SetState {
    /// The owner of the grant `epoch` stands there.
    pub(super) fn locate(&mut self, epoch: Epoch, at: &Locality) -> Result<SetAnswer, SetRefusal> {
        let current = self.lease.as_ref().map(|lease| lease.epoch);
        if current != Some(epoch) {
            return Err(SetRefusal::WrongEpoch { found: epoch, current });
        }
        self.owner_at = Some(at.clone());
        Ok(SetAnswer::Located)
    }

    /// Before a grant to `owner`: the place of another owner is not its own.
    pub(super) fn keep_place(&mut self, owner: &Owner) {
        if self.lease.as_ref().is_none_or(|lease| lease.owner != *owner) {
            self.owner_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SetCommand, acquire_set};
    use super::*;
    use holdfast_types::{LogId, MemberId, RequestId, Token};

    fn go_on(owner: &str, token: u128, number: u128) -> SetCommand {
        SetCommand::Continue {
            owner: Owner::new(owner).unwrap(),
            gateway: MemberId(2),
            token: Token(token),
            new_token: Token(number),
            request: RequestId(number),
            at_unix_ms: 0,
        }
    }

    fn place(text: &str) -> Locality {
        text.parse().unwrap()
    }

    #[test]
    fn the_place_is_that_of_the_present_owner() {
        let mut state = SetState::new(Epoch(100));
        let mut index = 0;
        let mut apply = |state: &mut SetState, command: SetCommand| {
            index += 1;
            let answer = state.apply(LogId::new(1, index), &command);
            state.self_check();
            answer
        };
        let (eu, us) = (place("region=eu,zone=a"), place("us"));
        let nobody = SetRefusal::WrongEpoch { found: Epoch(1), current: None };
        let early = SetCommand::Locate(Epoch(1), eu.clone());
        assert_eq!(apply(&mut state, early), SetAnswer::Refused(nobody));
        apply(&mut state, acquire_set("db1", 1, 1, false));
        let first = state.epoch;
        assert_eq!(apply(&mut state, SetCommand::Locate(first, eu.clone())), SetAnswer::Located);
        assert_eq!(state.lease.as_ref().map(|lease| lease.renewed.0), Some(2), "it is no sign of the owner's life");
        apply(&mut state, go_on("db1", 1, 2));
        assert_eq!(state.owner_at, Some(eu.clone()), "a continuation keeps it");
        let late = SetRefusal::WrongEpoch { found: first, current: Some(state.epoch) };
        let word = SetCommand::Locate(first, us.clone());
        assert_eq!(apply(&mut state, word), SetAnswer::Refused(late), "a late word of an earlier grant");
        assert_eq!(state.owner_at, Some(eu));
        apply(&mut state, acquire_set("db2", 3, 3, true));
        assert_eq!(state.owner_at, None, "that of another owner is not its own");
        let (epoch, token) = (state.epoch, Some(Token(3)));
        apply(&mut state, SetCommand::Locate(epoch, us));
        assert!(state.owner_at.is_some());
        apply(&mut state, SetCommand::Release { epoch, token });
        assert_eq!(state.owner_at, None);
    }
}
