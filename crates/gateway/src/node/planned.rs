//! What the planner of sets' voters remembers while this gateway leads group 0 (ADR 0052). `control::placing` decides.

use holdfast_control::cluster::{ClusterState, MemberRole, Standing};
use holdfast_control::placing::{Candidate, Move, Placed, Rules, View, Violation, violations};
use holdfast_raft::GroupStatus;
use holdfast_types::{MemberId, Name, SetId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A set's group, as its leader reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) leader: MemberId,
    /// During a change of voters, those of both sets.
    pub(crate) voters: BTreeSet<MemberId>,
    /// What it needs in the leader's journal.
    pub(crate) bytes: u64,
    /// The region of its owner, if that has said where it stands.
    pub(crate) owner: Option<Name>,
}

/// A violation that has begun, or is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) set: SetId,
    pub(crate) violation: Violation,
    pub(crate) begun: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Planned {
    term: Option<Term>,
    /// Members that this leader has never heard of, since it looked for them first.
    unheard: BTreeMap<MemberId, Instant>,
    seen: BTreeMap<SetId, Seen>,
    /// The region of each set's owner, and since when this leader sees it there.
    owners: BTreeMap<SetId, (Name, Instant)>,
    /// In Unix milliseconds.
    since: BTreeMap<SetId, BTreeMap<Violation, u64>>,
    moves: BTreeMap<SetId, Move>,
}

impl Planned {
    /// This gateway leads group 0 in this term; what an earlier term saw is forgotten.
    pub(crate) fn enter(&mut self, term: Option<Term>) {
        if self.term != term {
            *self = Self { term, ..Self::default() };
        }
    }

    /// The newest report of each group. One that no leader reported is unknown from now on.
    pub(crate) fn saw(&mut self, seen: BTreeMap<SetId, Seen>) {
        let before = std::mem::take(&mut self.owners);
        let since = |set: &SetId, region: &Name| {
            let same = before.get(set).filter(|(known, _)| known == region);
            same.map_or_else(Instant::now, |(_, since)| *since)
        };
        let at = |(set, seen): (&SetId, &Seen)| {
            let region = seen.owner.clone()?;
            let since = since(set, &region);
            Some((*set, (region, since)))
        };
        self.owners = seen.iter().filter_map(at).collect();
        self.seen = seen;
    }

    /// The same view, for the planner only: a set whose policy names no home has its home where its owner has been for
    /// `after`, if a gateway is there and may have the set (ADR 0055). Once the owner is gone, the set has no home
    /// again, and nothing moves back.
    pub(crate) fn towards_owners(&self, view: &View, after: Duration) -> View {
        let mut view = view.clone();
        for (set, (region, since)) in &self.owners {
            let Some(placed) = view.groups.get_mut(set) else { continue };
            let there = |member: &Candidate| {
                let serves = member.role == MemberRole::Gateway && member.standing == Standing::Active;
                serves && member.locality.region == *region
            };
            let policy = &mut placed.policy;
            let free = policy.home.is_none() && !policy.forbidden.contains(region);
            if free && since.elapsed() >= after && view.members.values().any(there) {
                policy.home = Some(region.clone());
            }
        }
        view
    }

    /// How long a member has been silent, if it has been for longer than `patience`. One that is not in group 0 yet is.
    fn silence(&mut self, id: MemberId, group: &GroupStatus, patience: Duration) -> Option<Duration> {
        let known = group.members.iter().find(|member| member.member == id);
        if let Some(silent) = known.and_then(|member| member.silent) {
            self.unheard.remove(&id);
            return Some(silent).filter(|silent| *silent > patience);
        }
        // A new leader has not heard of anybody for a moment.
        let unheard = self.unheard.entry(id).or_insert_with(Instant::now).elapsed();
        Some(unheard).filter(|unheard| known.is_none() || *unheard > patience)
    }

    /// What the planner decides by. `group`: the status of group 0 at its leader `me`.
    pub(crate) fn view(&mut self, state: &ClusterState, me: MemberId, group: &GroupStatus, patience: Duration) -> View {
        self.unheard.retain(|id, _| state.members.contains_key(id));
        let candidate = |member: &holdfast_control::cluster::Member, silent| Candidate {
            name: member.name.clone(),
            locality: member.locality.clone(),
            role: member.role,
            standing: member.standing,
            silent,
        };
        let mut members = BTreeMap::new();
        for (id, member) in &state.members {
            let silent = if *id == me { None } else { self.silence(*id, group, patience) };
            members.insert(*id, candidate(member, silent));
        }
        let placed = |(id, entry): (&SetId, &holdfast_control::cluster::SetEntry)| {
            let (voters, seen) = (state.voters_of(entry), self.seen.get(id));
            let placed = Placed {
                policy: entry.policy.clone(),
                leader: seen.map(|seen| seen.leader),
                bytes: seen.map_or(0, |seen| seen.bytes),
                moving: seen.is_some_and(|seen| seen.voters != voters),
                voters,
            };
            (*id, placed)
        };
        View { members, groups: state.sets.iter().map(placed).collect() }
    }

    /// Notes what is violated, and returns what is new and what is over.
    pub(crate) fn note(&mut self, view: &View, rules: &Rules, now_unix_ms: u64) -> Vec<Told> {
        let mut told = Vec::new();
        let mut since = BTreeMap::new();
        for (set, placed) in &view.groups {
            let mut before = self.since.remove(set).unwrap_or_default();
            let mut now = BTreeMap::new();
            for violation in violations(view, placed, rules) {
                let known = before.remove(&violation);
                if known.is_none() {
                    told.push(Told { set: *set, violation: violation.clone(), begun: true });
                }
                now.insert(violation, known.unwrap_or(now_unix_ms));
            }
            told.extend(before.into_keys().map(|violation| Told { set: *set, violation, begun: false }));
            since.insert(*set, now);
        }
        self.since = since;
        told
    }

    /// The moves that are proposed now; earlier ones are remembered until their groups have followed.
    pub(crate) fn decide(&mut self, view: &View, moves: &[Move]) {
        self.moves.retain(|set, _| view.groups.get(set).is_some_and(|placed| placed.moving));
        self.moves.extend(moves.iter().map(|step| (step.group, step.clone())));
    }

    /// What is violated of a set's policy, and since when.
    pub(crate) fn violated(&self, set: SetId) -> impl Iterator<Item = (&Violation, u64)> {
        self.since.get(&set).into_iter().flatten().map(|(violation, since)| (violation, *since))
    }

    /// The last move of a set, if its group has not followed yet.
    pub(crate) fn next(&self, set: SetId) -> Option<&Move> {
        self.moves.get(&set)
    }

    /// Whether a leader of the set's group has reported it.
    pub(crate) fn is_seen(&self, set: SetId) -> bool {
        self.seen.contains_key(&set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::policy::{Policy, Survive};
    use holdfast_types::GroupId;

    const SET: SetId = GroupId(1);
    const RULES: Rules = Rules { replace_after: None, at_once: 2 };

    fn view(silent: Option<Duration>) -> View {
        let candidate = |id: u64, region: &str, silent| Candidate {
            name: format!("g{id}").parse().unwrap(),
            locality: region.parse().unwrap(),
            role: MemberRole::Gateway,
            standing: Standing::Active,
            silent,
        };
        let members = [candidate(1, "eu", None), candidate(2, "us", None), candidate(3, "ap", silent)];
        let policy = Policy { survive: Some(Survive::Region), ..Policy::default() };
        let voters: BTreeSet<MemberId> = (1..=3).map(MemberId).collect();
        let placed = Placed { policy, leader: voters.first().copied(), voters, bytes: 0, moving: false };
        let members = (1..).map(MemberId).zip(members).collect();
        View { members, groups: BTreeMap::from([(SET, placed)]) }
    }

    #[test]
    fn voters_follow_an_owner_only_if_the_policy_names_no_home() {
        const LONG: Duration = Duration::from_secs(900);
        let name = |text: &str| text.parse::<Name>().unwrap();
        let seen = |region: &str| {
            let owner = Some(region).filter(|region| !region.is_empty()).map(name);
            let voters = (1..=3).map(MemberId).collect();
            BTreeMap::from([(SET, Seen { leader: MemberId(1), voters, bytes: 0, owner })])
        };
        let home = |planned: &Planned, view: &View, after: Duration| {
            planned.towards_owners(view, after).groups[&SET].policy.home.as_ref().map(Name::to_string)
        };
        let mut planned = Planned::default();
        let here = view(None);
        planned.saw(seen("us"));
        assert_eq!(home(&planned, &here, LONG), None, "it has just come");
        assert_eq!(home(&planned, &here, Duration::ZERO).as_deref(), Some("us"));
        planned.saw(seen("sa"));
        assert_eq!(home(&planned, &here, Duration::ZERO), None, "no gateway is there");
        planned.saw(seen(""));
        assert_eq!(home(&planned, &here, Duration::ZERO), None, "nobody knows where it stands");
        planned.saw(seen("us"));
        let mut ruled = here.clone();
        ruled.groups.get_mut(&SET).unwrap().policy.home = Some(name("eu"));
        assert_eq!(home(&planned, &ruled, Duration::ZERO).as_deref(), Some("eu"), "the policy rules");
        let mut forbidden = here;
        forbidden.groups.get_mut(&SET).unwrap().policy.forbidden.insert(name("us"));
        assert_eq!(home(&planned, &forbidden, Duration::ZERO), None, "by law");
    }

    #[test]
    fn a_violation_has_the_time_at_which_it_began() {
        let mut planned = Planned::default();
        planned.enter(Some(Term(4)));
        assert!(planned.note(&view(None), &RULES, 10).is_empty());
        let dead = view(Some(Duration::from_secs(9)));
        assert_eq!(planned.note(&dead, &RULES, 20).len(), 2, "silent, and one loss is too many");
        assert!(planned.note(&dead, &RULES, 30).is_empty(), "told once");
        assert!(planned.violated(SET).all(|(_, since)| since == 20));
        let over = planned.note(&view(None), &RULES, 40);
        assert!(over.len() == 2 && over.iter().all(|told| !told.begun), "{over:?}");
        planned.note(&dead, &RULES, 50);
        assert!(planned.violated(SET).all(|(_, since)| since == 50));
        planned.enter(Some(Term(5)));
        assert_eq!(planned.violated(SET).count(), 0, "another term begins anew");
    }
}
