//! What the planner of sets' voters remembers while this gateway leads group 0 (ADR 0052). `control::placing` decides.

use holdfast_control::cluster::{ClusterState, MemberRole, Standing};
use holdfast_control::following::Turns;
use holdfast_control::placing::{Candidate, LATE, Move, Placed, STALL, View, Violation};
use holdfast_control::policy::Policy;
use holdfast_raft::GroupStatus;
use holdfast_types::{MemberId, Name, SetId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A set weighs what it had at most in this time and the one before: it grows until a checkpoint, and then is small.
const WINDOW: Duration = Duration::from_secs(600);

/// A gateway that does not run a set for less is not told: it starts.
const ABSENT: Duration = Duration::from_secs(60);

/// A set's group, as its leader reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// `None`: no leader reported it this time, and the rest is what the last one did.
    pub(crate) leader: Option<MemberId>,
    /// During a change of voters, those of both sets.
    pub(crate) voters: BTreeSet<MemberId>,
    /// Of these, those whose gateway answered and does not run the group.
    pub(crate) absent: BTreeSet<MemberId>,
    /// The newest entry that each of its learners has applied, by its own word.
    pub(crate) learners: BTreeMap<MemberId, u64>,
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

/// A set on its way to other voters.
struct Way {
    to: BTreeSet<MemberId>,
    since: Instant,
    /// Its group when it last came nearer to its end: the voters, and the entries that its learners had applied.
    at: (BTreeSet<MemberId>, BTreeMap<MemberId, u64>),
    /// When that was.
    nearer: Instant,
}

/// The most of a value that changes, in the present window and in the one before.
struct Peak {
    begun: Instant,
    now: u64,
    before: u64,
}

impl Peak {
    fn note(&mut self, value: u64, at: Instant) {
        if at.saturating_duration_since(self.begun) >= WINDOW {
            (self.begun, self.before, self.now) = (at, self.now, 0);
        }
        self.now = self.now.max(value);
    }

    fn most(&self) -> u64 {
        self.now.max(self.before)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Planned {
    term: Option<Term>,
    /// When this term was entered.
    begun: Option<Instant>,
    /// Members that this leader has never heard of, since it looked for them first.
    unheard: BTreeMap<MemberId, Instant>,
    seen: BTreeMap<SetId, Seen>,
    weights: BTreeMap<SetId, Peak>,
    /// Voters that do not run a set, and since when.
    absent: BTreeMap<(SetId, MemberId), Instant>,
    /// Members that get no further voter now.
    busy: BTreeSet<MemberId>,
    /// The sets that move.
    moving: BTreeMap<SetId, Way>,
    /// Sets of which the metrics tell something, also of an earlier term.
    told: BTreeSet<Name>,
    /// The region of each set's owner, and since when this leader sees it there.
    owners: BTreeMap<SetId, (Name, Instant)>,
    /// In Unix milliseconds.
    since: BTreeMap<SetId, BTreeMap<Violation, u64>>,
    moves: BTreeMap<SetId, Move>,
    /// The result of the last round; `None` before the first.
    wants: Option<Wants>,
    /// The sets whose leadership follows their owner now.
    turns: Turns,
}

/// The changes that the planner still wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// The members that may get further votes.
    pub(crate) takers: BTreeSet<MemberId>,
    /// Of each set, the voters that it is to have and that its record does not name.
    pub(crate) newcomers: BTreeMap<SetId, BTreeSet<MemberId>>,
}

impl Planned {
    /// This gateway leads group 0 in this term; what an earlier term saw is forgotten.
    pub(crate) fn enter(&mut self, term: Option<Term>) {
        if self.term != term {
            let told = std::mem::take(&mut self.told);
            *self = Self { term, begun: term.map(|_| Instant::now()), told, ..Self::default() };
        }
    }

    /// The newest report of each group, and the members that get no further voter. Of a group that no leader reported,
    /// the voters of its last report stay: its move is not over because nobody tells how far it is.
    pub(crate) fn saw(&mut self, mut seen: BTreeMap<SetId, Seen>, busy: BTreeSet<MemberId>, at: Instant) {
        for (set, of) in &seen {
            let weight = self.weights.entry(*set).or_insert(Peak { begun: at, now: 0, before: 0 });
            weight.note(of.bytes, at);
        }
        let absent = seen.iter().flat_map(|(set, of)| of.absent.iter().map(move |id| (*set, *id)));
        self.absent = absent.map(|of| (of, self.absent.get(&of).copied().unwrap_or(at))).collect();
        for (set, last) in std::mem::take(&mut self.seen) {
            seen.entry(set).or_insert(Seen { leader: None, ..last });
        }
        self.owners = self.owners_of(&seen, at);
        (self.seen, self.busy) = (seen, busy);
    }

    /// Whether the weights are known for long enough to make the load even.
    pub(crate) fn knows_weights(&self, at: Instant) -> bool {
        self.begun.is_some_and(|begun| at.saturating_duration_since(begun) >= WINDOW)
    }

    /// How far a set is on its way to `voters`.
    fn way_of(&mut self, set: SetId, voters: &BTreeSet<MemberId>, at: Instant) -> &Way {
        let seen = self.seen.get(&set);
        let is_at = seen.map(|seen| (seen.voters.clone(), seen.learners.clone())).unwrap_or_default();
        let begun = || Way { to: voters.clone(), since: at, at: is_at.clone(), nearer: at };
        let way = self.moving.entry(set).or_insert_with(begun);
        if way.to != *voters {
            *way = begun();
        } else if way.at != is_at {
            (way.at, way.nearer) = (is_at, at);
        }
        way
    }

    /// A set's group and its voters, as the planner sees them. `going`: named, and leaving the cluster. They keep their
    /// vote until their place is given to another (MEMBER-M2): the set does not move, it waits for the planner.
    fn placed(
        &mut self,
        set: SetId,
        policy: Policy,
        voters: BTreeSet<MemberId>,
        going: &BTreeSet<MemberId>,
        at: Instant,
    ) -> Placed {
        let seen = self.seen.get(&set);
        let (leader, now) = (seen.and_then(|seen| seen.leader), seen.map_or(&voters, |seen| &seen.voters).clone());
        let away = |id: &&MemberId| {
            let since = self.absent.get(&(set, **id));
            since.is_some_and(|since| at.saturating_duration_since(*since) >= ABSENT)
        };
        let absent = now.iter().filter(away).copied().collect();
        let moving = !now.difference(going).eq(&voters);
        let (mut late, mut stalled) = (BTreeSet::new(), false);
        if !moving {
            self.moving.remove(&set);
        } else {
            let way = self.way_of(set, &voters, at);
            stalled = at.saturating_duration_since(way.nearer) >= STALL;
            if at.saturating_duration_since(way.since) >= LATE {
                late = voters.difference(&now).copied().collect();
            }
        }
        let bytes = self.weights.get(&set).map_or(0, Peak::most);
        Placed { policy, voters, now, late, absent, leader, bytes, moving, stalled }
    }

    /// The region of each set's owner, and since when it is there.
    fn owners_of(&self, seen: &BTreeMap<SetId, Seen>, at: Instant) -> BTreeMap<SetId, (Name, Instant)> {
        let since = |set: &SetId, region: &Name| {
            let same = self.owners.get(set).filter(|(known, _)| known == region);
            same.map_or(at, |(_, since)| *since)
        };
        let owner = |(set, seen): (&SetId, &Seen)| {
            let region = seen.owner.clone()?;
            let since = since(set, &region);
            Some((*set, (region, since)))
        };
        seen.iter().filter_map(owner).collect()
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
        self.seen.retain(|id, _| state.sets.contains_key(id));
        self.weights.retain(|id, _| state.sets.contains_key(id));
        self.moving.retain(|id, _| state.sets.contains_key(id));
        let at = Instant::now();
        let mut groups = BTreeMap::new();
        for (id, entry) in &state.sets {
            let voters = state.voters_of(entry);
            let going = entry.voters.difference(&voters).copied().collect();
            groups.insert(*id, self.placed(*id, entry.policy.clone(), voters, &going, at));
        }
        let late: BTreeSet<MemberId> = groups.values().flat_map(|placed| placed.late.iter().copied()).collect();
        let mut members = BTreeMap::new();
        for (id, member) in &state.members {
            let silent = if *id == me { None } else { self.silence(*id, group, patience) };
            let candidate = Candidate {
                name: member.name.clone(),
                locality: member.locality.clone(),
                role: member.role,
                standing: member.standing,
                silent,
                busy: self.busy.contains(id) || late.contains(id),
            };
            members.insert(*id, candidate);
        }
        View { members, groups }
    }

    /// Whether this is the term that was entered last: then the results of a round may be noted.
    pub(crate) fn is_of(&self, term: Term) -> bool {
        self.term == Some(term)
    }

    /// Notes the violations of each set. Returns those that are new and those that are over.
    pub(crate) fn note(&mut self, violated: BTreeMap<SetId, Vec<Violation>>, now_unix_ms: u64) -> Vec<Told> {
        let mut told = Vec::new();
        let mut since = BTreeMap::new();
        for (set, violations) in violated {
            let mut before = self.since.remove(&set).unwrap_or_default();
            let mut now = BTreeMap::new();
            for violation in violations {
                let known = before.remove(&violation);
                if known.is_none() {
                    told.push(Told { set, violation: violation.clone(), begun: true });
                }
                now.insert(violation, known.unwrap_or(now_unix_ms));
            }
            told.extend(before.into_keys().map(|violation| Told { set, violation, begun: false }));
            since.insert(set, now);
        }
        self.since = since;
        told
    }

    /// The moves that are proposed now, and those that are to follow; earlier ones are remembered until their groups
    /// have followed.
    pub(crate) fn decide(&mut self, view: &View, moves: &[Move], wants: Wants) {
        self.wants = Some(wants);
        self.moves.retain(|set, _| view.groups.get(set).is_some_and(|placed| placed.moving));
        self.moves.extend(moves.iter().map(|step| (step.group, step.clone())));
    }

    /// What is violated of a set's policy, and since when.
    pub(crate) fn violated(&self, set: SetId) -> impl Iterator<Item = (&Violation, u64)> {
        self.since.get(&set).into_iter().flatten().map(|(violation, since)| (violation, *since))
    }

    /// Since when this is violated, in Unix milliseconds, if it was noted.
    pub(crate) fn since(&self, set: SetId, violation: &Violation) -> Option<u64> {
        self.since.get(&set)?.get(violation).copied()
    }

    /// How much is violated of each of these sets. Once more for a set that is gone: its metric would stay for ever.
    pub(crate) fn gauges(&mut self, sets: impl Iterator<Item = (SetId, Name)>) -> Vec<(Name, usize)> {
        let mut all: Vec<(Name, usize)> = sets.map(|(id, name)| (name, self.violated(id).count())).collect();
        let now: BTreeSet<Name> = all.iter().map(|(name, _)| name.clone()).collect();
        let gone = self.told.difference(&now).cloned().map(|name| (name, 0));
        all.extend(gone);
        self.told = now;
        all
    }

    /// The last move of a set, if its group has not followed yet.
    pub(crate) fn next(&self, set: SetId) -> Option<&Move> {
        self.moves.get(&set)
    }

    /// Whether leadership of a set may go to a nearer voter now (FOLLOW-F4).
    pub(crate) fn gives_turn(&mut self, set: SetId, at: Instant) -> bool {
        self.begun.is_some_and(|begun| self.turns.ask(set, at.saturating_duration_since(begun)))
    }

    /// The changes that the planner still wants, after its first round.
    pub(crate) fn wants(&self) -> Option<&Wants> {
        self.wants.as_ref()
    }

    /// Whether a leader of the set's group has reported it.
    pub(crate) fn is_seen(&self, set: SetId) -> bool {
        self.seen.contains_key(&set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::following::TURN;
    use holdfast_control::placing::{Rules, violations};
    use holdfast_control::policy::Survive;
    use holdfast_types::GroupId;

    const SET: SetId = GroupId(1);
    const RULES: Rules = Rules { replace_after: None, at_once: 2, repairs: 2, balance: true };

    fn view(silent: Option<Duration>) -> View {
        let candidate = |id: u64, region: &str, silent| Candidate {
            name: format!("g{id}").parse().unwrap(),
            locality: region.parse().unwrap(),
            role: MemberRole::Gateway,
            standing: Standing::Active,
            silent,
            busy: false,
        };
        let members = [candidate(1, "eu", None), candidate(2, "us", None), candidate(3, "ap", silent)];
        let policy = Policy { survive: Some(Survive::Region), ..Policy::default() };
        let voters: BTreeSet<MemberId> = (1..=3).map(MemberId).collect();
        let (leader, now) = (voters.first().copied(), voters.clone());
        let (late, absent) = (BTreeSet::new(), BTreeSet::new());
        let placed = Placed { policy, leader, voters, now, late, absent, bytes: 0, moving: false, stalled: false };
        let members = (1..).map(MemberId).zip(members).collect();
        View { members, groups: BTreeMap::from([(SET, placed)]) }
    }

    #[test]
    fn voters_follow_an_owner_only_if_the_policy_names_no_home() {
        const LONG: Duration = Duration::from_secs(900);
        let name = |text: &str| text.parse::<Name>().unwrap();
        let seen = |region: &str| {
            let owner = Some(region).filter(|region| !region.is_empty()).map(name);
            let (voters, absent, learners) = ((1..=3).map(MemberId).collect(), BTreeSet::new(), BTreeMap::new());
            BTreeMap::from([(SET, Seen { leader: Some(MemberId(1)), voters, absent, learners, bytes: 0, owner })])
        };
        let home = |planned: &Planned, view: &View, after: Duration| {
            planned.towards_owners(view, after).groups[&SET].policy.home.as_ref().map(Name::to_string)
        };
        let mut planned = Planned::default();
        let here = view(None);
        planned.saw(seen("us"), BTreeSet::new(), Instant::now());
        assert_eq!(home(&planned, &here, LONG), None, "it has just come");
        assert_eq!(home(&planned, &here, Duration::ZERO).as_deref(), Some("us"));
        planned.saw(seen("sa"), BTreeSet::new(), Instant::now());
        assert_eq!(home(&planned, &here, Duration::ZERO), None, "no gateway is there");
        planned.saw(seen(""), BTreeSet::new(), Instant::now());
        assert_eq!(home(&planned, &here, Duration::ZERO), None, "nobody knows where it stands");
        planned.saw(seen("us"), BTreeSet::new(), Instant::now());
        let mut ruled = here.clone();
        ruled.groups.get_mut(&SET).unwrap().policy.home = Some(name("eu"));
        assert_eq!(home(&planned, &ruled, Duration::ZERO).as_deref(), Some("eu"), "the policy rules");
        let mut forbidden = here;
        forbidden.groups.get_mut(&SET).unwrap().policy.forbidden.insert(name("us"));
        assert_eq!(home(&planned, &forbidden, Duration::ZERO), None, "by law");
    }

    /// What is violated of each set.
    fn violated(view: &View) -> BTreeMap<SetId, Vec<Violation>> {
        view.groups.iter().map(|(set, placed)| (*set, violations(view, placed, &RULES))).collect()
    }

    #[test]
    fn a_violation_has_the_time_at_which_it_began() {
        let mut planned = Planned::default();
        planned.enter(Some(Term(4)));
        assert!(planned.note(violated(&view(None)), 10).is_empty());
        let dead = view(Some(Duration::from_secs(9)));
        assert_eq!(planned.note(violated(&dead), 20).len(), 2, "silent, and one loss is too many");
        assert!(planned.note(violated(&dead), 30).is_empty(), "told once");
        assert!(planned.violated(SET).all(|(_, since)| since == 20));
        let over = planned.note(violated(&view(None)), 40);
        assert!(over.len() == 2 && over.iter().all(|told| !told.begun), "{over:?}");
        planned.note(violated(&dead), 50);
        assert!(planned.violated(SET).all(|(_, since)| since == 50));
        assert!(planned.is_of(Term(4)));
        planned.enter(Some(Term(5)));
        assert_eq!(planned.violated(SET).count(), 0, "another term begins anew");
        assert!(!planned.is_of(Term(4)), "an older round is not noted");
        planned.enter(None);
        assert!(!planned.is_of(Term(5)), "it does not lead");
    }

    fn ids(of: [u64; 3]) -> BTreeSet<MemberId> {
        of.map(MemberId).into()
    }

    /// A leader reports the set on g1, g2 and g3.
    fn saw(planned: &mut Planned, bytes: u64, at: Instant) {
        let (voters, absent, learners) = (ids([1, 2, 3]), BTreeSet::new(), BTreeMap::new());
        let seen = Seen { leader: Some(MemberId(1)), voters, absent, learners, bytes, owner: None };
        planned.saw(BTreeMap::from([(SET, seen)]), BTreeSet::new(), at);
    }

    #[test]
    fn a_move_is_not_over_because_nobody_tells_how_far_it_is() {
        let (mut planned, at) = (Planned::default(), Instant::now());
        planned.enter(Some(Term(4)));
        saw(&mut planned, 0, at);
        let none = BTreeSet::new();
        let placed = |planned: &mut Planned, to, at| planned.placed(SET, Policy::default(), ids(to), &none, at);
        let begun = placed(&mut planned, [1, 2, 4], at);
        assert_eq!((begun.moving, begun.leader, begun.now), (true, Some(MemberId(1)), ids([1, 2, 3])));
        planned.saw(BTreeMap::new(), BTreeSet::new(), at);
        let untold = placed(&mut planned, [1, 2, 4], at + LATE / 2);
        assert_eq!((untold.moving, untold.leader, untold.late.len()), (true, None, 0));
        assert_eq!(placed(&mut planned, [1, 2, 4], at + LATE).late, BTreeSet::from([MemberId(4)]));
        assert!(placed(&mut planned, [1, 2, 5], at + LATE).late.is_empty(), "another one has its time");
        assert_eq!(placed(&mut planned, [1, 2, 5], at + LATE * 2).late, BTreeSet::from([MemberId(5)]));
        assert!(!placed(&mut planned, [1, 2, 3], at + LATE * 2).moving);
        assert!(placed(&mut planned, [1, 2, 5], at + LATE * 2).late.is_empty(), "a new move");
    }

    /// Two sets whose newcomers got nothing kept all others from moving for an hour.
    #[test]
    fn a_move_that_gets_no_nearer_is_stalled() {
        let (mut planned, at) = (Planned::default(), Instant::now());
        planned.enter(Some(Term(4)));
        let mut stalled = |applied: u64, at: Instant| {
            let (leader, voters, absent) = (Some(MemberId(1)), ids([1, 2, 3]), BTreeSet::new());
            let learners = BTreeMap::from([(MemberId(4), applied)]);
            let seen = Seen { leader, voters, absent, learners, bytes: 0, owner: None };
            planned.saw(BTreeMap::from([(SET, seen)]), BTreeSet::new(), at);
            planned.placed(SET, Policy::default(), ids([1, 2, 4]), &BTreeSet::new(), at).stalled
        };
        assert!(!stalled(0, at));
        assert!(!stalled(0, at + STALL / 2));
        assert!(stalled(0, at + STALL));
        assert!(!stalled(7, at + STALL), "it gets something again");
        assert!(!stalled(8, at + STALL * 3 / 2), "it is slow");
        assert!(!stalled(8, at + STALL * 2));
        assert!(stalled(8, at + STALL * 5 / 2));
    }

    #[test]
    fn a_voter_that_does_not_run_a_set_is_told_after_a_while() {
        let (mut planned, at) = (Planned::default(), Instant::now());
        planned.enter(Some(Term(4)));
        let (none, third) = (BTreeSet::new(), BTreeSet::from([MemberId(3)]));
        let mut told = |absent: &BTreeSet<MemberId>, at: Instant| {
            let (leader, voters, absent, learners) =
                (Some(MemberId(1)), ids([1, 2, 3]), absent.clone(), BTreeMap::new());
            let seen = Seen { leader, voters, absent, learners, bytes: 0, owner: None };
            planned.saw(BTreeMap::from([(SET, seen)]), BTreeSet::new(), at);
            planned.placed(SET, Policy::default(), ids([1, 2, 3]), &BTreeSet::new(), at).absent
        };
        assert_eq!(told(&third, at), none, "it may be starting");
        assert_eq!(told(&third, at + ABSENT), third);
        assert_eq!(told(&none, at + ABSENT), none, "it runs");
        assert_eq!(told(&third, at + ABSENT * 2), none, "another time");
    }

    /// MEMBER-M2: the voter that leaves waits for the planner. If the planner waited for it, neither would move.
    #[test]
    fn a_set_with_a_voter_that_leaves_is_not_on_its_way() {
        let (mut planned, at) = (Planned::default(), Instant::now());
        planned.enter(Some(Term(4)));
        saw(&mut planned, 0, at);
        let (stay, leaves) = (BTreeSet::from([MemberId(1), MemberId(2)]), BTreeSet::from([MemberId(3)]));
        assert!(!planned.placed(SET, Policy::default(), stay, &leaves, at).moving);
        let given = planned.placed(SET, Policy::default(), ids([1, 2, 4]), &BTreeSet::new(), at);
        assert!(given.moving, "its place is given to another");
    }

    /// The journal's part of a set grows until a checkpoint and is small then: no reason to move others to and fro.
    #[test]
    fn a_set_weighs_what_it_had_at_most_for_a_while() {
        let (mut planned, at) = (Planned::default(), Instant::now());
        planned.enter(Some(Term(4)));
        let weight = |planned: &mut Planned, bytes, at| {
            saw(planned, bytes, at);
            planned.placed(SET, Policy::default(), ids([1, 2, 3]), &BTreeSet::new(), at).bytes
        };
        assert_eq!(weight(&mut planned, 900, at), 900);
        assert_eq!(weight(&mut planned, 10, at + WINDOW / 2), 900);
        assert_eq!(weight(&mut planned, 10, at + WINDOW), 900);
        assert_eq!(weight(&mut planned, 20, at + WINDOW * 2), 20);
        assert!(!planned.knows_weights(Instant::now()));
        assert!(planned.knows_weights(Instant::now() + WINDOW));
    }

    /// FOLLOW-F4: the turns of the leader before are not known, and still count.
    #[test]
    fn a_new_leader_of_group_0_gives_no_turn_at_first() {
        let (mut planned, at) = (Planned::default(), Instant::now());
        assert!(!planned.gives_turn(SET, at + TURN * 9), "it does not lead");
        planned.enter(Some(Term(4)));
        assert!(!planned.gives_turn(SET, at));
        assert!(planned.gives_turn(SET, at + TURN * 2));
        planned.enter(Some(Term(5)));
        assert!(!planned.gives_turn(SET, at + TURN / 2), "another term begins anew");
    }

    #[test]
    fn the_metric_of_a_set_that_is_gone_is_0() {
        let mut planned = Planned::default();
        planned.enter(Some(Term(4)));
        planned.note(violated(&view(Some(Duration::from_secs(9)))), 10);
        let demo: Name = "demo".parse().unwrap();
        assert_eq!(planned.gauges([(SET, demo.clone())].into_iter()), [(demo.clone(), 2)]);
        planned.enter(Some(Term(5)));
        assert_eq!(planned.gauges(std::iter::empty()), [(demo, 0)]);
        assert!(planned.gauges(std::iter::empty()).is_empty(), "told once");
    }
}
