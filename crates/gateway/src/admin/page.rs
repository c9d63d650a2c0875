//! What a gateway's page shows (ADR 0064), from the same messages as `cluster status`, `set show` and `snapshot list`.

use super::{AdminDoor, member_message, snapshot};
use futures_util::future::BoxFuture;
use holdfast_api::{Refusal, v1};
use holdfast_control::cluster::{ClusterState, Member};
use holdfast_raft::Group;
use holdfast_set::server::SetServer;
use holdfast_types::Name;
use holdfast_types::sync::RwLockExt;

/// Most sets of this gateway that are shown, in the order of their names. A page with all of a large cluster would be
/// slow to read and to make.
pub(crate) const SETS_MAX: usize = 200;

/// Most snapshots that are shown of a set, the newest.
const SNAPSHOTS_MAX: usize = 10;

/// A set that runs on this gateway, as applied here.
#[derive(Debug, Default)]
pub(crate) struct SetHere {
    /// Without asking its leader.
    pub status: v1::SetStatus,
    /// The newest ones, newest first; those that wait for their checkpoint before all others.
    pub snapshots: Vec<v1::Snapshot>,
    /// How many there are.
    pub snapshots_total: usize,
}

/// The state of the cluster as this gateway knows it, with the answers of the others.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// A gateway without a cluster is its only member.
    pub cluster: v1::ClusterStatusReply,
    /// Why there is no state of a cluster; "" if there is.
    pub trouble: String,
    /// Warnings of this gateway, as at `/healthz`.
    pub warnings: Vec<String>,
    /// At most [`SETS_MAX`].
    pub sets: Vec<SetHere>,
}

/// A set of this gateway, for the page's forms.
#[derive(Debug, Default)]
pub(crate) struct SetToAct {
    /// Its name.
    pub name: String,
    /// Whether this gateway leads it: only then calls about it are carried out here.
    pub led_here: bool,
    /// Name of the gateway that leads it; "" if none is known.
    pub leader: String,
    /// Who has its lease; "" if nobody has.
    pub owner: String,
    /// Names of other gateways that could lead it. Whether one has caught up is looked at when it is asked for.
    pub heirs: Vec<String>,
}

/// What the page's forms are about, as applied here. No other gateway is asked.
#[derive(Debug, Default)]
pub(crate) struct ToAct {
    /// Name of this gateway.
    pub here: String,
    /// Whether this gateway leads the cluster: only then gateways are drained here.
    pub led_here: bool,
    /// Name of the gateway that leads the cluster; "" if none is known.
    pub leader: String,
    /// All gateways.
    pub members: Vec<v1::Member>,
    /// At most [`SETS_MAX`].
    pub sets: Vec<SetToAct>,
}

impl AdminDoor {
    /// What there is to act on.
    pub(crate) fn to_act(&self) -> ToAct {
        let state = self.node.cluster.state();
        let here = self.node.config.name.to_string();
        let Some(adopted) = self.node.adopted() else { return ToAct { here, ..ToAct::default() } };
        let sets: Vec<_> = self.node.sets.reading().values().take(SETS_MAX).cloned().collect();
        ToAct {
            here,
            led_here: adopted.group.leading_term().is_some(),
            leader: leader_name(&state, &adopted.group),
            members: state.members.values().map(member_message).collect(),
            sets: sets.iter().map(|set| set_to_act(&state, set)).collect(),
        }
    }

    /// Asks the other gateways, each within the limit of `cluster status`.
    pub(crate) fn gathered(&self) -> BoxFuture<'_, Gathered> {
        Box::pin(async move {
            let (cluster, trouble) = match self.cluster_status(v1::ClusterStatusRequest {}).await {
                Ok(cluster) => (cluster, String::new()),
                Err(refusal) => (self.only_this_gateway().await, refusal.to_string()),
            };
            let names: Vec<Name> = self.node.sets.reading().keys().take(SETS_MAX).cloned().collect();
            let mut sets = Vec::new();
            for name in names {
                // One that is just being stopped is left out.
                sets.extend(self.set_here(&name).await.ok());
                // Many sets with many snapshots must not keep a thread of the runtime from heartbeats.
                tokio::task::yield_now().await;
            }
            Gathered { cluster, trouble, warnings: self.node.warnings(), sets }
        })
    }

    /// This gateway alone, in the form of a cluster.
    async fn only_this_gateway(&self) -> v1::ClusterStatusReply {
        let answered_by = self.node.config.name.to_string();
        let (node, error) = match self.get_node(v1::GetNodeRequest {}).await {
            Ok(node) => (Some(node), String::new()),
            Err(refusal) => (None, refusal.to_string()),
        };
        let known = v1::Member {
            name: answered_by.clone(),
            region: self.node.config.locality().region.to_string(),
            locality: self.node.config.locality().to_string(),
            role: self.node.config.role.as_str().to_string(),
            ..v1::Member::default()
        };
        let reachable = node.is_some();
        let members =
            vec![v1::MemberStatus { member: Some(known), reachable, error, node, lags: Vec::new(), late: false }];
        v1::ClusterStatusReply { answered_by, members, ..v1::ClusterStatusReply::default() }
    }

    async fn set_here(&self, name: &Name) -> Result<SetHere, Refusal> {
        let status = self.get_set(v1::GetSetRequest { set: name.to_string(), any_view: true }).await?;
        let mut snapshots = self.node.set(name).map(|set| snapshot::listed(&set)).unwrap_or_default();
        let snapshots_total = snapshots.len();
        snapshots.reverse();
        snapshots.truncate(SNAPSHOTS_MAX);
        Ok(SetHere { status, snapshots, snapshots_total })
    }
}

fn leader_name(state: &ClusterState, group: &Group) -> String {
    let leader = group.leadership().borrow().leader;
    leader.and_then(|id| state.members.get(&id)).map(|member| member.name.to_string()).unwrap_or_default()
}

fn set_to_act(state: &ClusterState, set: &SetServer) -> SetToAct {
    let me = set.group.me();
    let has_place = |member: &Member| state.sets.get(&set.id).is_none_or(|entry| entry.has_place_for(member.id));
    let heirs = state.members.values().filter(|member| member.id != me && member.serves() && has_place(member));
    SetToAct {
        name: set.name.to_string(),
        led_here: set.group.leading_term().is_some(),
        leader: leader_name(state, &set.group),
        owner: set.lease().map(|lease| lease.owner.to_string()).unwrap_or_default(),
        heirs: heirs.map(|member| member.name.to_string()).collect(),
    }
}
