//! Scene: the state snapshot that a leader sends to a member which is healed is damaged on its way, behind the
//! checksums of TCP. The member takes nothing of it (PIECES-S2), and gets it again (R9).

use super::damaged_disks::rot;
use crate::client::SET;
use crate::host::name;
use crate::rng::Rng;
use crate::world::World;
use anyhow::{Context, Result, ensure};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_gateway::admin::AdminDoor;

/// The name of a volume, by which a state is known on its way: between gateways nothing else has it once the entry that
/// made the volume is purged.
const KNOWN_BY: &str = "damaged-on-the-way";

impl World {
    /// See the module.
    pub(super) fn damaged_on_the_way(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 17);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "a leader", |w| w.leader().is_some())?;
        let at = self.leader().context("no leader")?;
        let door = AdminDoor::new(self.node(at).context("no node")?);
        let request = v1::CreateVolumeRequest {
            set: SET.into(),
            name: KNOWN_BY.into(),
            size_bytes: 1 << 20,
            request_id: holdfast_api::hex128(7800),
        };
        self.call(at, 30_000, async move { door.create_volume(tonic::Request::new(request)).await.map(|_| ()) })??;
        self.works("writes behind it")?;
        self.all_in_the_store()?;
        self.busy = true;
        let host = self.seasoned_member(&mut rng)?;
        let id = self.set(host).context("no set")?.id;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].kill(now);
        rot(&self.hosts[host].state_snapshot(id))?;
        self.net.damage_next(host, KNOWN_BY.as_bytes());
        self.note(format!("the next state snapshot on its way to {} is damaged", name(host)));
        self.hosts[host].start(now, rtt)?;
        self.until(60_000, "the damage on its disk is found", |w| w.heals(host))?;
        self.until(180_000, "every member whole again", |w| w.is_whole())?;
        ensure!(self.net.has_damaged(), "no state snapshot with the name of the volume was sent");
        self.works("writes and reads after it")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }
}
