//! Scene: a gateway of another cluster takes a gateway of this one for its second member, as with a wrong address in
//! its settings. It gets no answer, founds nothing, and disturbs nobody.

use crate::host::name;
use crate::world::{CLUSTER, World};
use anyhow::{Context, Result, ensure};
use holdfast_api::v1;
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::MemberId;

/// The other cluster.
const OTHER: u128 = CLUSTER + 1;

impl World {
    /// See the module. Without a machine to spare there is no such course.
    pub(super) fn other_cluster(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let Some(spare) = (0..self.hosts.len()).find(|host| self.places[*host].is_none()) else {
            self.note("no machine is empty");
            return Ok(());
        };
        let ours = self.leader().context("no leader")?;
        let node = self.node(spare).context("no node")?;
        let first = v1::Member { id: 1, ..self.member(spare, node.identity().disk()) };
        let second = v1::Member { id: 2, ..self.member(ours, OTHER) };
        let (founder, door) = (node.clone(), AdminDoor::new(node));
        self.call(spare, 10_000, async move { founder.adopt(OTHER, MemberId(1)).await })??;
        self.note(format!("{} founds another cluster, with {} in it", name(spare), name(ours)));
        let init = v1::InitClusterRequest {
            cluster_id: holdfast_api::hex128(OTHER),
            members: vec![first, second],
            request_id: holdfast_api::hex128(7400),
        };
        let founded = self.call(spare, 120_000, async move { door.init_cluster(init).await })?;
        self.note(format!("founded: {:?}", founded.as_ref().map_err(ToString::to_string)));
        ensure!(founded.is_err(), "a gateway of this cluster votes in another one");
        self.works("writes and reads beside the other cluster")?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[spare].wipe(now)?;
        self.hosts[spare].start(now, rtt)?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }
}
