//! Checks of an administrator's requests (drain, remove, replace), before anything is changed. Input: what each gateway
//! reported a moment ago.

use crate::cluster::{CLUSTER_VOTERS_LEVEL, ClusterState, Member, MemberRole, Standing};
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;

/// Voters of group 0 of which one may be away, so that a new set has a majority without one that never came up.
const VOTERS_ENOUGH: usize = 3;

/// State of a group, combined from the reports of all gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHealth {
    /// The group.
    pub group: GroupId,
    /// The set's name, or "the cluster".
    pub name: String,
    /// Its leader, if one answered.
    pub leader: Option<MemberId>,
    /// Its voters as its leader sees them; empty without a leader.
    pub voters: BTreeSet<MemberId>,
    /// Without a leader: the members that may be among its voters, because the set's record names them, or because they
    /// have not said that they have no part in the group.
    pub perhaps: BTreeSet<MemberId>,
    /// Voters that answered, follow that leader, and have nearly all entries.
    pub answering: BTreeSet<MemberId>,
    /// Its learners that did. One of those of group 0 gets the vote of a voter that leaves (MEMBER-M6).
    pub spares: BTreeSet<MemberId>,
}

/// Why a request is refused, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// It is leaving already, which is final.
    #[error("{name} is already leaving the cluster, which cannot be undone")]
    Leaving {
        /// The gateway.
        name: String,
    },
    /// At least one gateway must be able to serve.
    #[error(
        "without {name} no gateway could serve: all others are witnesses, drained, leaving or do not answer; first add one (holdfast gateway add), undrain one or bring one back"
    )]
    NobodyServes {
        /// The gateway.
        name: String,
    },
    /// Another gateway is leaving: one at a time.
    #[error("{other} is still leaving the cluster: wait until `holdfast gateway list` no longer shows it")]
    OneAtATime {
        /// The gateway that is leaving.
        other: String,
    },
    /// The group has no leader, and the gateway may be needed for one.
    #[error(
        "{group} has no leader now, and {name} may be one of its voters: first start enough of its gateways ({voters}; holdfast gateway \
         list shows which do not answer). If {name} is none of them, start it: it says so by itself"
    )]
    NoLeader {
        /// The group.
        group: String,
        /// The gateway.
        name: String,
        /// Those that are to vote in it.
        voters: String,
    },
    /// Never: the change itself could not be committed.
    #[error(
        "{group}: {answering} of {of} voters answer and are up to date, and {needed} are needed to change anything. Bring {missing} back \
         first; if that is impossible, the only way is a new cluster from the store (holdfast cluster recover)"
    )]
    NoQuorumNow {
        /// The group.
        group: String,
        /// Of the voters.
        answering: usize,
        /// Voters.
        of: usize,
        /// A majority of these.
        needed: usize,
        /// The voters that would be needed.
        missing: String,
    },
    /// Refused while the member is to be stopped: the others could not continue.
    #[error(
        "{group}: with {name} stopped, {answering} of {of} voters would answer and be up to date, and {needed} are needed. {remedy}; \
         or use --force to move leadership away only, and do not stop it"
    )]
    NeededUp {
        /// The group.
        group: String,
        /// The gateway.
        name: String,
        /// Answering voters without it.
        answering: usize,
        /// Voters.
        of: usize,
        /// A majority of these.
        needed: usize,
        /// The remedy.
        remedy: String,
    },
    /// Always refused: nothing could be committed afterwards.
    #[error(
        "{group}: without {name}, {answering} of {of} voters would answer and be up to date, and {needed} are needed. Bring {missing} \
         back first, or replace that one (holdfast gateway replace)"
    )]
    NoQuorum {
        /// The group.
        group: String,
        /// The gateway.
        name: String,
        /// Answering voters without it.
        answering: usize,
        /// Voters that would be left.
        of: usize,
        /// A majority of these.
        needed: usize,
        /// The voters that would be needed.
        missing: String,
    },
    /// Possible, and the next loss stops everything.
    #[error(
        "{group}: without {name}, {of} voters are left and all of them are needed: the group could not survive the loss of another one. \
         {remedy} (holdfast gateway replace {name} --by HOST:PORT), or use --force: this loses no acknowledged write"
    )]
    NoSpare {
        /// The group.
        group: String,
        /// The gateway.
        name: String,
        /// Voters that would be left.
        of: usize,
        /// What to do before, or instead.
        remedy: String,
    },
    /// Possible, but acknowledged data would then be on one disk.
    #[error(
        "{group}: without {name}, everything that is not in the store yet would be on one disk. Replace it instead (holdfast gateway \
         replace {name} --by HOST:PORT); or drain it first, and a gateway that is no voter there gets its place; or use --force: this \
         loses no acknowledged write"
    )]
    OneCopy {
        /// The group.
        group: String,
        /// The gateway.
        name: String,
    },
}

impl Objection {
    /// Whether `--force` overrides it: only if no acknowledged data can be lost and the change can be committed.
    pub fn may_be_forced(&self) -> bool {
        matches!(self, Objection::NoSpare { .. } | Objection::OneCopy { .. })
    }
}

fn names(state: &ClusterState, ids: impl Iterator<Item = MemberId>) -> String {
    let name = |id: MemberId| state.members.get(&id).map_or(id.to_string(), |member| member.name.to_string());
    ids.map(name).collect::<Vec<_>>().join(", ")
}

fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// Whether anybody but `id` may serve.
fn others_serve(state: &ClusterState, id: MemberId) -> bool {
    state.members.values().any(|member| member.id != id && member.serves())
}

/// Whether others could serve at once: for each group that has a leader and the vote of `id`, there is another member
/// that may and could be its next leader.
fn others_could_serve(state: &ClusterState, groups: &[GroupHealth], id: MemberId) -> bool {
    let others = || state.members.values().filter(|member| member.id != id && member.serves());
    let could = |group: &GroupHealth| others().any(|member| group.answering.contains(&member.id));
    others_serve(state, id) && groups.iter().filter(|group| group.voters.contains(&id)).all(could)
}

/// Whether `member` may leave the cluster. With `force`, also if that reduces the failures that a group survives.
///
/// # Errors
/// The first [`Objection`].
pub fn may_leave(state: &ClusterState, groups: &[GroupHealth], member: &Member, force: bool) -> Result<(), Objection> {
    let (id, name) = (member.id, member.name.to_string());
    if member.standing == Standing::Leaving {
        return Err(Objection::Leaving { name });
    }
    // A member without a vote anywhere can go: a newcomer that never came up must not block its own replacement.
    let votes = groups.iter().any(|group| group.voters.contains(&id));
    let leaving = |other: &&Member| other.standing == Standing::Leaving;
    if let Some(other) = state.members.values().find(leaving).filter(|_| votes) {
        return Err(Objection::OneAtATime { other: other.name.to_string() });
    }
    for group in groups {
        hard(state, group, id, &name)?;
    }
    if member.role == MemberRole::Gateway && !others_could_serve(state, groups, id) {
        return Err(Objection::NobodyServes { name });
    }
    match groups.iter().find_map(|group| costs(state, group, id, &name)) {
        Some(objection) if !force => Err(objection),
        _ => Ok(()),
    }
}

/// Whether a new witness may replace `member`. Nothing else is asked, and nothing for a new gateway: the new member is
/// added before the old one goes, so no group loses a voter.
///
/// # Errors
/// [`Objection::NobodyServes`]: a witness cannot replace the last gateway that could serve.
pub fn may_replace_by_witness(state: &ClusterState, groups: &[GroupHealth], member: &Member) -> Result<(), Objection> {
    let leads_nothing = member.role == MemberRole::Witness || member.standing == Standing::Leaving;
    if leads_nothing || others_could_serve(state, groups, member.id) {
        return Ok(());
    }
    holdfast_reached::reached!("members: a witness is to replace the last gateway that serves");
    Err(Objection::NobodyServes { name: member.name.to_string() })
}

/// The first member that stays and may never have come up: it is none of these voters of group 0, and has registered no
/// start. A new set may begin with each member that stays as a voter: with such a one it might have no leader for ever,
/// and then no member could leave either. Who learns group 0 does not vote in it, and has come up all the same.
///
/// With fewer than three voters a start is not enough. Such a member is to get a vote, and the leader may not reach it
/// at all: of two voters of a set it would be the second one.
pub fn joining<'a>(state: &'a ClusterState, voters: &BTreeSet<MemberId>) -> Option<&'a Member> {
    let learns = |id: &MemberId| voters.len() >= VOTERS_ENOUGH && state.boots.contains_key(id);
    let came_up = |id: &MemberId| voters.contains(id) || learns(id);
    state.members.values().find(|member| member.standing != Standing::Leaving && !came_up(&member.id))
}

/// Of group 0: the learner that gets the vote of `id` once that leaves, before it goes.
fn substitute(state: &ClusterState, group: &GroupHealth, id: MemberId) -> Option<MemberId> {
    let planned = group.group == GroupId::CLUSTER && state.level >= CLUSTER_VOTERS_LEVEL && group.voters.contains(&id);
    let stays = |id: &MemberId| state.members.get(id).is_some_and(|member| member.standing != Standing::Leaving);
    group.spares.iter().copied().find(|spare| planned && *spare != id && stays(spare))
}

/// Whether `member` may be drained and then stopped for a while: the others must be able to continue. With `force` it
/// is drained even if they are not, and must then not be stopped.
///
/// # Errors
/// The first [`Objection`].
pub fn may_drain(state: &ClusterState, groups: &[GroupHealth], member: &Member, force: bool) -> Result<(), Objection> {
    let (id, name) = (member.id, member.name.to_string());
    if member.standing == Standing::Leaving {
        return Err(Objection::Leaving { name });
    }
    // A witness, or a drained member, leads nothing anyway.
    if member.serves() && !others_serve(state, id) {
        return Err(Objection::NobodyServes { name });
    }
    if force {
        // It serves on until another one can.
        return Ok(());
    }
    for group in groups {
        stopped(state, group, id, &name)?;
    }
    if member.serves() && !others_could_serve(state, groups, id) {
        return Err(Objection::NobodyServes { name });
    }
    Ok(())
}

/// A group without a leader needs those that may have a vote in it. Another member could not help it, and is not kept
/// by it.
fn leaderless(state: &ClusterState, group: &GroupHealth, id: MemberId, name: &str) -> Result<(), Objection> {
    if !group.perhaps.contains(&id) {
        return Ok(());
    }
    let voters = match state.sets.get(&group.group) {
        Some(set) => names(state, state.voters_of(set).into_iter()),
        None => names(state, state.members.keys().copied()),
    };
    Err(Objection::NoLeader { group: group.name.clone(), name: name.to_owned(), voters })
}

/// The change can be committed, and the group continues after it. A set's group without the vote of `id` does not
/// change.
fn hard(state: &ClusterState, group: &GroupHealth, id: MemberId, name: &str) -> Result<(), Objection> {
    if group.voters.is_empty() {
        return leaderless(state, group, id, name);
    }
    if group.group != GroupId::CLUSTER && !group.voters.contains(&id) {
        return Ok(());
    }
    let mut rest: BTreeSet<MemberId> = group.voters.iter().copied().filter(|voter| *voter != id).collect();
    let mut answering: BTreeSet<MemberId> = rest.intersection(&group.answering).copied().collect();
    if let Some(substitute) = substitute(state, group, id) {
        rest.insert(substitute);
        answering.insert(substitute);
    }
    let needed = majority(rest.len());
    let before = group.voters.intersection(&group.answering).count();
    if before < majority(group.voters.len()) {
        return Err(Objection::NoQuorumNow {
            group: group.name.clone(),
            answering: before,
            of: group.voters.len(),
            needed: majority(group.voters.len()),
            missing: names(state, group.voters.difference(&group.answering).copied()),
        });
    }
    if answering.len() < needed {
        return Err(Objection::NoQuorum {
            group: group.name.clone(),
            name: name.to_owned(),
            answering: answering.len(),
            of: rest.len(),
            needed,
            missing: names(state, rest.difference(&answering).copied()),
        });
    }
    Ok(())
}

/// The group must continue while `id` is stopped: it stays a voter that does not answer. The other drained members may
/// be stopped too.
fn stopped(state: &ClusterState, group: &GroupHealth, id: MemberId, name: &str) -> Result<(), Objection> {
    if group.voters.is_empty() {
        return leaderless(state, group, id, name);
    }
    let drained = |id: &MemberId| state.members.get(id).is_some_and(|m| m.standing == Standing::Drained);
    let counts = |voter: &MemberId| group.answering.contains(voter) && !drained(voter);
    let others = || group.voters.iter().copied().filter(|voter| *voter != id);
    let answering = others().filter(counts).count();
    let needed = majority(group.voters.len());
    if group.voters.contains(&id) && answering < needed {
        let missing = names(state, others().filter(|voter| !counts(voter)));
        let remedy = match missing.as_str() {
            "" => "Add a gateway or a witness first (holdfast gateway add)".to_owned(),
            missing => format!("Bring {missing} back first, and undrain what is drained"),
        };
        let (group, of) = (group.name.clone(), group.voters.len());
        return Err(Objection::NeededUp { group, name: name.to_owned(), answering, of, needed, remedy });
    }
    Ok(())
}

/// Failures that the group survived before, and would not survive after.
fn costs(state: &ClusterState, group: &GroupHealth, id: MemberId, name: &str) -> Option<Objection> {
    if !group.voters.contains(&id) || substitute(state, group, id).is_some() {
        return None;
    }
    let answering = group.voters.intersection(&group.answering).count();
    let spare_before = answering.saturating_sub(majority(group.voters.len()));
    let of = group.voters.len() - 1;
    let rest = answering - usize::from(group.answering.contains(&id));
    let spare_after = rest.saturating_sub(majority(of));
    if of == 1 && group.answering.contains(&id) {
        return Some(Objection::OneCopy { group: group.name.clone(), name: name.to_owned() });
    }
    (spare_after == 0 && spare_before > 0).then(|| Objection::NoSpare {
        group: group.name.clone(),
        name: name.to_owned(),
        of,
        remedy: instead(state, group, id, name),
    })
}

/// A set's vote goes from a drained gateway to another one, where there is one that its policy does not forbid (ADR
/// 0052).
fn instead(state: &ClusterState, group: &GroupHealth, id: MemberId, name: &str) -> String {
    let set = state.sets.get(&group.group);
    let barred = |m: &Member| set.is_some_and(|set| set.policy.forbidden.contains(&m.locality.region));
    let free = |m: &Member| m.id != id && m.standing == Standing::Active && !group.voters.contains(&m.id);
    let takes = |m: &Member| free(m) && !barred(m);
    if group.group != GroupId::CLUSTER && state.members.values().any(takes) {
        format!(
            "Drain it first (holdfast gateway drain {name}) and wait: its votes go to other gateways, and VOTES of \
             `holdfast gateway list` shows how many are left. Or replace it"
        )
    } else {
        "Replace it instead".to_owned()
    }
}
