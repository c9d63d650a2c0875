//! Scene: attach stands still while another owner takes its set by force. Its requests are answered with errors, and
//! the gateway dies: both lie in its sockets as it goes on. It is fenced by the first, and must not take the end of the
//! connection, which it reads in the same breath, for a loss to be mended: its devices answer with errors, and it ends
//! (R8, ATTACH-M5).

use super::owner::Owner;
use crate::client::SET;
use crate::net::Link;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_gateway::admin::AdminDoor;

/// Milliseconds in which requests are on their way and do not arrive: less than attach waits for an answer.
const HELD: u64 = 150;
/// Milliseconds until they have arrived, been answered, and the answers have arrived.
const ANSWERED: u64 = 1_500;
/// Milliseconds until the end of a connection has arrived.
const ENDED: u64 = 100;
/// Time to live of the other owner's lease.
const TTL_MS: u32 = 3_000;
/// Longer than attach stands still.
const STILL: u64 = 600_000;

impl World {
    /// See the module.
    pub fn late_loss(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let (first, at) = (self.active, self.leader().context("no leader")?);
        self.hold_requests(first, true)?;
        self.let_pass(HELD)?;
        let now = self.now;
        let owner = self.owner_at(first)?;
        owner.time.stop(now + STILL * MS);
        let (name, errors) = (owner.name.clone(), owner.errors);
        self.note(format!("{name} stands still, with requests on their way"));
        // One that does not connect: its connections would end those of the first one.
        let door = AdminDoor::new(self.node(at).context("no node")?);
        let request = v1::AcquireLeaseRequest {
            set: SET.into(),
            owner: "late".into(),
            ttl_ms: TTL_MS,
            request_id: holdfast_api::hex128(7700),
            force: true,
            locality: String::new(),
        };
        self.call(at, 30_000, async move { door.acquire_lease(tonic::Request::new(request)).await.map(|_| ()) })??;
        self.hold_requests(first, false)?;
        self.let_pass(ANSWERED)?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[at].kill(now);
        self.note(format!("gateway {} is killed", at + 1));
        self.let_pass(ENDED)?;
        let now = self.now;
        self.owner_at(first)?.time.wake(now);
        self.note(format!("{name} goes on"));
        self.want_other_owner(false);
        self.hosts[at].start(now, rtt)?;
        self.works("writes and reads of the other owner")?;
        let after = self.owner_at(first)?.errors;
        ensure!(
            after > errors,
            "R8: {name} has lost its set, and no request of its devices was answered with an error"
        );
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    fn owner_at(&mut self, index: usize) -> Result<&mut Owner> {
        self.attached.as_mut().and_then(|attached| attached.owners.get_mut(index)).context("no such owner")
    }

    /// Whether what an owner sends stays on its way to the gateways.
    fn hold_requests(&self, owner: usize, held: bool) -> Result<()> {
        let attached = self.attached.as_ref().context("nothing is attached")?;
        attached.links(owner, |_, there| Link { cut: held && there, ..Link::CALM }, &self.net);
        Ok(())
    }

    fn let_pass(&mut self, ms: u64) -> Result<()> {
        let until = self.now + ms * MS;
        self.until(2 * ms, "some time", |w| w.now >= until)
    }
}
