//! Calls that change what a member may do: leave, be drained, move to another address. They decide from the current
//! state of every gateway and change group 0 only. The groups follow by themselves (`node::members`).

use super::AdminDoor;
use super::member::{invalid, member_from};
use super::status::{has_nearly_all, own_word};
use crate::node::Adopted;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterCommand, ClusterState, Member, Standing};
use holdfast_control::members::{GroupHealth, Objection, may_drain, may_leave};
use holdfast_types::{GroupId, MemberId, Term};
use std::collections::BTreeSet;

impl AdminDoor {
    pub(super) fn known_member(state: &ClusterState, id: u64) -> Result<Member, Refusal> {
        let id = MemberId(id);
        state.members.get(&id).cloned().ok_or_else(|| {
            let known: Vec<String> = state.members.values().map(|m| format!("{} ({})", m.id, m.name)).collect();
            let past = if state.was_removed(id) { "no longer a member" } else { "not a member" };
            Refusal::new(
                RefusalCode::NotFound,
                format!("{id} is {past} of this cluster; there are {}", known.join(", ")),
            )
        })
    }

    /// The health of every group, from the answers of all gateways.
    pub(super) async fn health(&self, state: &ClusterState) -> Result<Vec<GroupHealth>, Refusal> {
        let status = self.cluster_status(v1::ClusterStatusRequest {}).await?;
        let sets = state.sets.iter().map(|(id, set)| (*id, format!("set {}", set.name)));
        let all = std::iter::once((GroupId::CLUSTER, "the cluster".to_string())).chain(sets);
        Ok(all.map(|(group, name)| health_of(&status, state, group, name)).collect())
    }

    /// Each call sees the result of the earlier ones (`alone`). Otherwise two members that leave at once would each
    /// count the other one as present.
    pub(super) async fn remove_member(
        &self,
        request: v1::RemoveMemberRequest,
    ) -> Result<v1::RemoveMemberReply, Refusal> {
        self.led_cluster()?;
        let remove = move |door: Self, adopted, term| async move { door.remove_alone(request, &adopted, term).await };
        self.alone(&self.node.turns.members, remove).await
    }

    async fn remove_alone(
        &self,
        request: v1::RemoveMemberRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::RemoveMemberReply, Refusal> {
        let state = self.node.cluster.state();
        let removed = state.was_removed(MemberId(request.member));
        if removed {
            return Ok(v1::RemoveMemberReply {});
        }
        let member = Self::known_member(&state, request.member)?;
        if member.standing == Standing::Leaving {
            return Ok(v1::RemoveMemberReply {});
        }
        let groups = self.health(&state).await?;
        may_leave(&state, &groups, &member, request.force).map_err(|e| refusal(&e))?;
        tracing::info!(member = %member.id, name = %member.name, force = request.force, "a member leaves the cluster");
        let command = ClusterCommand::SetStanding { id: member.id, standing: Standing::Leaving };
        self.cluster_command_in(adopted, term, &command).await?;
        Ok(v1::RemoveMemberReply {})
    }

    pub(super) async fn drain_member(&self, request: v1::DrainMemberRequest) -> Result<v1::DrainMemberReply, Refusal> {
        self.led_cluster()?;
        let drain = move |door: Self, adopted, term| async move { door.drain_alone(request, &adopted, term).await };
        self.alone(&self.node.turns.members, drain).await
    }

    async fn drain_alone(
        &self,
        request: v1::DrainMemberRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::DrainMemberReply, Refusal> {
        let state = self.node.cluster.state();
        let member = Self::known_member(&state, request.member)?;
        let wanted = if request.drained { Standing::Drained } else { Standing::Active };
        if member.standing == wanted {
            return Ok(v1::DrainMemberReply {});
        }
        if request.drained {
            let groups = self.health(&state).await?;
            may_drain(&state, &groups, &member, request.force).map_err(|e| refusal(&e))?;
        }
        tracing::info!(member = %member.id, name = %member.name, ?wanted, force = request.force, "a member's drain state changes");
        self.cluster_command_in(adopted, term, &ClusterCommand::SetStanding { id: member.id, standing: wanted })
            .await?;
        Ok(v1::DrainMemberReply {})
    }

    pub(super) async fn update_member(
        &self,
        request: v1::UpdateMemberRequest,
    ) -> Result<v1::UpdateMemberReply, Refusal> {
        let adopted = self.led_cluster()?;
        let known = Self::known_member(&self.node.cluster.state(), request.member)?;
        let gateway = request.gateway.ok_or_else(|| invalid("gateway: found none, expected it at its new address"))?;
        let now = member_from(&gateway, known.id)?;
        if now.disk != known.disk {
            let message = format!(
                "the gateway at {} has disk {:032x}, expected {:032x}, which is that of {} ({})",
                now.api_addr, now.disk, known.disk, known.id, known.name
            );
            return Err(Refusal::new(RefusalCode::OtherDisk, message));
        }
        let Member { peer_addr, api_addr, nbd_addr, locality, .. } = now;
        let command = ClusterCommand::UpdateMember { id: known.id, peer_addr, api_addr, nbd_addr, locality };
        self.cluster_command(&adopted, &command).await?;
        Ok(v1::UpdateMemberReply {})
    }
}

fn refusal(objection: &Objection) -> Refusal {
    Refusal::new(RefusalCode::Precondition, objection.to_string())
}

/// The members that may vote in a group that has no leader. In group 0 all.
fn perhaps_voters(status: &v1::ClusterStatusReply, state: &ClusterState, group: GroupId) -> BTreeSet<MemberId> {
    let away_of = |said: &v1::MemberStatus| {
        let (node, member) = own_word(&status.cluster_id, said)?;
        let is_away = node.away.as_ref().is_some_and(|away| away.sets.contains(&group.0));
        is_away.then_some(MemberId(member.id))
    };
    let away: BTreeSet<MemberId> = status.members.iter().filter_map(away_of).collect();
    let named = |id: MemberId| state.sets.get(&group).is_none_or(|set| set.has_place_for(id));
    state.members.keys().copied().filter(|id| named(*id) || !away.contains(id)).collect()
}

fn health_of(status: &v1::ClusterStatusReply, state: &ClusterState, group: GroupId, name: String) -> GroupHealth {
    let seen = |member: &v1::MemberStatus| {
        let (node, member) = own_word(&status.cluster_id, member)?;
        let seen = node.groups.iter().find(|seen| seen.group == group.0)?.clone();
        Some((MemberId(member.id), seen))
    };
    let all: Vec<(MemberId, v1::GroupStatus)> = status.members.iter().filter_map(seen).collect();
    // A former leader may not know its successor yet: use the view with the newest term.
    let leader = all.iter().filter(|(_, seen)| seen.role() == v1::Role::Leader).max_by_key(|(_, seen)| seen.term);
    let Some((leader, of)) = leader else {
        let (voters, answering, spares) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let perhaps = perhaps_voters(status, state, group);
        return GroupHealth { group, name, leader: None, voters, answering, perhaps, spares };
    };
    let follows = |role: v1::Role, (id, seen): &(MemberId, v1::GroupStatus)| {
        seen.leader == leader.0 && seen.role() == role && has_nearly_all(of, id.0, seen.applied_index)
    };
    let answers = |seen: &&(MemberId, v1::GroupStatus)| seen.0 == *leader || follows(v1::Role::Follower, seen);
    let learns = |seen: &&(MemberId, v1::GroupStatus)| follows(v1::Role::Learner, seen);
    let answering = all.iter().filter(answers).map(|(id, _)| *id).collect();
    let spares = all.iter().filter(learns).map(|(id, _)| *id).collect();
    let voters = of.voters.iter().copied().map(MemberId).collect();
    GroupHealth { group, name, leader: Some(*leader), voters, answering, perhaps: BTreeSet::new(), spares }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::cluster::{MemberRole, SetEntry};

    fn member(id: u64, group: v1::GroupStatus) -> v1::MemberStatus {
        let (member, groups) = (v1::Member { id, ..Default::default() }, vec![group]);
        let node = Some(v1::Node { groups, ..Default::default() });
        v1::MemberStatus { member: Some(member), reachable: true, node, ..Default::default() }
    }

    fn group(role: v1::Role, leader: u64, term: u64, applied: u64) -> v1::GroupStatus {
        let (role, voters) = (role.into(), vec![1, 2, 3]);
        let (last_index, applied_index) = (applied, applied);
        v1::GroupStatus { group: 4, role, leader, term, last_index, applied_index, voters, ..Default::default() }
    }

    /// m1 is named and says otherwise: its group 0 is old. m3 has said that it has nothing of the set, m4 is silent.
    /// Where m5 stood another gateway says so.
    #[test]
    fn without_a_leader_only_those_that_said_so_are_no_voters() {
        let mut state = ClusterState::new();
        for id in [1, 2, 3, 4, 5].map(MemberId) {
            let [peer_addr, api_addr, nbd_addr] = [1, 2, 3].map(|port| format!("a:{port}"));
            let (name, locality) = (format!("g{}", id.0).parse().unwrap(), "region=eu".parse().unwrap());
            let (role, standing, disk) = (MemberRole::Gateway, Standing::Active, u128::from(id.0));
            let member = Member { id, name, locality, disk, peer_addr, api_addr, nbd_addr, role, standing };
            state.members.insert(id, member);
        }
        let mut entry = SetEntry::new(&"demo".parse().unwrap(), &[1], 1, MemberId(1));
        entry.voters = [1, 2].map(MemberId).into();
        state.sets.insert(GroupId(4), entry);
        let says = |id: u64, away: &[u64]| {
            let away = Some(v1::SetsAway { leaving: false, sets: away.to_vec() });
            let node = v1::Node { member: id, cluster_id: "ab".into(), away, ..Default::default() };
            let member = Some(v1::Member { id, ..Default::default() });
            v1::MemberStatus { member, reachable: true, node: Some(node), ..Default::default() }
        };
        let silent =
            v1::MemberStatus { member: Some(v1::Member { id: 4, ..Default::default() }), ..Default::default() };
        let elsewhere = v1::MemberStatus { member: Some(v1::Member { id: 5, ..Default::default() }), ..says(3, &[4]) };
        let members = vec![says(1, &[4]), says(2, &[]), says(3, &[4]), silent, elsewhere];
        let status = |cluster: &str| v1::ClusterStatusReply {
            cluster_id: cluster.into(),
            members: members.clone(),
            ..Default::default()
        };
        let perhaps =
            |cluster: &str, group: u64| health_of(&status(cluster), &state, GroupId(group), String::new()).perhaps;
        assert_eq!(perhaps("ab", 4), [1, 2, 4, 5].map(MemberId).into());
        assert_eq!(perhaps("ab", 0), [1, 2, 3, 4, 5].map(MemberId).into(), "group 0 has all");
        assert_eq!(perhaps("cd", 4), [1, 2, 3, 4, 5].map(MemberId).into(), "they are of another cluster");
    }

    #[test]
    fn who_lags_or_follows_another_leader_does_not_count() {
        let of = |members: Vec<v1::MemberStatus>| {
            let status = v1::ClusterStatusReply { members, ..Default::default() };
            let health = health_of(&status, &ClusterState::new(), GroupId(4), "set demo".into());
            (health.voters.len(), health.answering.into_iter().map(|id| id.0).collect::<Vec<_>>())
        };
        let leads = |id| member(id, group(v1::Role::Leader, id, 7, 9000));
        let follows = |id, applied| member(id, group(v1::Role::Follower, 1, 7, applied));
        assert_eq!(of(vec![leads(1), follows(2, 8990), follows(3, 9)]), (3, vec![1, 2]));
        let old = member(3, group(v1::Role::Leader, 3, 6, 9000));
        assert_eq!(of(vec![leads(1), follows(2, 9000), old]), (3, vec![1, 2]), "an old leader does not count");
        let knows = |bytes| {
            let peers = vec![
                v1::PeerLag { member: 2, entries: 10, bytes: 10 << 12 },
                v1::PeerLag { member: 3, entries: 900, bytes },
            ];
            member(1, v1::GroupStatus { peers, ..group(v1::Role::Leader, 1, 7, 9000) })
        };
        assert_eq!(of(vec![knows(9 << 20), follows(2, 8990), follows(3, 8100)]), (3, vec![1, 2, 3]));
        assert_eq!(of(vec![knows(900 << 20), follows(2, 8990), follows(3, 8100)]), (3, vec![1, 2]), "large entries");
        let healing = member(3, group(v1::Role::Healing, 0, 0, 0));
        assert_eq!(of(vec![leads(1), follows(2, 9000), healing]), (3, vec![1, 2]));
        assert_eq!(of(vec![follows(2, 9000), follows(3, 9000)]), (0, vec![]), "no leader answered");
    }
}
