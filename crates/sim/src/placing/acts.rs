//! Moves the sets of a world.

use crate::rng::Rng;
use crate::world::{MS, World};
use holdfast_control::cluster::{ClusterCommand, ClusterState, Standing};
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;

/// Milliseconds between two requests for the places of the end.
const AGAIN: u64 = 500;
/// How often members are drawn until they are others than now.
const DRAWS: usize = 8;

/// Members that do not leave.
fn staying(state: &ClusterState) -> Vec<MemberId> {
    state.members.values().filter(|member| member.standing != Standing::Leaving).map(|member| member.id).collect()
}

impl World {
    /// May ask for other places of a set now. Often rightly refused.
    pub fn move_sets(&mut self) {
        let Some(mut placing) = self.placing.take() else { return };
        if self.now >= placing.next_at {
            placing.next_at = self.now + placing.rng.range(placing.pause / 4, placing.pause * 2) * MS;
            let sets: Vec<GroupId> = self.cluster().map(|state| state.sets.into_keys().collect()).unwrap_or_default();
            if !sets.is_empty() {
                let id = placing.rng.pick(&sets);
                if let Some(to) = self.some_members(&mut placing.rng, id) {
                    self.note(format!("set {id} is to be on {to:?}"));
                    self.ask_to_place(id, &to);
                }
            }
        }
        self.placing = Some(placing);
    }

    /// Asks for every set on every member that stays, until it is so.
    pub fn place_everywhere(&mut self) {
        let Some(placing) = self.placing.as_mut().filter(|placing| self.now >= placing.next_at) else { return };
        placing.next_at = self.now + AGAIN * MS;
        let Some(state) = self.cluster() else { return };
        let all: BTreeSet<MemberId> = staying(&state).into_iter().collect();
        for (id, entry) in &state.sets {
            if !entry.voters.is_empty() {
                self.ask_to_place(*id, &all);
            }
        }
    }

    /// A set that is not on every member yet.
    pub fn not_everywhere(&self) -> Option<String> {
        self.placing.as_ref()?;
        let state = self.cluster()?;
        let all: BTreeSet<MemberId> = staying(&state).into_iter().collect();
        let named = state.sets.iter().filter(|(_, entry)| !entry.voters.is_empty());
        let mut left = named.filter(|(_, entry)| entry.voters != all);
        left.next().map(|(id, entry)| format!("set {id} is on {:?}, and to be on {all:?}", entry.voters))
    }

    /// Members that stay, others than the set's record names now.
    pub fn some_members(&self, rng: &mut Rng, id: GroupId) -> Option<BTreeSet<MemberId>> {
        let state = self.cluster()?;
        let members = staying(&state);
        let now = state.sets.get(&id)?.voters.clone();
        for _ in 0..DRAWS {
            let mut left = members.clone();
            let mut to = BTreeSet::new();
            for _ in 0..rng.range(1, members.len().max(1) as u64) {
                if !left.is_empty() {
                    to.insert(left.remove(rng.below(left.len() as u64) as usize));
                }
            }
            if to != now && !to.is_empty() {
                return Some(to);
            }
        }
        None
    }

    /// Sent to the leader of group 0; the effect is seen in group 0.
    pub fn ask_to_place(&self, id: GroupId, to: &BTreeSet<MemberId>) {
        let Some(state) = self.cluster() else { return };
        let now = state.sets.get(&id).map(|entry| entry.voters.clone());
        let Some(from) = now.filter(|now| now != to) else { return };
        let Some((node, process)) =
            self.leader_of(GroupId::CLUSTER).and_then(|at| Some((self.node(at)?, self.hosts[at].process.as_ref()?)))
        else {
            return;
        };
        let command = ClusterCommand::PlaceVoters { set: id, from, to: to.clone() };
        process.spawn(async move {
            let Some(adopted) = node.adopted() else { return };
            drop(node.cluster.command(&adopted.group, &command).await);
        });
    }
}
