//! Scene: every gateway stands in a region of its own, and an owner says that it stands beside one that does not lead.
//! Leadership goes there once it has lasted for its time, and not sooner (FOLLOW-F2). A next owner elsewhere takes the
//! set: leadership follows it as well, and then stays (FOLLOW-F1).

use crate::client::SET;
use crate::host::name;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail, ensure};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_control::set::TTL_MS_MAX;
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::{Locality, Name};

/// Milliseconds for a move, with the time that a leadership lasts at least.
const MOVES: u64 = 60_000;
/// Milliseconds in which nothing moves any more: several times as long as a leadership lasts at least.
const STAYS: u64 = 20_000;

fn region(host: usize) -> Result<Name> {
    Ok(Name::new(format!("r{}", host + 1))?)
}

impl World {
    /// Each gateway stands in a region of its own, before they are started.
    pub(super) fn stand_apart(&mut self) -> Result<()> {
        for (index, host) in self.hosts.iter_mut().enumerate() {
            host.locality = Some(Locality::of_region(region(index)?));
        }
        Ok(())
    }

    /// See the module.
    pub(super) fn followed_owner(&mut self) -> Result<()> {
        // No client takes the set meanwhile.
        self.clients.clear();
        let free = |w: &mut World| w.leader().and_then(|at| w.set(at)).is_some_and(|set| set.lease().is_none());
        self.until(60_000, "a set that nobody holds", free)?;
        let first = self.leader().context("no leader")?;
        let others = self.members_but(first);
        let [second, third, ..] = others[..] else { bail!("found members {others:?} beside the leader, expected two") };
        for (owner, to, request) in [("near", second, 7900), ("nearer", third, 7901)] {
            let at = self.leader().context("no leader")?;
            let door = AdminDoor::new(self.node(at).context("no node")?);
            let request = v1::AcquireLeaseRequest {
                set: SET.into(),
                owner: owner.into(),
                ttl_ms: TTL_MS_MAX,
                request_id: holdfast_api::hex128(request),
                force: true,
                locality: format!("region={}", region(to)?),
            };
            self.call(at, 30_000, async move { door.acquire_lease(tonic::Request::new(request)).await.map(|_| ()) })??;
            self.note(format!("{owner} has the set at {}, and stands beside {}", name(at), name(to)));
            self.until(MOVES, "leadership beside the owner", |w| w.leader() == Some(to))?;
            self.note(format!("{} leads", name(to)));
        }
        let stays = self.now + STAYS * MS;
        self.until(2 * STAYS, "some time", |w| w.now >= stays)?;
        ensure!(self.leader() == Some(third), "FOLLOW-F1: leadership went on, and the owner did not");
        let lease = self.set(third).and_then(|set| set.lease()).context("the lease is gone")?;
        ensure!(lease.owner.to_string() == "nearer", "R8: the set went to {}, and nobody asked for that", lease.owner);
        Ok(())
    }
}
