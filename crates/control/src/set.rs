//! One volume set's replicated decisions.
//!
//! ```text
//!            Acquire (free, judged expired, forced)            Continue (token)
//!   free ───────────────────────────────────────▶ held e10 ───────────────────▶ held e17 ─▶ …   each arrow: a new epoch
//!    ▲                                                │ Release, by token or by the serving gateway       │
//!    └────────────────────────────────────────────────┴───────────────────────────────────────────────────┘
//! ```
//!
//! SET-S1  The epoch of a grant is base + log index of the grant: it only grows, and no two grants share one (R6).
//! SET-S2  A write is applied only under the epoch of the current lease and as the next number of it (R2).
//! SET-S3  A token opens the current grant only. The one it was continued from, and those of grants after that which
//!     were never used, stay valid until the newest one is first used: an answer may be lost, and a late request of a
//!     process that is gone must not lock its successor out. Then they are dead for ever.
//! SET-S4  A lease ends by a release or by another grant, never by time alone: apply has no clock. A proposer that
//!     judged it expired names what it judged (epoch and last renewal), and apply compares.
//! SET-S5  A checkpoint ends only for the latest begin, proposed in the term of its own entry (R4, R7).
//! SET-S10  A request is granted once (R12): the last `REQUESTS_REMEMBERED` granted requests are part of the state. A
//!     copy of it changes nothing. It gets the present lease if that is its own, or if its token still continues that
//!     lease; else it is refused.
//!
//! SET-S6 to SET-S9 and SET-S11, snapshots and garbage: see `set/space.rs`. SET-S12, rollback: `set/rollback.rs`.
//! Volumes, VOLUME-V1 to VOLUME-V4: `set/volumes.rs`. SET-S13 and SET-S14, clones: `set/pins.rs`. SET-S15 and SET-S16,
//! recovery of snapshots: `set/listed.rs`. SET-S17, where the owner stands: `set/located.rs`. SET-S18, limits of
//! clients: `set/limits.rs`. SET-S19, the times of the group: `set/times.rs`.

mod apply;
mod checkpoint;
mod command;
mod lease;
mod limits;
mod listed;
mod located;
mod pins;
mod refusal;
mod restored;
mod rollback;
mod schedule;
mod space;
mod state;
mod times;
mod volumes;

pub use command::{
    Admit, Judged, REQUESTS_REMEMBERED, RetireOf, SEGMENT_NOTES_MAX, SetAnswer, SetCommand, TTL_DEFAULT, TTL_MS_MAX,
    TTL_MS_MIN, VolumeChange,
};
pub use limits::{
    BURST_MS_DEFAULT, BURST_MS_MAX, BURST_MS_MIN, BYTES_PER_S_MAX, BYTES_PER_S_MIN, IOPS_MAX, IOPS_MIN, Limit,
    LimitError, Limits,
};
pub use listed::{LIST_BYTES_MAX, Listing, SnapshotList};
pub use pins::{CLONE_DEPTH_MAX, CloneOf, Links, PINS_MAX, PinStanding};
pub use refusal::SetRefusal;
pub use restored::{FIRST_GENERATION, GENERATION_MAX, Restored, epoch_base};
pub use schedule::{KEPT_MAX, RULES_MAX, Rule, Schedule, ScheduleError, Taken, name_at};
pub use space::{DROPPED_MAX, RETIRE_OBJECTS_MAX, RETIRED_MAX, SNAPSHOTS_MAX, SPACE_REQUESTS_REMEMBERED, taken};
pub use state::{
    Begin, Checkpoint, EARLIER_TOKENS_MAX, Lease, PendingSnapshot, Pin, RootRef, SegmentNote, SetState, Snapshot,
    SnapshotId, StoredKind, StoredObject, Volume,
};

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;

/// A command that acquires the lease through gateway 1, for three seconds.
#[cfg(test)]
fn acquire_set(owner: &str, token: u128, request: u128, force: bool) -> SetCommand {
    SetCommand::Acquire {
        owner: holdfast_types::Owner::new(owner).expect("owner"),
        gateway: holdfast_types::MemberId(1),
        token: holdfast_types::Token(token),
        ttl_ms: 3000,
        request: holdfast_types::RequestId(request),
        judged_expired: None,
        force,
        plain: false,
        at_unix_ms: 0,
    }
}

/// A command that creates a volume; each name gets its own request.
#[cfg(test)]
fn create_volume(name: impl Into<String>, sectors: u64) -> SetCommand {
    let name = holdfast_types::Name::new(name).expect("name");
    let number = name.as_str().bytes().fold(1_u128 << 100, |number, byte| number.wrapping_mul(257) + u128::from(byte));
    let change = VolumeChange::Create { name, size: holdfast_types::Sectors(sectors) };
    SetCommand::ChangeVolume { change, request: holdfast_types::RequestId(number) }
}
