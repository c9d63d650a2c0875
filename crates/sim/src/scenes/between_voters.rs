//! Scene: a change of voters stops between its two entries (MEMBER-M5). First a member that is to go leads then, and
//! hears nobody; then nobody of the newer voters answers but the leader. Neither ends the change by itself; once all
//! are there again, it ends.

use crate::host::name;
use crate::members::Wish;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result};
use holdfast_types::GroupId;

/// Milliseconds in which the change stands still.
const STILL: u64 = 3_000;
/// Milliseconds between two candidacies of the member that is to go, and how often it stands.
const AGAIN: u64 = 300;
const STANDS: u64 = 20;

impl World {
    /// See the module. Without a machine to spare there is no such course.
    pub(super) fn between_voters(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 15);
        self.busy = true;
        self.works("the first writes")?;
        if self.places.iter().all(Option::is_some) {
            self.note("no machine is empty");
            return Ok(());
        }
        for goes_leads in [true, false] {
            self.until(120_000, "members settled", |w| w.members_missing().is_none())?;
            let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
            let (goes, leader) = self.between_two(&mut rng, id)?;
            if goes_leads {
                self.goes_and_leads(goes, leader, id)?;
            } else {
                self.leads_without_the_newer(goes, leader)?;
            }
            self.until(240_000, "the change has ended, and the member has left", |w| w.members_missing().is_none())?;
            self.works("writes and reads with the newer voters")?;
        }
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// Replaces a member that does not lead until its group is between two sets of voters, as it knows itself. Returns
    /// where that member and the leader are.
    fn between_two(&mut self, rng: &mut Rng, id: GroupId) -> Result<(usize, usize)> {
        let spare = self.places.iter().position(Option::is_none).context("no machine is empty")?;
        let leader = self.leader_of(id).context("no leader")?;
        let others = self.members_but(leader);
        let goes = rng.pick(&others);
        let replaces = self.places[goes].context("a member")?;
        self.until(120_000, "two sets of voters", |w| {
            if w.places[spare].is_none() {
                w.want(rng, Wish::Join { host: spare, replaces });
            }
            w.group(goes, id).is_some_and(|group| group.status().next.is_some())
        })?;
        Ok((goes, self.leader_of(id).unwrap_or(leader)))
    }

    /// The leader is killed, the member that is to go stands for election, and once it leads it hears nobody.
    fn goes_and_leads(&mut self, goes: usize, leader: usize, id: GroupId) -> Result<()> {
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[leader].kill(now);
        self.note(format!("{} is killed between two sets of voters", name(leader)));
        for _ in 0..STANDS {
            if self.leader_of(id) == Some(goes) || self.group(goes, id).is_none() {
                break;
            }
            self.stands(goes, id)?;
            self.pass(AGAIN)?;
        }
        let leads = self.leader_of(id) == Some(goes);
        self.note(format!("{} leads, and is to go: {leads}", name(goes)));
        self.cut(goes, true);
        self.pass(STILL)?;
        self.cut(goes, false);
        let now = self.now;
        self.hosts[leader].start(now, rtt)
    }

    /// All but the leader and the member that is to go are killed.
    fn leads_without_the_newer(&mut self, goes: usize, leader: usize) -> Result<()> {
        let rest: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.places[*host].is_some() && *host != goes && *host != leader)
            .collect();
        let (now, rtt) = (self.now, self.rtt_ms);
        for host in &rest {
            self.hosts[*host].kill(now);
        }
        self.note(format!("of the newer voters only {} is there", name(leader)));
        self.pass(STILL)?;
        let now = self.now;
        for host in rest {
            self.hosts[host].start(now, rtt)?;
        }
        Ok(())
    }

    fn pass(&mut self, ms: u64) -> Result<()> {
        let next = self.now + ms * MS;
        self.until(2 * ms, "some time", |w| w.now >= next)
    }
}
