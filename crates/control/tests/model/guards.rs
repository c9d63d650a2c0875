//! The guards that keep the rules. Each is removed once, and the model must then find a history that breaks a rule:
//! otherwise it proves nothing about that guard.
//!
//! Nothing in the product can be switched off. A missing guard is imitated around the call: command, state or answer is
//! changed to what code without the guard would give.

/// A guard, each with its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Apply refuses a write of another epoch than the lease's.
    EpochCompared,
    /// Apply refuses a write whose number is not the next.
    NumbersGapless,
    /// Apply does nothing for a number that it has applied.
    NumberOnce,
    /// A write whose outcome is unknown is proposed again under its own number.
    RetryKeepsNumber,
    /// A held set is granted to no other owner, unless forced or judged expired.
    HolderKept,
    /// Apply compares a judgement with the lease as it is.
    JudgementCompared,
    /// A copy of the present lease's request finds the present lease.
    RequestRecognised,
    /// A copy of a request that was granted earlier is refused.
    RequestsRemembered,
    /// Only the token of the grant continues it.
    TokenCompared,
    /// The token before dies with the first use of the newer.
    OlderTokenDies,
    /// The tokens of unused grants stay, also when an older one is shown late.
    UnusedTokensLast,
    /// A release ends the epoch that it names, and no other.
    ReleaseNamesEpoch,
    /// A release by an owner shows the grant's token.
    ReleaseShowsToken,
    /// What continues gets a new epoch.
    ContinueTakesNewEpoch,
    /// The gate serves only a grant of its own term.
    ServesGrantOfOwnTerm,

    /// The read lease ends a margin before the followers' silence does.
    DriftMargin,
    /// The read lease counts from the sending of the heartbeat, not from the arrival of its answer.
    AckCountsFromSending,
    /// What a follower has promised under longer times is in force under shorter ones (PLEDGE-P1).
    PromiseOutlivesItsTimes,
    /// A leader reads for as long as the answer says, not for as long as its own times say (PLEDGE-P3).
    AnswerSaysHowLong,
    /// A follower that heard its leader votes for no other until the leader lease has passed. (openraft's part: the
    /// model imitates it.)
    FollowersKeepSilence,
    /// After a start there is no vote for a while.
    VoteEmbargo,
    /// The gate is told before leadership is handed over.
    TransferTold,
    /// A transfer ends the serving of its term, also when it fails.
    TransferFinal,
    /// Acknowledgements of heartbeats from before the term prove nothing.
    AckOfOwnTerm,
    /// The read lease is checked after the data is there.
    LeaseAfterData,
    /// The epoch after a read is the one that it began under.
    EpochUnchanged,
    /// A suspected clock ends the read lease.
    SuspicionEndsReadLease,
    /// A sole voter's gate is told before others can vote.
    SoleVoterTold,
    /// A judge counts from its own election.
    JudgeFromElection,
    /// Time that the judge's process did not see does not count against the owner.
    JudgeSleepsNot,
}

use Guard::*;

/// Guards of the replicated state and of the gate without its clock: found by the model of grants.
pub const OF_GRANTS: &[(Guard, &str)] = &[
    (EpochCompared, "R2"),
    (NumbersGapless, "R4"),
    (NumberOnce, "R2"),
    (RetryKeepsNumber, "R2"),
    (HolderKept, "SET-S4"),
    (JudgementCompared, "SET-S4"),
    (RequestRecognised, "R12"),
    (RequestsRemembered, "R12"),
    (TokenCompared, "SET-S3"),
    (OlderTokenDies, "SET-S3"),
    (UnusedTokensLast, "SET-S3"),
    (ReleaseNamesEpoch, "SET-S4"),
    (ReleaseShowsToken, "SET-S3"),
    (ContinueTakesNewEpoch, "R6"),
    (ServesGrantOfOwnTerm, "R1"),
];

/// Guards of time, each with the course of the model of clocks that needs it.
pub const OF_CLOCKS: &[(Guard, &str, &str)] = &[
    (DriftMargin, "drift", "R3"),
    (AckCountsFromSending, "drift", "R3"),
    (FollowersKeepSilence, "drift", "R3"),
    (VoteEmbargo, "drift", "R3"),
    (LeaseAfterData, "drift", "R3, late"),
    (PromiseOutlivesItsTimes, "times", "R3"),
    (AnswerSaysHowLong, "times", "R3"),
    (TransferTold, "handover", "R3"),
    (TransferFinal, "handover", "R3"),
    (AckOfOwnTerm, "return", "R3"),
    (EpochUnchanged, "handover", "R3, late"),
    (SuspicionEndsReadLease, "clock", "R3"),
    (SoleVoterTold, "alone", "R3"),
    (JudgeFromElection, "expiry", "SET-S4"),
    (JudgeSleepsNot, "expiry", "SET-S4"),
];
