//! What a refusal of a set's state is for its caller.

use holdfast_api::RefusalCode;
use holdfast_control::set::SetRefusal;

/// Each refusal has its line, and none stands for "all others": a host whose lease is not continued ends its devices
/// for good on some of these codes (`RefusalCode::ends_lease`), so nobody may add a refusal without deciding that.
pub(super) fn of_refusal(refusal: &SetRefusal) -> RefusalCode {
    match refusal {
        SetRefusal::NameTaken { .. } | SetRefusal::SnapshotNameTaken { .. } => RefusalCode::Exists,
        SetRefusal::NoSuchVolume { .. } | SetRefusal::NoSuchSnapshot { .. } => RefusalCode::NotFound,
        SetRefusal::Held { .. } => RefusalCode::Held,
        SetRefusal::StaleToken { .. } => RefusalCode::StaleToken,
        SetRefusal::NotContinuable { .. } => RefusalCode::NotContinuable,
        SetRefusal::WrongEpoch { .. } => RefusalCode::WrongEpoch,
        SetRefusal::ShrinkRefused { .. }
        | SetRefusal::GrowRefused { .. }
        | SetRefusal::SizeRefused { .. }
        | SetRefusal::TtlRefused { .. }
        | SetRefusal::BadSchedule { .. }
        | SetRefusal::BadLimit { .. } => RefusalCode::Invalid,
        // The gateway drew the token; the next attempt has another one. It says nothing about the lease.
        SetRefusal::TokenReused => RefusalCode::Busy,
        SetRefusal::NotHeld { .. }
        | SetRefusal::RequestEnded { .. }
        | SetRefusal::RequestDone
        | SetRefusal::VolumeNotAsSeen { .. }
        | SetRefusal::TooManyVolumes { .. }
        | SetRefusal::TooManySnapshots { .. }
        | SetRefusal::TooManyPins { .. }
        | SetRefusal::ChangedSinceSnapshot { .. } => RefusalCode::Precondition,
        // Entries that a set's leader proposes by itself.
        SetRefusal::SeqGap { .. }
        | SetRefusal::WrongTerm { .. }
        | SetRefusal::NotLatestBegin { .. }
        | SetRefusal::NoBegin
        | SetRefusal::NotOver { .. }
        | SetRefusal::NotCheckpointed { .. }
        | SetRefusal::TooManySegments { .. }
        | SetRefusal::TooManyRetired { .. }
        | SetRefusal::StillInUse { .. } => RefusalCode::Precondition,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::set::{SetAnswer, SetCommand, SetState};
    use holdfast_types::{Epoch, LogId, MemberId, Owner, RequestId, Token};

    /// Whether this refusal, as the answer to a continuation, ends a host's devices for good. `None`: no continuation
    /// is answered so. A new refusal does not compile until it is decided here.
    fn ends_devices(refusal: &SetRefusal) -> Option<bool> {
        match refusal {
            SetRefusal::Held { .. }
            | SetRefusal::NotHeld { .. }
            | SetRefusal::StaleToken { .. }
            | SetRefusal::NotContinuable { .. } => Some(true),
            SetRefusal::TokenReused => Some(false),
            SetRefusal::NameTaken { .. }
            | SetRefusal::NoSuchVolume { .. }
            | SetRefusal::ShrinkRefused { .. }
            | SetRefusal::GrowRefused { .. }
            | SetRefusal::SizeRefused { .. }
            | SetRefusal::VolumeNotAsSeen { .. }
            | SetRefusal::TooManyVolumes { .. }
            | SetRefusal::TtlRefused { .. }
            | SetRefusal::RequestEnded { .. }
            | SetRefusal::RequestDone
            | SetRefusal::WrongEpoch { .. }
            | SetRefusal::SeqGap { .. }
            | SetRefusal::WrongTerm { .. }
            | SetRefusal::NotLatestBegin { .. }
            | SetRefusal::NoBegin
            | SetRefusal::NotOver { .. }
            | SetRefusal::NotCheckpointed { .. }
            | SetRefusal::TooManySegments { .. }
            | SetRefusal::TooManyRetired { .. }
            | SetRefusal::StillInUse { .. }
            | SetRefusal::SnapshotNameTaken { .. }
            | SetRefusal::NoSuchSnapshot { .. }
            | SetRefusal::TooManySnapshots { .. }
            | SetRefusal::ChangedSinceSnapshot { .. }
            | SetRefusal::BadSchedule { .. }
            | SetRefusal::BadLimit { .. }
            | SetRefusal::TooManyPins { .. } => None,
        }
    }

    fn owner(name: &str) -> Owner {
        Owner::new(name).unwrap()
    }

    /// A set that `host` holds with token 1, if `held`.
    fn set(held: bool, plain: bool) -> SetState {
        let mut state = SetState::new(Epoch(0));
        let acquire = SetCommand::Acquire {
            owner: owner("host"),
            gateway: MemberId(1),
            token: Token(1),
            ttl_ms: 30_000,
            request: RequestId(1),
            judged_expired: None,
            force: false,
            plain,
            at_unix_ms: 1,
        };
        if held {
            assert!(matches!(state.apply(LogId::new(1, 1), &acquire), SetAnswer::Granted(_)));
        }
        state
    }

    /// What the state refuses a continuation with, as its caller gets it.
    fn refused(mut state: SetState, who: &str, token: u128, new_token: u128) -> (SetRefusal, RefusalCode) {
        let (owner, request) = (owner(who), RequestId(2));
        let (token, new_token) = (Token(token), Token(new_token));
        let command = SetCommand::Continue { owner, gateway: MemberId(2), token, new_token, request, at_unix_ms: 2 };
        let SetAnswer::Refused(refusal) = state.apply(LogId::new(2, 2), &command) else { panic!("{who} {token:?}") };
        let code = of_refusal(&refusal);
        (refusal, code)
    }

    #[test]
    fn a_refused_continuation_ends_devices_only_if_the_lease_is_over() {
        let all = [
            (refused(set(true, false), "other", 1, 2), "held"),
            (refused(set(true, false), "host", 9, 2), "stale-token"),
            (refused(set(true, true), "host", 1, 2), "not-continuable"),
            (refused(set(false, false), "host", 1, 2), "precondition"),
            (refused(set(true, false), "host", 1, 1), "busy"),
        ];
        for ((refusal, code), expected) in all {
            assert_eq!(code.as_str(), expected, "{refusal}");
            assert_eq!(Some(code.ends_lease()), ends_devices(&refusal), "{refusal}");
        }
    }
}
