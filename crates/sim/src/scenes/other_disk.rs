//! Scene: a machine with an empty disk is told that it is a member of this cluster which runs elsewhere, as with a
//! wrong setting or a lost disk that was put up again without `holdfast gateway replace`. It has acknowledged nothing
//! of what that member has, so it gets no vote and counts for nobody (CLUSTER-C3).

use crate::host::name;
use crate::sync::lock;
use crate::world::{CLUSTER, World};
use anyhow::{Context, Result, ensure};
use holdfast_api::v1;
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::MemberId;
use std::sync::{Arc, Mutex};

/// The member whose place it takes, and the one that it asks, as the first ones of a cluster. The machines' numbers are
/// one less.
const ITSELF: u64 = 1;
const ASKED: usize = 1;

impl World {
    /// See the module. Without a machine to spare there is no such course.
    pub(super) fn other_disk(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let Some(spare) = (0..self.hosts.len()).find(|host| self.places[*host].is_none()) else {
            self.note("no machine is empty");
            return Ok(());
        };
        let (node, asked) = (self.node(spare).context("no node")?, self.node(ASKED).context("no node")?);
        let first = v1::Member { id: ITSELF, ..self.member(spare, node.identity().disk()) };
        let second = self.member(ASKED, asked.identity().disk());
        let (founder, door) = (node.clone(), AdminDoor::new(node));
        self.call(spare, 10_000, async move { founder.adopt(CLUSTER, MemberId(ITSELF)).await })??;
        self.note(format!("{} takes itself for m{ITSELF}, and asks {}", name(spare), name(ASKED)));
        (self.restored, self.told) = (Some(spare), 0);
        let init = v1::InitClusterRequest {
            cluster_id: holdfast_api::hex128(CLUSTER),
            members: vec![first, second],
            request_id: holdfast_api::hex128(7500),
        };
        let founded: Arc<Mutex<Option<Result<(), String>>>> = Arc::default();
        let to = founded.clone();
        let process = self.hosts[spare].process.as_ref().context("no process")?;
        process.spawn(async move {
            let answer = door.init_cluster(init).await.map(|_| ()).map_err(|refusal| refusal.to_string());
            *lock(&to) = Some(answer);
        });
        // It may be told that it is not that member, and ends then.
        self.until(120_000, "an answer", |w| w.told > 0 || lock(&founded).is_some())?;
        let answer = lock(&founded).take();
        self.note(format!("told {} times; founded: {answer:?}", self.told));
        ensure!(!matches!(answer, Some(Ok(()))), "CLUSTER-C3: a member votes for another disk in a member's place");
        self.works("writes and reads beside the other disk")?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[spare].wipe(now)?;
        self.hosts[spare].start(now, rtt)?;
        self.restored = None;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }
}
