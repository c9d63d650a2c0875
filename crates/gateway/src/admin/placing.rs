//! Policies of sets and the choice of their voters (ADR 0052): the calls, and the planner's task at the leader of group
//! 0. `control::placing` decides; each group follows its record (`node::members`).

use super::AdminDoor;
use super::member::{invalid, precondition};
use super::status::{has_nearly_all, own_word};
use crate::node::{Adopted, GroupReport, Node, Runs, ViolationChange, Wants};
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterState, Member, SetEntry};
use holdfast_control::placing::{
    Move, Rules, View, Violation, first_voters, may_get, newcomers, plan, possible, reasons, violations,
};
use holdfast_control::policy::{Policy, Survive, VOTERS_DEFAULT};
use holdfast_host::unix_ms;
use holdfast_raft::boot_now;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, Locality, MemberId, Name, SetId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two rounds of the planner.
const TURN: Duration = Duration::from_secs(5);
/// Sets whose violations are told with the state of a gateway; each of them tells its own (`set place`).
const TOLD_MAX: usize = 32;
/// Changes of a round that are logged one by one: a gateway that starts again is a voter of many sets.
const LOGGED_MAX: usize = 16;
/// Pause after a change of group 0: several come together.
const CALM: Duration = Duration::from_millis(500);
/// The voters of a set without a home follow its owner into another region after so long: a copy of the set's journal
/// moves, so an owner that is away for a while moves nothing.
const HOME_AFTER: Duration = Duration::from_secs(15 * 60);
/// For people, of a move.
const STALLED: &str = "; its newcomers have received nothing for 5 minutes, so other sets do not wait for it";
/// A member that is silent for less is not told. It is not lost before `placing.replace_after_ms`.
const PATIENCE_MIN: Duration = Duration::from_secs(3);

/// A policy from a request.
fn policy_from(message: Option<&v1::Policy>) -> Result<Policy, Refusal> {
    let Some(message) = message else { return Ok(Policy::default()) };
    let survive = match message.survive.as_str() {
        "" => None,
        text => Some(Survive::parse(text).ok_or_else(|| {
            let found: String = text.chars().take(80).collect();
            invalid(format!("policy.survive: found {found:?}, expected host, zone, region, or nothing"))
        })?),
    };
    let voters = match message.voters {
        0 => VOTERS_DEFAULT,
        given => u8::try_from(given).map_err(|_| invalid(format!("policy.voters: found {given}, expected 3 or 5")))?,
    };
    let home = Some(&message.home).filter(|home| !home.is_empty());
    let home = home.map(|home| holdfast_api::name("policy.home", home)).transpose()?;
    let forbidden =
        message.forbidden_regions.iter().map(|region| holdfast_api::name("policy.forbidden_regions", region));
    let forbidden: BTreeSet<Name> = forbidden.collect::<Result<_, _>>()?;
    let policy = Policy { survive, voters, home, forbidden };
    policy.check().map_err(|why| invalid(format!("policy: {why}")))?;
    Ok(policy)
}

fn policy_message(policy: &Policy) -> v1::Policy {
    v1::Policy {
        survive: policy.survive.map_or("", Survive::as_str).to_string(),
        voters: policy.voters.into(),
        home: policy.home.as_ref().map(Name::to_string).unwrap_or_default(),
        forbidden_regions: policy.forbidden.iter().map(Name::to_string).collect(),
    }
}

/// The gateways that answered, each by its own word.
fn answered(status: &v1::ClusterStatusReply) -> impl Iterator<Item = (&v1::Node, &v1::Member)> {
    status.members.iter().filter_map(move |said| own_word(&status.cluster_id, said))
}

/// Whether a gateway runs a group that it tells of.
fn stands(own: &v1::GroupStatus) -> bool {
    !matches!(own.role(), v1::Role::Stopped | v1::Role::Healing)
}

/// Which gateways answered, and which groups they run, by their own word.
fn runs_of(status: &v1::ClusterStatusReply) -> Runs {
    let late = status.members.iter().filter(|member| member.late).filter_map(|member| member.member.as_ref());
    let mut runs = Runs { late: late.map(|of| MemberId(of.id)).collect(), ..Runs::default() };
    for (node, of) in answered(status) {
        let id = MemberId(of.id);
        runs.answers.insert(id);
        runs.groups.extend(node.groups.iter().filter(|group| stands(group)).map(|group| (GroupId(group.group), id)));
    }
    runs
}

/// Of each gateway that knows that it leaves, the sets that it has no part in.
fn away_of(status: &v1::ClusterStatusReply) -> BTreeMap<MemberId, BTreeSet<SetId>> {
    let of = |(node, of): (&v1::Node, &v1::Member)| {
        let away = node.away.as_ref().filter(|away| away.leaving)?;
        Some((MemberId(of.id), away.sets.iter().copied().map(GroupId).collect()))
    };
    answered(status).filter_map(of).collect()
}

/// The learners of a group that answered and run it, and what each says of it.
fn learners_of<'a>(status: &'a v1::ClusterStatusReply, led: &v1::GroupStatus) -> Vec<(MemberId, &'a v1::GroupStatus)> {
    let learners = answered(status).filter(|(_, of)| led.learners.contains(&of.id));
    let own = |(node, of): (&'a v1::Node, &'a v1::Member)| {
        let own = node.groups.iter().find(|own| own.group == led.group && stands(own))?;
        Some((MemberId(of.id), own))
    };
    learners.filter_map(own).collect()
}

/// Whether the learner `id` of the group that `leader` leads follows it and has nearly all entries.
fn is_near(id: MemberId, own: &v1::GroupStatus, leader: u64, led: &v1::GroupStatus) -> bool {
    own.leader == leader && has_nearly_all(led, id.0, own.last_index)
}

/// Each set's group as its leader reported it; of two leaders, the one of the newer term.
fn seen_of(status: &v1::ClusterStatusReply) -> BTreeMap<SetId, GroupReport> {
    let mut newest: BTreeMap<SetId, (u64, GroupReport)> = BTreeMap::new();
    for (node, of) in answered(status) {
        let led = node.groups.iter().filter(|group| group.group != 0 && group.role() == v1::Role::Leader);
        for group in led {
            let (id, voters) = (GroupId(group.group), group.voters.iter().copied().map(MemberId).collect());
            let learners = learners_of(status, group);
            let near = learners.iter().filter(|(id, own)| is_near(*id, own, of.id, group)).map(|(id, _)| *id).collect();
            let learners = learners.iter().map(|(id, own)| (*id, own.applied_index)).collect();
            let owner = group.owner_locality.parse::<Locality>().ok().map(|at| at.region);
            let (leader, bytes) = (Some(MemberId(of.id)), group.journal_live_bytes);
            let seen = GroupReport { leader, voters, near, learners, bytes, owner };
            if newest.get(&id).is_none_or(|(term, _)| *term < group.term) {
                newest.insert(id, (group.term, seen));
            }
        }
    }
    newest.into_iter().map(|(id, (_, seen))| (id, seen)).collect()
}

/// The members that get no further voter: they cannot be reached, or their journal has no room or soon none. Of one
/// that did not answer in time nothing new is known.
fn busy_of(status: &v1::ClusterStatusReply) -> BTreeSet<MemberId> {
    let has_room = |journal: &v1::JournalUsage| {
        let room = journal.bound_bytes.saturating_sub(journal.reserve_bytes);
        journal.failed.is_empty() && journal.waits.is_empty() && journal.used_bytes <= room / 5 * 4
    };
    let journal = |said: &v1::MemberStatus| own_word(&status.cluster_id, said)?.0.journal.clone();
    let told = status.members.iter().filter(|member| !member.late);
    let busy = told.filter(|member| journal(member).is_none_or(|journal| !has_room(&journal)));
    busy.filter_map(|member| Some(MemberId(member.member.as_ref()?.id))).collect()
}

/// The voters that the set's record has, as a change of them must name them.
fn recorded(state: &ClusterState, entry: &SetEntry) -> BTreeSet<MemberId> {
    if entry.voters.is_empty() { state.voters_of(entry) } else { entry.voters.clone() }
}

/// A move, for people.
fn move_text(state: &ClusterState, step: &Move) -> String {
    let names = |of: &BTreeSet<MemberId>| -> String {
        let name = |id: &MemberId| state.members.get(id).map_or(id.to_string(), |member| member.name.to_string());
        of.iter().map(name).collect::<Vec<_>>().join(" ")
    };
    format!("{} -> {}: {}", names(&step.from), names(&step.to), step.why)
}

/// What comes next, for people. A violation that nobody mends must say so.
fn next_text(next: Option<String>, enabled: bool, met: bool) -> String {
    match next {
        Some(next) => next,
        None if enabled || met => String::new(),
        None => "nothing: `placing.enabled` is false in the settings of the cluster's leader".to_string(),
    }
}

fn log_told(state: &ClusterState, all: &[ViolationChange]) {
    for told in all.iter().take(LOGGED_MAX) {
        let name = state.sets.get(&told.set).map(|entry| entry.name.to_string()).unwrap_or_default();
        if told.begun {
            tracing::warn!(set = name, violated = %told.violation, "the set's policy is not met");
        } else {
            tracing::info!(set = name, violated = %told.violation, "the set's policy: no longer violated in this way");
        }
    }
    if let Some(more) = all.len().checked_sub(LOGGED_MAX).filter(|more| *more > 0) {
        tracing::warn!(more, "policies of sets: further changes; `holdfast cluster status` lists what is violated");
    }
}

/// A round of the planner, as it was when it began.
struct PlanInput {
    rules: Rules,
    view: View,
    /// Like `view`, with the homes of sets that follow their owners.
    towards: View,
}

/// The result of a round of the planner.
struct WorkedOut {
    view: View,
    violated: BTreeMap<SetId, Vec<Violation>>,
    moves: Vec<Move>,
    wants: Wants,
}

impl PlanInput {
    /// Takes milliseconds for a hundred sets, and much longer for a thousand that nothing can be done for.
    fn work_out(self) -> WorkedOut {
        let Self { rules, view, towards } = self;
        let violated = view.groups.iter().map(|(set, placed)| (*set, violations(&view, placed, &rules))).collect();
        let moves = plan(&towards, &rules);
        let takers = view.members.iter().filter(|(_, member)| member.takes_votes()).map(|(id, _)| *id).collect();
        let wants = Wants { takers, newcomers: newcomers(&towards, &rules) };
        WorkedOut { view, violated, moves, wants }
    }
}

/// Whether a plan that was made with the state `then` still holds in the state `now`.
fn is_as_planned(then: &ClusterState, now: &ClusterState) -> bool {
    now.members == then.members && now.sets == then.sets
}

impl AdminDoor {
    fn patience(&self) -> Duration {
        (self.node.timing.election_max() * 2).max(PATIENCE_MIN)
    }

    /// What the planner sees now, at the leader of group 0.
    fn placing_view(&self, adopted: &Adopted, state: &ClusterState, term: Term) -> View {
        let mut planned = self.node.planned.locked();
        planned.enter(Some(term));
        planned.view(state, adopted.member, &adopted.group.status(), self.patience())
    }

    /// The same, with the homes of sets that follow their owners, as plans are made.
    pub(super) fn planning_view(&self, adopted: &Adopted, state: &ClusterState, term: Term) -> View {
        let view = self.placing_view(adopted, state, term);
        match self.node.live().placing.follow_owner_ms {
            0 => view,
            _ => self.node.planned.locked().towards_owners(&view, HOME_AFTER),
        }
    }

    /// The policy of a new set and its first voters. None: all members that stay, and those that join later.
    pub(super) fn voters_of_new_set(
        &self,
        adopted: &Adopted,
        term: Term,
        state: &ClusterState,
        asked: Option<&v1::Policy>,
    ) -> Result<(Policy, Vec<MemberId>), Refusal> {
        let policy = policy_from(asked)?;
        let view = self.placing_view(adopted, state, term);
        possible(&view.members, &policy).map_err(|why| precondition(format!("policy ({policy}): it {why}")))?;
        // Nobody would give a newcomer its part later.
        if !self.node.live().placing.enabled && policy == Policy::default() {
            return Ok((policy, Vec::new()));
        }
        let voters = first_voters(&view, &policy, &self.node.live().placing.rules());
        Ok((policy, voters.into_iter().collect()))
    }

    /// Refuses the repetition of a creation with another policy.
    pub(super) fn same_policy(name: &Name, entry: &SetEntry, asked: Option<&v1::Policy>) -> Result<(), Refusal> {
        if asked.is_none() || policy_from(asked)? == entry.policy {
            return Ok(());
        }
        let found = &entry.policy;
        let message =
            format!("set {name} exists already, with the policy ({found}): `holdfast set place` changes that");
        Err(Refusal::new(RefusalCode::Exists, message))
    }

    /// A gateway that replaces another one gets its votes at once, wherever it stands.
    pub(super) fn may_take_votes(state: &ClusterState, old: &Member, new: &Member) -> Result<(), Refusal> {
        let Some(entry) = state.barred_from(old.id, &new.locality.region) else { return Ok(()) };
        let (set, region) = (&entry.name, &new.locality.region);
        Err(precondition(format!(
            "{} stands in region {region}, which the policy of set {set} forbids, and would get the votes of {}: add it \
             by itself (holdfast gateway add), then drain and remove {}; or allow the region (holdfast set place {set} \
             --allow-region {region})",
            new.name, old.name, old.name
        )))
    }

    pub(super) async fn change_policy(&self, request: v1::ChangePolicyRequest) -> Result<v1::Placing, Refusal> {
        self.led_cluster()?;
        let change =
            move |door: Self, adopted, term| async move { door.change_policy_alone(request, &adopted, term).await };
        self.alone(&self.node.turns.sets, change).await
    }

    async fn change_policy_alone(
        &self,
        request: v1::ChangePolicyRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::Placing, Refusal> {
        let name = holdfast_api::name("set", &request.set)?;
        let policy = policy_from(request.policy.as_ref())?;
        let state = self.node.cluster.state();
        let Some((set, entry)) = state.set_named(&name) else {
            return Err(Refusal::new(RefusalCode::NotFound, format!("there is no set {name}")));
        };
        let found = entry.policy.clone();
        let expected = request.expected.as_ref().map(|expected| policy_from(Some(expected))).transpose()?;
        if let Some(expected) = expected.filter(|expected| *expected != found && policy != found) {
            let message = format!(
                "set {name} has the policy ({found}), expected ({expected}): it was changed meanwhile; look again"
            );
            return Err(precondition(message));
        }
        if policy != found {
            let view = self.placing_view(adopted, &state, term);
            may_get(&view, set, &policy)
                .map_err(|why| precondition(format!("set {name}, policy ({policy}): it {why}")))?;
            let command = ClusterCommand::SetPolicy { set, expected: found.clone(), policy: policy.clone() };
            self.cluster_command_in(adopted, term, &command).await?;
            tracing::info!(set = %name, from = %found, to = %policy, "the set's policy is changed");
        }
        self.placing_of(adopted, term, &name)
    }

    pub(super) async fn get_placing(&self, request: v1::GetPlacingRequest) -> Result<v1::Placing, Refusal> {
        let adopted = self.led_cluster()?;
        let name = holdfast_api::name("set", &request.set)?;
        match adopted.group.leading_term() {
            Some(term) => self.placing_of(&adopted, term, &name),
            None => Err(self.not_leader(&adopted.group, "the cluster")),
        }
    }

    fn placing_of(&self, adopted: &Adopted, term: Term, name: &Name) -> Result<v1::Placing, Refusal> {
        let state = self.node.cluster.state();
        let view = self.placing_view(adopted, &state, term);
        let found = state.set_named(name).and_then(|(id, _)| Some((id, view.groups.get(&id)?)));
        let Some((id, placed)) = found else {
            return Err(Refusal::new(RefusalCode::NotFound, format!("there is no set {name}")));
        };
        let rules = self.node.live().placing.rules();
        let planned = self.node.planned.locked();
        // As of now: a policy that was changed a moment ago is not met because no round has looked at it yet.
        let judged = if self.hears_a_quorum(adopted, term) {
            violations(&view, placed, &rules)
        } else {
            planned.violated(id).map(|(violation, _)| violation.clone()).collect()
        };
        let violations = judged.into_iter().map(|violation| v1::PlacingViolation {
            since_unix_ms: planned.since(id, &violation).unwrap_or_else(unix_ms),
            text: violation.to_string(),
        });
        let moving = placed.moving || !planned.is_seen(id);
        let next = planned.next(id).filter(|step| placed.moving || step.from == placed.voters);
        let next = next.map(|step| move_text(&state, step) + if placed.stalled { STALLED } else { "" });
        let violations: Vec<v1::PlacingViolation> = violations.collect();
        Ok(v1::Placing {
            set: name.to_string(),
            policy: Some(policy_message(&placed.policy)),
            voters: placed.voters.iter().map(|id| id.0).collect(),
            reasons: reasons(&view, placed, &rules),
            next: next_text(next, rules.at_once > 0, violations.is_empty()),
            violations,
            moving,
        })
    }

    /// The sets whose policy is violated, as far as this gateway knows: while it leads group 0.
    pub(super) fn violated_sets(&self) -> Vec<v1::ViolatedSet> {
        let sets = self.node.cluster.state().sets;
        let planned = self.node.planned.locked();
        let told = |(id, entry): (SetId, SetEntry)| {
            let message = |(violation, since_unix_ms): (&Violation, u64)| v1::PlacingViolation {
                text: violation.to_string(),
                since_unix_ms,
            };
            let violations: Vec<v1::PlacingViolation> = planned.violated(id).map(message).collect();
            (!violations.is_empty()).then(|| v1::ViolatedSet { set: entry.name.to_string(), violations })
        };
        sets.into_iter().filter_map(told).take(TOLD_MAX).collect()
    }

    /// The changes that the planner still wants, as far as this gateway knows: while it leads group 0.
    pub(super) fn plan_message(&self) -> Option<v1::Plan> {
        let planned = self.node.planned.locked();
        let (wants, learners) = (planned.wants(), planned.learners());
        // Without sets there is no plan for them.
        if wants.is_none() && learners.is_none() {
            return None;
        }
        let wants = wants.cloned().unwrap_or_default();
        let set = |(set, of): (&SetId, &BTreeSet<MemberId>)| v1::PlannedSet {
            set: set.0,
            newcomers: of.iter().map(|id| id.0).collect(),
        };
        Some(v1::Plan {
            takers: wants.takers.iter().map(|id| id.0).collect(),
            sets: wants.newcomers.iter().map(set).collect(),
            cluster_learners: learners.into_iter().flatten().map(|id| id.0).collect(),
        })
    }

    /// Whether a quorum of group 0 has answered this leader a moment ago. If not, everybody seems silent to it.
    fn hears_a_quorum(&self, adopted: &Adopted, term: Term) -> bool {
        let fresh = |at| boot_now().saturating_since(at) <= self.node.timing.election_max();
        adopted.group.quorum_acked().is_some_and(|(of, at)| of == term && fresh(at))
    }

    /// The view of this round.
    fn looked(
        &self,
        adopted: &Adopted,
        term: Term,
        state: &ClusterState,
        status: &v1::ClusterStatusReply,
    ) -> PlanInput {
        let rules = self.node.live().placing.rules();
        let (seen, runs, busy) = (seen_of(status), runs_of(status), busy_of(status));
        let now = Instant::now();
        let mut planned = self.node.planned.locked();
        planned.enter(Some(term));
        planned.saw(seen, runs, busy, now);
        planned.note_away(away_of(status));
        let rules = Rules { balance: rules.balance && planned.knows_weights(now), ..rules };
        let view = planned.view(state, adopted.member, &adopted.group.status(), self.patience());
        let towards = match self.node.live().placing.follow_owner_ms {
            0 => view.clone(),
            _ => planned.towards_owners(&view, HOME_AFTER),
        };
        PlanInput { rules, view, towards }
    }

    /// Looks at every set, tells what is violated, and proposes the next moves.
    async fn placing_round(&self, adopted: &Adopted, term: Term) -> Result<(), Refusal> {
        // Also where nothing may move: the voters that a set has decide what is violated.
        let status = self.status_within(Duration::MAX).await?;
        let _one = self.node.turns.sets.lock().await;
        if !self.hears_a_quorum(adopted, term) {
            return Ok(());
        }
        let state = self.node.cluster.state();
        let looked = self.looked(adopted, term, &state, &status);
        // Without the lock, which each question for the state of this gateway takes, and not on a thread of tasks.
        let done = holdfast_log::spawn_blocking(move || looked.work_out()).await;
        let done = done.map_err(|e| Refusal::new(RefusalCode::Failed, format!("planning ended early: {e}")))?;
        // Another round begins with each change of group 0.
        if !self.node.cluster.read(|now| is_as_planned(&state, now)) {
            return Ok(());
        }
        let told = {
            let mut planned = self.node.planned.locked();
            if !planned.is_of(term) {
                return Ok(());
            }
            planned.decide(&done.view, &done.moves, done.wants);
            planned.note(done.violated, unix_ms())
        };
        log_told(&state, &told);
        for step in done.moves {
            let Some(entry) = state.sets.get(&step.group) else { continue };
            let text = move_text(&state, &step);
            let command = ClusterCommand::PlaceVoters { set: step.group, from: recorded(&state, entry), to: step.to };
            match self.cluster_command_in(adopted, term, &command).await {
                Ok(ClusterAnswer::VotersPlaced) => {
                    metrics::counter!("holdfast_placing_moves_total").increment(1);
                    tracing::info!(set = %entry.name, moves = text, "changing the set's voters");
                }
                Ok(other) => tracing::warn!(set = %entry.name, answer = ?other, "an unexpected answer"),
                // A set that was deleted or placed meanwhile: the others must not wait for it.
                Err(error) => {
                    tracing::debug!(set = %entry.name, moves = text, %error, "cannot change the set's voters now")
                }
            }
        }
        Ok(())
    }
}

/// Plans the voters of all sets while this gateway leads group 0.
pub(crate) async fn run(node: Arc<Node>, adopted: Adopted) {
    // A pair has no votes.
    if node.pair().is_some() {
        return;
    }
    let door = AdminDoor::new(node.clone());
    let mut changes = node.cluster.changes();
    loop {
        let pause = tokio::select! {
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(TURN) => Duration::ZERO,
            changed = changes.changed() => if changed.is_ok() { CALM } else { return },
        };
        if !node.passes(pause).await {
            return;
        }
        changes.mark_unchanged();
        let term = adopted.group.ready_term();
        node.planned.locked().enter(term);
        let Some(term) = term.filter(|_| !node.cluster.state().sets.is_empty()) else { continue };
        let round = door.placing_round(&adopted, term);
        let done = tokio::select! {
            () = node.stop.cancelled() => return,
            done = round => done,
        };
        if let Err(error) = done {
            tracing::debug!(%error, "the voters of sets will be looked at again");
        }
    }
}

#[cfg(test)]
mod tests;
