//! Policies of sets and the choice of their voters (ADR 0052): the calls, and the planner's task at the leader of group
//! 0. `control::placing` decides; each group follows its record (`node::members`).

use super::AdminDoor;
use super::member::invalid;
use crate::node::{Adopted, Node, Seen};
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterState, SetEntry};
use holdfast_control::placing::{Move, View, first_voters, plan, possible, reasons};
use holdfast_control::policy::{Policy, Survive, VOTERS_DEFAULT};
use holdfast_host::unix_ms;
use holdfast_raft::boot_now;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, Locality, MemberId, Name, SetId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Pause between two rounds of the planner.
const TURN: Duration = Duration::from_secs(5);
/// Pause after a change of group 0: several come together.
const CALM: Duration = Duration::from_millis(500);
/// The voters of a set without a home follow its owner into another region after so long: a copy of the set's journal
/// moves, so an owner that is away for a while moves nothing.
const HOME_AFTER: Duration = Duration::from_secs(15 * 60);
/// A member that is silent for less is not told. It is not lost before `placing.replace_after_ms`.
const PATIENCE_MIN: Duration = Duration::from_secs(3);

fn precondition(message: String) -> Refusal {
    Refusal::new(RefusalCode::Precondition, message)
}

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

/// Each set's group as its leader reported it; of two leaders, the one of the newer term.
fn seen_of(status: &v1::ClusterStatusReply) -> BTreeMap<SetId, Seen> {
    let mut newest: BTreeMap<SetId, (u64, Seen)> = BTreeMap::new();
    for member in &status.members {
        let Some((node, of)) = member.node.as_ref().zip(member.member.as_ref()) else { continue };
        let led = node.groups.iter().filter(|group| group.group != 0 && group.role() == v1::Role::Leader);
        for group in led {
            let (id, voters) = (GroupId(group.group), group.voters.iter().copied().map(MemberId).collect());
            let owner = group.owner_locality.parse::<Locality>().ok().map(|at| at.region);
            let seen = Seen { leader: MemberId(of.id), voters, bytes: group.journal_live_bytes, owner };
            if newest.get(&id).is_none_or(|(term, _)| *term < group.term) {
                newest.insert(id, (group.term, seen));
            }
        }
    }
    newest.into_iter().map(|(id, (_, seen))| (id, seen)).collect()
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
        if !self.node.config.placing.enabled && policy == Policy::default() {
            return Ok((policy, Vec::new()));
        }
        let voters = first_voters(&view, &policy, &self.node.config.placing.rules());
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
            possible(&view.members, &policy)
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
        let rules = self.node.config.placing.rules();
        let planned = self.node.planned.locked();
        let violations = planned
            .violated(id)
            .map(|(violation, since_unix_ms)| v1::PlacingViolation { text: violation.to_string(), since_unix_ms });
        let moving = placed.moving || !planned.is_seen(id);
        let next = planned.next(id).filter(|step| placed.moving || step.from == placed.voters);
        Ok(v1::Placing {
            set: name.to_string(),
            policy: Some(policy_message(&placed.policy)),
            voters: placed.voters.iter().map(|id| id.0).collect(),
            reasons: reasons(&view, placed, &rules),
            violations: violations.collect(),
            next: next.map(|step| move_text(&state, step)).unwrap_or_default(),
            moving,
        })
    }

    /// Whether a quorum of group 0 has answered this leader a moment ago. If not, everybody seems silent to it.
    fn hears_a_quorum(&self, adopted: &Adopted, term: Term) -> bool {
        let fresh = |at| boot_now().saturating_since(at) <= self.node.timing.election_max();
        adopted.group.quorum_acked().is_some_and(|(of, at)| of == term && fresh(at))
    }

    /// Looks at every set, tells what is violated, and proposes the next moves.
    async fn placing_round(&self, adopted: &Adopted, term: Term) -> Result<(), Refusal> {
        let rules = self.node.config.placing.rules();
        // Who leads a set and what it has there matters only to a move.
        let status = match rules.at_once {
            0 => v1::ClusterStatusReply::default(),
            _ => self.cluster_status(v1::ClusterStatusRequest {}).await?,
        };
        let _one = self.node.turns.sets.lock().await;
        if !self.hears_a_quorum(adopted, term) {
            return Ok(());
        }
        let state = self.node.cluster.state();
        let moves = {
            let mut planned = self.node.planned.locked();
            planned.enter(Some(term));
            planned.saw(seen_of(&status));
            let view = planned.view(&state, adopted.member, &adopted.group.status(), self.patience());
            for told in planned.note(&view, &rules, unix_ms()) {
                let name = state.sets.get(&told.set).map(|entry| entry.name.to_string()).unwrap_or_default();
                match told.begun {
                    true => {
                        tracing::warn!(set = name, violated = %told.violation, "the set's policy is not met; it is served all the same")
                    }
                    false => tracing::info!(set = name, violated = %told.violation, "the set's policy: this is over"),
                }
            }
            let towards = match self.node.config.placing.follow_owner_ms {
                0 => view.clone(),
                _ => planned.towards_owners(&view, HOME_AFTER),
            };
            let moves = plan(&towards, &rules);
            planned.decide(&view, &moves);
            moves
        };
        for step in moves {
            let Some(entry) = state.sets.get(&step.group) else { continue };
            let text = move_text(&state, &step);
            let command = ClusterCommand::PlaceVoters { set: step.group, from: recorded(&state, entry), to: step.to };
            match self.cluster_command_in(adopted, term, &command).await? {
                ClusterAnswer::VotersPlaced => {
                    metrics::counter!("holdfast_placing_moves_total").increment(1);
                    tracing::info!(set = %entry.name, moves = text, "the set gets other voters");
                }
                other => tracing::warn!(set = %entry.name, answer = ?other, "an unexpected answer"),
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
        tokio::select! {
            () = node.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        changes.mark_unchanged();
        let term = adopted.group.leading_term().filter(|term| adopted.group.applied().term == *term);
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
mod tests {
    use super::*;

    #[test]
    fn a_policy_of_a_request_is_read_as_it_is_shown() {
        let message = v1::Policy {
            survive: "zone".into(),
            voters: 5,
            home: "eu".into(),
            forbidden_regions: vec!["us".into(), "ap".into()],
        };
        let policy = policy_from(Some(&message)).unwrap();
        assert_eq!(policy.to_string(), "survive zone, 5 voters, home eu, not in ap, not in us");
        assert_eq!(policy_from(Some(&policy_message(&policy))).unwrap(), policy);
        assert_eq!(policy_from(None).unwrap(), Policy::default());
        assert_eq!(policy_from(Some(&v1::Policy::default())).unwrap(), Policy::default());
        for (wrong, says) in [
            (v1::Policy { survive: "rack".into(), ..message.clone() }, "policy.survive: found \"rack\""),
            (v1::Policy { voters: 4, ..message.clone() }, "voters: found 4"),
            (v1::Policy { voters: 300, ..message.clone() }, "policy.voters: found 300"),
            (v1::Policy { home: "a b".into(), ..message.clone() }, "policy.home"),
            (v1::Policy { home: "us".into(), ..message.clone() }, "is the home and is forbidden"),
        ] {
            let refusal = policy_from(Some(&wrong)).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Invalid);
            assert!(refusal.message.contains(says), "{says:?} in {refusal}");
        }
    }

    #[test]
    fn the_newer_leader_of_a_group_is_believed() {
        let of = |id: u64, term: u64, role: v1::Role, voters: &[u64]| {
            let group =
                v1::GroupStatus { group: 4, role: role.into(), term, voters: voters.to_vec(), ..Default::default() };
            v1::MemberStatus {
                member: Some(v1::Member { id, ..Default::default() }),
                node: Some(v1::Node { groups: vec![group], ..Default::default() }),
                ..Default::default()
            }
        };
        let members = vec![
            of(1, 3, v1::Role::Leader, &[1, 2, 3]),
            of(2, 5, v1::Role::Leader, &[2, 3, 4]),
            of(3, 5, v1::Role::Follower, &[1, 2]),
        ];
        let seen = seen_of(&v1::ClusterStatusReply { members, ..Default::default() });
        let voters = [2, 3, 4].map(MemberId).into();
        assert_eq!(seen, BTreeMap::from([(GroupId(4), Seen { leader: MemberId(2), voters, bytes: 0, owner: None })]));
    }
}
