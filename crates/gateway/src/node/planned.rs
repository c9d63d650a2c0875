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

/// What a gateway said counts for so long while it does not answer in time. Whether it is lost is decided by the
/// heartbeats of group 0 alone.
const UNSAID: Duration = Duration::from_secs(60);

/// A gateway that was late gets votes for so long only where they are needed.
const AVOIDED: Duration = Duration::from_secs(6 * 3600);

/// A set's group, as its leader reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupReport {
    /// `None`: no leader reported it this time, and the rest is what the last one did.
    pub(crate) leader: Option<MemberId>,
    /// During a change of voters, those of both sets.
    pub(crate) voters: BTreeSet<MemberId>,
    /// The learners that follow it and have nearly all entries.
    pub(crate) near: BTreeSet<MemberId>,
    /// The newest entry that each of its learners has applied, by its own word.
    pub(crate) learners: BTreeMap<MemberId, u64>,
    /// What it needs in the leader's journal.
    pub(crate) bytes: u64,
    /// The region of its owner, if that has said where it stands.
    pub(crate) owner: Option<Name>,
}

/// Which gateways answered, and which groups they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    pub(crate) answers: BTreeSet<MemberId>,
    /// Those that did not answer in time, and perhaps would have later.
    pub(crate) late: BTreeSet<MemberId>,
    pub(crate) groups: BTreeSet<(SetId, MemberId)>,
}

impl Runs {
    /// Whether the gateway answered, and does not run the set.
    fn lacks(&self, set: SetId, id: MemberId) -> bool {
        self.answers.contains(&id) && !self.groups.contains(&(set, id))
    }
}

/// A violation that has begun, or is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ViolationChange {
    pub(crate) set: SetId,
    pub(crate) violation: Violation,
    pub(crate) begun: bool,
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

/// A set on its way to other voters.
struct Way {
    to: BTreeSet<MemberId>,
    since: Instant,
    /// Newcomers that had nearly all entries at some time.
    near: BTreeSet<MemberId>,
    /// Its group when it last came nearer to its end: the voters, and the entries that its learners had applied.
    at: (BTreeSet<MemberId>, BTreeMap<MemberId, u64>),
    /// When that was.
    nearer: Instant,
}

impl Way {
    /// The newcomers that are late, once the time is over. One that has nearly all entries may wait for another one
    /// (MEMBER-M2), and is not late unless all have them.
    fn late(&self, now: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
        let newcomers: BTreeSet<MemberId> = self.to.difference(now).copied().collect();
        let behind: BTreeSet<MemberId> = newcomers.difference(&self.near).copied().collect();
        if behind.is_empty() { newcomers } else { behind }
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
    seen: BTreeMap<SetId, GroupReport>,
    weights: BTreeMap<SetId, Peak>,
    runs: Runs,
    /// When each gateway answered last.
    answered: BTreeMap<MemberId, Instant>,
    /// Voters of each set that do not run it although they answer, and since when.
    absent: BTreeMap<SetId, BTreeMap<MemberId, Instant>>,
    /// Members that get no further voter now.
    busy: BTreeSet<MemberId>,
    /// Sets that move.
    moving: BTreeMap<SetId, Way>,
    /// When a member was late last.
    slow: BTreeMap<MemberId, Instant>,
    /// Sets that have metrics, also of an earlier term.
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
    /// Of each member that leaves, the sets that it has no part in, as it said once. It is for good.
    away: BTreeMap<MemberId, BTreeSet<SetId>>,
    /// Members that follow group 0 and are to get no vote there. `None`: this leader has not decided yet.
    learners: Option<BTreeSet<MemberId>>,
}

/// The changes that the planner still wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// The members that may get further votes.
    pub(crate) takers: BTreeSet<MemberId>,
    /// For each set: new voters that the set's record does not list yet.
    pub(crate) newcomers: BTreeMap<SetId, BTreeSet<MemberId>>,
}

impl Planned {
    /// This gateway leads group 0 in this term; what an earlier term saw is forgotten. A call that began in an earlier
    /// term changes nothing.
    pub(crate) fn enter(&mut self, term: Option<Term>) {
        let is_late = term.is_some() && term < self.term;
        if self.term != term && !is_late {
            let told = std::mem::take(&mut self.told);
            *self = Self { term, begun: term.map(|_| Instant::now()), told, ..Self::default() };
        }
    }

    /// The newest report of each group, what runs where, and the members that get no further voter. Of a group that no
    /// leader reported, the voters of its last report stay: its move is not over because nobody tells how far it is.
    ///
    /// A gateway that only did not answer in time is as it was a moment ago: it leads what it led, and has room if it
    /// had room. Otherwise nothing would move to, from and on one that is far away.
    pub(crate) fn saw(
        &mut self,
        mut seen: BTreeMap<SetId, GroupReport>,
        runs: Runs,
        mut busy: BTreeSet<MemberId>,
        at: Instant,
    ) {
        self.answered.extend(runs.answers.iter().map(|id| (*id, at)));
        let lately =
            |id: &MemberId| self.answered.get(id).is_some_and(|said| at.saturating_duration_since(*said) < UNSAID);
        let late: BTreeSet<MemberId> = runs.late.iter().copied().filter(lately).collect();
        busy.extend(runs.late.iter().filter(|id| !late.contains(*id) || self.busy.contains(*id)));
        for (set, of) in &seen {
            let weight = self.weights.entry(*set).or_insert(Peak { begun: at, now: 0, before: 0 });
            weight.note(of.bytes, at);
        }
        for (set, last) in std::mem::take(&mut self.seen) {
            let leader = last.leader.filter(|id| late.contains(id));
            seen.entry(set).or_insert(GroupReport { leader, ..last });
        }
        self.owners = self.owners_of(&seen, at);
        (self.seen, self.runs, self.busy) = (seen, runs, busy);
    }

    /// What leaving members said of sets that they have no part in.
    pub(crate) fn note_away(&mut self, away: BTreeMap<MemberId, BTreeSet<SetId>>) {
        for (id, sets) in away {
            self.away.entry(id).or_default().extend(sets);
        }
    }

    /// The sets that each leaving member has no part in, for good.
    pub(crate) fn away(&self) -> &BTreeMap<MemberId, BTreeSet<SetId>> {
        &self.away
    }

    /// Whether the weights are known for long enough to make the load even.
    pub(crate) fn knows_weights(&self, at: Instant) -> bool {
        self.begun.is_some_and(|begun| at.saturating_duration_since(begun) >= WINDOW)
    }

    /// The way of a set to `voters`, since it has been on it, and how far it is.
    fn way_to(&mut self, set: SetId, voters: &BTreeSet<MemberId>, at: Instant) -> &Way {
        let seen = self.seen.get(&set);
        let is_at = seen.map(|seen| (seen.voters.clone(), seen.learners.clone())).unwrap_or_default();
        let near = seen.map(|seen| seen.near.clone()).unwrap_or_default();
        let begin = || Way { to: voters.clone(), since: at, near: BTreeSet::new(), at: is_at.clone(), nearer: at };
        let way = self.moving.entry(set).or_insert_with(begin);
        if way.to != *voters {
            *way = begin();
        } else if way.at != is_at {
            (way.at, way.nearer) = (is_at, at);
        }
        way.near.extend(near);
        way
    }

    /// Of a set's voters, those that have not run it for a while although they answer. Nobody needs to lead it: it may
    /// have no leader for this very reason.
    fn absent_of(&mut self, set: SetId, voters: &BTreeSet<MemberId>, at: Instant) -> BTreeSet<MemberId> {
        let before = self.absent.remove(&set).unwrap_or_default();
        let lack = voters.iter().filter(|id| self.runs.lacks(set, **id));
        let now: BTreeMap<MemberId, Instant> = lack.map(|id| (*id, before.get(id).copied().unwrap_or(at))).collect();
        let long = |since: &Instant| at.saturating_duration_since(*since) >= ABSENT;
        let absent = now.iter().filter(|(_, since)| long(since)).map(|(id, _)| *id).collect();
        if !now.is_empty() {
            self.absent.insert(set, now);
        }
        absent
    }

    /// A set's group and its voters, as the planner sees them. `going`: named, and leaving the cluster. They keep their
    /// vote until their place is given to another (MEMBER-M2): the set does not move, it waits for the planner. So does
    /// one that is on its way to a newcomer that leaves before it votes: that one is among its voters still, as a lost
    /// one.
    fn placed(
        &mut self,
        set: SetId,
        policy: Policy,
        mut voters: BTreeSet<MemberId>,
        going: &BTreeSet<MemberId>,
        at: Instant,
    ) -> Placed {
        let seen = self.seen.get(&set);
        let (leader, now) = (seen.and_then(|seen| seen.leader), seen.map_or(&voters, |seen| &seen.voters).clone());
        let absent = self.absent_of(set, &now, at);
        let moving = !now.difference(going).eq(&voters);
        let (mut late, mut overdue, mut stalled) = (BTreeSet::new(), false, false);
        if moving {
            voters.extend(going.difference(&now));
            let way = self.way_to(set, &voters, at);
            stalled = at.saturating_duration_since(way.nearer) >= STALL;
            overdue = at.saturating_duration_since(way.since) >= LATE;
            if overdue {
                late = way.late(&now);
            }
        } else {
            self.moving.remove(&set);
        }
        let bytes = self.weights.get(&set).map_or(0, Peak::most);
        Placed { policy, voters, now, late, absent, leader, bytes, moving, overdue, stalled }
    }

    /// The region of each set's owner, and since when it is there.
    fn owners_of(&self, seen: &BTreeMap<SetId, GroupReport>, at: Instant) -> BTreeMap<SetId, (Name, Instant)> {
        let since = |set: &SetId, region: &Name| {
            let same = self.owners.get(set).filter(|(known, _)| known == region);
            same.map_or(at, |(_, since)| *since)
        };
        let owner = |(set, seen): (&SetId, &GroupReport)| {
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

    /// The members as candidates for a vote in group 0, at its leader `me`. `close`: those that follow it and have
    /// nearly all of it. What else they have to do does not count: group 0 is small.
    pub(crate) fn cluster_members(
        &mut self,
        state: &ClusterState,
        me: MemberId,
        group: &GroupStatus,
        close: &BTreeSet<MemberId>,
        patience: Duration,
    ) -> BTreeMap<MemberId, Candidate> {
        self.unheard.retain(|id, _| state.members.contains_key(id));
        let mut members = BTreeMap::new();
        for (id, member) in &state.members {
            let candidate = Candidate {
                name: member.name.clone(),
                locality: member.locality.clone(),
                role: member.role,
                standing: member.standing,
                silent: if *id == me { None } else { self.silence(*id, group, patience) },
                busy: !close.contains(id),
                slow: false,
            };
            members.insert(*id, candidate);
        }
        members
    }

    /// Notes the members that follow group 0 and are to get no vote there.
    pub(crate) fn note_learners(&mut self, learners: BTreeSet<MemberId>) {
        self.learners = Some(learners);
    }

    /// These, once this leader has decided.
    pub(crate) fn learners(&self) -> Option<&BTreeSet<MemberId>> {
        self.learners.as_ref()
    }

    /// Remembers who is late. Its moves would begin again as soon as another one has its place.
    fn avoid(&mut self, late: &BTreeSet<MemberId>, at: Instant) {
        self.slow.extend(late.iter().map(|id| (*id, at)));
        self.slow.retain(|_, since| at.saturating_duration_since(*since) < AVOIDED);
    }

    /// What the planner decides by. `group`: the status of group 0 at its leader `me`.
    pub(crate) fn view(&mut self, state: &ClusterState, me: MemberId, group: &GroupStatus, patience: Duration) -> View {
        self.unheard.retain(|id, _| state.members.contains_key(id));
        self.away.retain(|id, _| state.members.contains_key(id));
        self.answered.retain(|id, _| state.members.contains_key(id));
        self.seen.retain(|id, _| state.sets.contains_key(id));
        self.weights.retain(|id, _| state.sets.contains_key(id));
        self.moving.retain(|id, _| state.sets.contains_key(id));
        self.absent.retain(|id, _| state.sets.contains_key(id));
        let at = Instant::now();
        let mut groups = BTreeMap::new();
        for (id, entry) in &state.sets {
            let voters = state.voters_of(entry);
            // One that was removed is on its way nowhere.
            let leaves = |id: &&MemberId| state.members.contains_key(id);
            let going = entry.voters.difference(&voters).filter(leaves).copied().collect();
            groups.insert(*id, self.placed(*id, entry.policy.clone(), voters, &going, at));
        }
        let late: BTreeSet<MemberId> = groups.values().flat_map(|placed| placed.late.iter().copied()).collect();
        self.avoid(&late, at);
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
                slow: self.slow.contains_key(id),
            };
            members.insert(*id, candidate);
        }
        // What it led before it became too slow to answer counts only while group 0 hears of it.
        let gone = |id: &MemberId| {
            let silent = members.get(id).is_some_and(|member: &Candidate| member.silent.is_some());
            silent && self.runs.late.contains(id)
        };
        for placed in groups.values_mut() {
            placed.leader = placed.leader.filter(|id| !gone(id));
        }
        View { members, groups }
    }

    /// Whether this is the term that was entered last: then the results of a round may be noted.
    pub(crate) fn is_of(&self, term: Term) -> bool {
        self.term == Some(term)
    }

    /// Notes the violations of each set. Returns those that are new and those that are over.
    pub(crate) fn note(&mut self, violated: BTreeMap<SetId, Vec<Violation>>, now_unix_ms: u64) -> Vec<ViolationChange> {
        let mut told = Vec::new();
        let mut since = BTreeMap::new();
        for (set, violations) in violated {
            let mut before = self.since.remove(&set).unwrap_or_default();
            let mut now = BTreeMap::new();
            for violation in violations {
                let known = before.remove(&violation);
                if known.is_none() {
                    told.push(ViolationChange { set, violation: violation.clone(), begun: true });
                }
                now.insert(violation, known.unwrap_or(now_unix_ms));
            }
            told.extend(before.into_keys().map(|violation| ViolationChange { set, violation, begun: false }));
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
mod tests;
