//! What a gateway's page shows (ADR 0064), from the same messages as `cluster status`, `set show` and `snapshot list`.

use super::{AdminDoor, snapshot};
use futures_util::future::BoxFuture;
use holdfast_api::{Refusal, v1};
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

impl AdminDoor {
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
