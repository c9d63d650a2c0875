//! What a drain would move, before anybody asks for it: `control::members::forecast` in the form of the admin API. A
//! call of its own, because a gateway of an older build would ignore a field that says "only look", and drain.

use super::AdminDoor;
use holdfast_api::{Refusal, v1};
use holdfast_control::cluster::ClusterState;
use holdfast_control::members::{Forecast, Stays, forecast, may_drain};
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;

impl AdminDoor {
    pub(super) async fn plan_drain(&self, request: v1::PlanDrainRequest) -> Result<v1::DrainPlan, Refusal> {
        let adopted = self.led_cluster()?;
        let Some(term) = adopted.group.leading_term() else {
            return Err(self.not_leader(&adopted.group, "the cluster"));
        };
        let state = self.node.cluster.state();
        let member = Self::known_member(&state, request.member)?;
        let groups = self.health(&state).await?;
        let refused = may_drain(&state, &groups, &member, request.force).err();
        let view = self.planning_view(&adopted, &state, term);
        let steps = forecast(&state, &groups, member.id, &view, &self.node.live().placing.rules());
        Ok(v1::DrainPlan {
            member: member.id.0,
            refused: refused.map(|why| why.to_string()).unwrap_or_default(),
            steps: steps.into_iter().map(|step| step_message(&state, step)).collect(),
        })
    }
}

fn step_message(state: &ClusterState, step: Forecast) -> v1::DrainStep {
    let names = |ids: BTreeSet<MemberId>| -> Vec<String> {
        let name = |id: MemberId| state.members.get(&id).map_or(id.to_string(), |member| member.name.to_string());
        ids.into_iter().map(name).collect()
    };
    let told = |what: Option<Result<BTreeSet<MemberId>, Stays>>| match what {
        None => (false, Vec::new(), String::new()),
        Some(Ok(to)) => (true, names(to), String::new()),
        Some(Err(why)) => (true, Vec::new(), why.to_string()),
    };
    let (leads, leaders, leads_on) = told(step.leader);
    let (votes, newcomers, votes_on) = told(step.vote);
    let set = |id: GroupId| state.sets.get(&id).map(|entry| entry.name.to_string()).unwrap_or_default();
    v1::DrainStep { group: step.group.0, set: set(step.group), leads, leaders, leads_on, votes, newcomers, votes_on }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_and_what_stays_is_told_apart() {
        let state = ClusterState::new();
        let vote = Some(Err(Stays::Nobody));
        let step = Forecast { group: GroupId(4), leader: Some(Ok([2, 3].map(MemberId).into())), vote };
        let told = step_message(&state, step);
        assert_eq!((told.leads, told.leaders.join(" "), told.leads_on.as_str()), (true, "m2 m3".to_string(), ""));
        assert_eq!((told.votes, told.newcomers.len()), (true, 0));
        assert_eq!(told.votes_on, "no other gateway may have its vote");
        let none = step_message(&state, Forecast { group: GroupId(4), leader: None, vote: None });
        assert_eq!(none, v1::DrainStep { group: 4, ..Default::default() });
    }
}
