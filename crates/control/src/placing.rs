//! Which members are to be a set's voters: decided by the leader of group 0 from what it sees, again and again (ADR
//! 0052). Group 0 keeps the decision, and each group follows it (`members`). Pure: the same view gives the same plan.
//!
//! PLACING-P1  No move violates survival further: after it, a majority lacks no more voters than before it once one
//!     domain is lost (a host, zone or region, as the policy says), and no more domains are such that their loss leaves
//!     no voter that serves. The group goes there by such states only (`members::step_of`). "Before" is what the record
//!     names, and what the group still has while an earlier move is not done.
//! PLACING-P2  It ends: each move lowers a cost that has a least value, first of constraints, then of balance. A
//!     newcomer that was late is not tried again and again for what is only better.
//! PLACING-P3  One move at a time for each set, and [`Rules::at_once`] in the whole cluster; [`Rules::repairs`] where a
//!     lost or leaving voter is replaced, or a loss is survived again. A set without a leader gets none: its group
//!     could not follow. A move that is stalled, or takes longer than [`LATE`], counts no more: two groups that lost
//!     their quorum meanwhile would keep all others from moving.
//! PLACING-P4  A group gets fewer voters than its policy asks for only if one loss would stop it as it is, nobody can
//!     take the place of the lost voters, and three or more are left that answer and survive the loss of any one
//!     domain. So every acknowledged entry survives it as well. No group is left with fewer than three voters while
//!     three may vote.
//!
//! Terms: a *candidate* is a member as the planner sees it. It is *silent* if it does not answer, *lost* if that lasts
//! for longer than `replace_after`. A *newcomer* is to be a voter and is none yet; it is *late* if that lasts for too
//! long, and another one gets its place. One that has all entries and waits for another newcomer is not late. A
//! *domain* is what fails as one.

mod board;
mod choose;
mod cluster;
mod possible;
mod violations;

pub use choose::{ends, first_voters, may_get, newcomers, plan};
pub use cluster::{CLUSTER_REPLACE_AFTER, ClusterVoters, cluster_policy, cluster_size, cluster_voters};
pub use possible::{Impossible, possible};
pub use violations::{Violation, reasons, violations};

use crate::cluster::{MemberRole, Standing};
use crate::policy::{Policy, Survive};
use holdfast_types::{GroupId, Locality, MemberId, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// A set weighs as much as this many bytes in its voters' journals even if it is idle.
pub const SET_WEIGHT: u64 = 64 << 20;

/// A newcomer that is no voter after this time is late. A whole journal of 8 GiB comes at 20 Mbit/s meanwhile.
pub const LATE: Duration = Duration::from_secs(3600);

/// A move whose newcomers get nothing for so long is stalled. A state snapshot of 64 MiB comes at 2 Mbit/s meanwhile.
pub const STALL: Duration = Duration::from_secs(300);

/// A member as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// For texts.
    pub name: Name,
    /// Where it stands.
    pub locality: Locality,
    /// Its role.
    pub role: MemberRole,
    /// Its standing.
    pub standing: Standing,
    /// How long it has not answered; `None` if it answered a moment ago.
    pub silent: Option<Duration>,
    /// It gets no further voter now: its journal is filling or waits for its disk, or it is late with another set.
    pub busy: bool,
    /// It was late not long ago: it gets further voters only where more losses are survived then, or fewer voters lost.
    pub slow: bool,
}

/// A group as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What it asks.
    pub policy: Policy,
    /// The voters that it is to have.
    pub voters: BTreeSet<MemberId>,
    /// The voters that its group has, as a leader reported them last; those that it is to have if none has.
    pub now: BTreeSet<MemberId>,
    /// Newcomers among the voters that it is to have that are late.
    pub late: BTreeSet<MemberId>,
    /// Voters whose gateway answers and does not run the group: its store does not open there, or its part there cannot
    /// be read. It is told, and no reason for a move: who repairs the gateway has the voter back.
    pub absent: BTreeSet<MemberId>,
    /// Its leader, if known.
    pub leader: Option<MemberId>,
    /// Bytes that it needs in the journal of each voter.
    pub bytes: u64,
    /// Its voters are not yet those that it is to have.
    pub moving: bool,
    /// And that for longer than [`LATE`]: other sets do not wait for it.
    pub overdue: bool,
    /// It moves, and has been no nearer to its end for [`STALL`]: other sets do not wait for it.
    pub stalled: bool,
}

/// What the planner decides by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// All members.
    pub members: BTreeMap<MemberId, Candidate>,
    /// All groups that follow their voters in group 0.
    pub groups: BTreeMap<GroupId, Placed>,
}

/// Limits of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A voter that is silent for longer is replaced. `None`: never.
    pub replace_after: Option<Duration>,
    /// Most groups that move at the same time. 0: nothing moves.
    pub at_once: usize,
    /// Like `at_once`, for moves by which a group survives more, or gets rid of a voter that is lost, leaves, or is
    /// where none may be. Others wait for these.
    pub repairs: usize,
    /// Whether to make the load even as well: not before the load of a while is known.
    pub balance: bool,
}

/// One group gets other voters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The group.
    pub group: GroupId,
    /// The voters that the planner saw.
    pub from: BTreeSet<MemberId>,
    /// The voters that it is to have.
    pub to: BTreeSet<MemberId>,
    /// For people.
    pub why: Why,
}

/// What a move improves. The text is for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The policy's loss.
    #[error("it then survives more losses")]
    Survival,
    /// A voter that is lost, leaves, or is where none may be.
    #[error("a voter is lost, is leaving, or is in a forbidden region")]
    Unusable,
    /// Lost voters without a substitute (PLACING-P4).
    #[error("nobody can replace the lost voters: with fewer voters it survives another loss")]
    Fewer,
    /// Fewer or more voters than the policy asks for.
    #[error("the number of voters is not that of its policy")]
    Number,
    /// For maintenance.
    #[error("a voter is drained")]
    Drained,
    /// More voters in the home region.
    #[error("a voter moves to the home region")]
    Home,
    /// Journals and leaderships.
    #[error("journals and leaderships become more even")]
    Balance,
}

impl Candidate {
    /// Whether it may get further votes now.
    pub fn takes_votes(&self) -> bool {
        self.standing != Standing::Leaving && self.silent.is_none() && !self.busy
    }

    /// Whether its entries count as gone for good: it leaves, or has been silent for too long.
    fn lost(&self, replace_after: Option<Duration>) -> bool {
        let too_long = |silent: Duration| replace_after.is_some_and(|limit| silent >= limit);
        self.standing == Standing::Leaving || self.silent.is_some_and(too_long)
    }

    /// Whether it may be a voter by the policy and by its standing, dead or alive.
    fn allowed(&self, policy: &Policy) -> bool {
        self.standing != Standing::Leaving && !policy.forbidden.contains(&self.locality.region)
    }
}

/// What fails as one at a level. The text is for display.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// A region.
    Region(Name),
    /// A zone, or a region without named zones.
    Zone(Name, Option<Name>),
    /// A machine with a name.
    Host(Name, Option<Name>, Name),
    /// A gateway whose machine has no name: a machine of its own.
    Gateway(Name, MemberId),
}

impl Domain {
    /// Of a candidate.
    pub fn of(level: Survive, id: MemberId, candidate: &Candidate) -> Self {
        Self::at(level, id, &candidate.name, &candidate.locality)
    }

    /// Of a member with this name that stands there.
    pub fn at(level: Survive, id: MemberId, name: &Name, locality: &Locality) -> Self {
        let Locality { region, zone, host } = locality.clone();
        match (level, host) {
            (Survive::Region, _) => Self::Region(region),
            (Survive::Zone, _) => Self::Zone(region, zone),
            (Survive::Host, Some(host)) => Self::Host(region, zone, host),
            (Survive::Host, None) => Self::Gateway(name.clone(), id),
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(region) | Self::Zone(region, None) => write!(f, "region {region}"),
            Self::Zone(region, Some(zone)) => write!(f, "zone {region}/{zone}"),
            Self::Host(region, None, host) => write!(f, "host {region}/{host}"),
            Self::Host(region, Some(zone), host) => write!(f, "host {region}/{zone}/{host}"),
            Self::Gateway(name, _) => write!(f, "gateway {name}"),
        }
    }
}

#[cfg(test)]
mod tests;
