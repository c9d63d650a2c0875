//! One group's candidates as numbers, and what a choice of voters costs. A choice is a set of bits in the order of ids.

use super::possible::room;
use super::{Candidate, Domain, Placed, View};
use crate::cluster::{MemberRole, Standing};
use crate::policy::Survive;
use holdfast_types::{MemberId, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Voters, one bit each.
pub(super) type Choice = u64;

/// More candidates do not fit into a [`Choice`]; a cluster has fewer (`MEMBERS_MAX`).
const SEATS_MAX: usize = 64;

/// Fewest voters of a group that survives a loss: two survive none.
const LEAST: u32 = 3;

/// What is wrong with a choice, the worst first. All zero, the default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// Voters that a majority lacks after the worst loss of one domain.
    pub(super) short: u32,
    /// Domains whose loss leaves no voter that serves.
    pub(super) unserved: u32,
    /// Voters that are lost, leaving, or in a forbidden region.
    pub(super) unusable: u32,
    /// Voters that a group lacks to survive any loss at all ([`LEAST`]).
    pub(super) few: u32,
    /// Voters beyond what each domain may have.
    pub(super) crowded: u32,
    /// Voters too few or too many.
    pub(super) number: u32,
    /// Drained voters.
    pub(super) drained: u32,
    /// Voters outside of the home region.
    pub(super) away: u32,
}

/// One candidate.
struct Seat {
    id: MemberId,
    /// Number of its domain at the level that counts.
    domain: usize,
    /// Number of its region.
    region: usize,
    lost: bool,
    leaves: bool,
    allowed: bool,
    /// Silent, or busy with none of this group: it gets no further voter now.
    waits: bool,
    /// It was late not long ago, and has nothing of this group.
    slow: bool,
    silent: bool,
    drained: bool,
    serves: bool,
    home: bool,
    gateway: bool,
}

/// A group and its candidates.
pub(super) struct Board {
    seats: Vec<Seat>,
    domains: Vec<Domain>,
    /// Voters that it should have.
    wanted: u32,
    /// The group has a leader: it is no set that is to be made.
    exists: bool,
    /// The level that counts.
    pub(super) level: Survive,
    /// Whether the policy asks for that level, or the members allow it.
    pub(super) promised: bool,
}

/// Number of each value in the order of values.
fn numbers<T: Ord>(of: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let values: BTreeSet<T> = of.collect();
    values.into_iter().enumerate().map(|(at, value)| (value, at)).collect()
}

/// Voters that a group of so many allowed members should have: no even number, except two of two.
pub(super) fn wanted(voters: u8, allowed: usize) -> usize {
    match allowed.min(voters.into()) {
        4 => 3,
        wanted => wanted,
    }
}

impl Board {
    pub(super) fn new(view: &View, placed: &Placed, replace_after: Option<Duration>) -> Self {
        let policy = &placed.policy;
        let members = || view.members.iter().take(SEATS_MAX);
        let allowed = members().filter(|(_, member)| member.allowed(policy)).count();
        let usable = members().filter(|(_, member)| member.allowed(policy) && !member.lost(replace_after));
        let usable: Vec<(MemberId, &Candidate)> = usable.map(|(id, member)| (*id, member)).collect();
        // Lost members take no part. The others keep the promise, with fewer voters if they are too few (PLACING-P4).
        let [wanted, there] = [allowed, usable.len()].map(|members| wanted(policy.voters, members));
        let reachable = |level: &Survive| there >= 3 && room(*level, &usable, there).is_ok();
        let widest = Survive::ALL.into_iter().find(reachable);
        let level = policy.survive.or(widest).unwrap_or(Survive::Host);
        let domains = numbers(members().map(|(id, member)| Domain::of(level, *id, member)));
        let regions: BTreeMap<Name, usize> = numbers(members().map(|(_, member)| member.locality.region.clone()));
        let seat = |(id, member): (&MemberId, &Candidate)| Seat {
            id: *id,
            domain: domains.get(&Domain::of(level, *id, member)).copied().unwrap_or_default(),
            region: regions.get(&member.locality.region).copied().unwrap_or_default(),
            // One that is late with this group is as good as none.
            lost: member.lost(replace_after) || placed.late.contains(id),
            leaves: member.standing == Standing::Leaving,
            // One that has its part of the group needs no further room for it.
            waits: member.silent.is_some() || member.busy && !placed.now.contains(id),
            slow: member.slow && !placed.now.contains(id),
            allowed: member.allowed(policy),
            silent: member.silent.is_some() || placed.absent.contains(id),
            drained: member.standing == Standing::Drained,
            serves: member.role == MemberRole::Gateway && member.standing != Standing::Leaving,
            home: policy.home.as_ref().is_none_or(|home| *home == member.locality.region),
            gateway: member.role == MemberRole::Gateway,
        };
        Self {
            seats: members().map(seat).collect(),
            domains: domains.into_keys().collect(),
            wanted: wanted as u32,
            exists: placed.leader.is_some(),
            level,
            promised: policy.survive.is_some() || widest.is_some(),
        }
    }

    /// The choice of these members. Unknown ones are left out.
    pub(super) fn choice(&self, voters: &BTreeSet<MemberId>) -> Choice {
        self.seats
            .iter()
            .enumerate()
            .filter(|(_, seat)| voters.contains(&seat.id))
            .fold(0, |all, (at, _)| all | (1_u64 << at))
    }

    pub(super) fn members(&self, choice: Choice) -> BTreeSet<MemberId> {
        self.chosen(choice).map(|(_, seat)| seat.id).collect()
    }

    fn chosen(&self, choice: Choice) -> impl Iterator<Item = (usize, &Seat)> {
        self.seats.iter().enumerate().filter(move |(at, _)| choice & (1_u64 << at) != 0)
    }

    pub(super) fn wanted(&self) -> u32 {
        self.wanted
    }

    /// No move leaves fewer voters, also if some are lost or crowded: [`LEAST`], or all that there may be.
    pub(super) fn least(&self) -> u32 {
        LEAST.min(self.wanted)
    }

    /// The places of `choice`.
    pub(super) fn taken(&self, choice: Choice) -> Vec<usize> {
        self.chosen(choice).map(|(at, _)| at).collect()
    }

    /// The places that could be added to `choice`: those that can take part now.
    pub(super) fn free(&self, choice: Choice) -> Vec<usize> {
        let free =
            |(at, seat): &(usize, &Seat)| choice & (1_u64 << *at) == 0 && seat.allowed && !seat.lost && !seat.waits;
        self.seats.iter().enumerate().filter(free).map(|(at, _)| at).collect()
    }

    pub(super) fn id(&self, at: usize) -> MemberId {
        self.seats[at].id
    }

    /// Whether a voter may move from one place to the other only to make the load even.
    pub(super) fn alike(&self, from: usize, to: usize) -> bool {
        let to = &self.seats[to];
        self.seats[from].gateway == to.gateway && !to.drained && !to.slow
    }

    /// Of a choice, the voters that were late not long ago.
    pub(super) fn slow(&self, choice: Choice) -> u32 {
        self.chosen(choice).filter(|(_, seat)| seat.slow).count() as u32
    }

    /// Whether group 0 accepts these voters: all stay, and one may serve some day (VOTERS-V1).
    pub(super) fn is_accepted(&self, choice: Choice) -> bool {
        self.chosen(choice).any(|(_, seat)| seat.serves) && self.chosen(choice).all(|(_, seat)| !seat.leaves)
    }

    pub(super) fn unusable(&self, choice: Choice) -> u32 {
        self.chosen(choice).filter(|(_, seat)| seat.lost || !seat.allowed).count() as u32
    }

    /// Whether a majority of a choice is not lost: without it the group cannot follow any move.
    pub(super) fn has_majority(&self, choice: Choice) -> bool {
        self.chosen(choice).filter(|(_, seat)| !seat.lost).count() as u32 > choice.count_ones() / 2
    }

    /// Of a choice, the voters that do not answer now, the regions that a commit may cross, and the witnesses.
    pub(super) fn preference(&self, choice: Choice) -> (u32, u32, u32) {
        let count = |fits: &dyn Fn(&Seat) -> bool| self.chosen(choice).filter(|(_, seat)| fits(seat)).count() as u32;
        let regions: BTreeSet<usize> = self.chosen(choice).map(|(_, seat)| seat.region).collect();
        (count(&|seat| seat.silent), regions.len() as u32, count(&|seat| !seat.gateway))
    }

    /// The domain whose loss is the worst, the voters that it leaves, and how many a majority needs. With `silent_too`,
    /// voters that do not answer count as gone already.
    pub(super) fn worst_loss(&self, choice: Choice, silent_too: bool) -> Option<(&Domain, u32, u32)> {
        let there = |seat: &Seat| !(seat.lost || silent_too && seat.silent);
        let all = choice.count_ones();
        let left = |domain: usize| self.chosen(choice).filter(|(_, s)| s.domain != domain && there(s)).count() as u32;
        let domains: BTreeSet<usize> = self.chosen(choice).map(|(_, seat)| seat.domain).collect();
        let (left, domain) = domains.into_iter().map(|domain| (left(domain), domain)).min()?;
        Some((&self.domains[domain], left, all / 2 + 1))
    }

    /// The domains whose loss leaves no voter that serves.
    pub(super) fn unserved(&self, choice: Choice) -> Vec<&Domain> {
        let serves = |domain: usize| self.chosen(choice).any(|(_, s)| s.domain != domain && s.serves && !s.lost);
        let domains: BTreeSet<usize> = self.chosen(choice).map(|(_, seat)| seat.domain).collect();
        domains.into_iter().filter(|domain| !serves(*domain)).map(|domain| &self.domains[domain]).collect()
    }

    pub(super) fn cost(&self, choice: Choice) -> Cost {
        let all = choice.count_ones();
        let short = self.worst_loss(choice, false).map_or(0, |(_, left, needed)| needed.saturating_sub(left));
        let mut each = vec![0_u32; self.domains.len()];
        for (_, seat) in self.chosen(choice) {
            each[seat.domain] += 1;
        }
        // What a majority can lose; a group of one or two can lose nothing, and is spread all the same.
        let most = (all.saturating_sub(1) / 2).max(1);
        let count = |fits: &dyn Fn(&Seat) -> bool| self.chosen(choice).filter(|(_, seat)| fits(seat)).count() as u32;
        // A new set is spread first, and filled up by who is silent now (`first_voters`).
        let least = if self.exists { self.least() } else { 0 };
        Cost {
            short,
            unserved: self.unserved(choice).len() as u32,
            unusable: self.unusable(choice),
            few: least.saturating_sub(all),
            crowded: each.into_iter().map(|found| found.saturating_sub(most)).sum(),
            number: all.abs_diff(self.wanted),
            drained: count(&|seat| seat.drained),
            away: count(&|seat| !seat.home),
        }
    }
}
