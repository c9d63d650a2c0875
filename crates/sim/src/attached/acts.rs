//! Runs the attaching hosts of a world, and injects their faults.

use super::owner::{Lent, Owner};
use super::{Attached, Fault};
use crate::client::Client;
use crate::net::{CutOff, Link};
use crate::world::{MS, World};
use anyhow::{Result, anyhow};

impl Attached {
    fn trouble(&mut self, world: &mut World) {
        let due: Vec<usize> =
            self.calm_at.iter().filter(|(_, at)| **at <= world.now).map(|(owner, _)| *owner).collect();
        for owner in due {
            self.calm_at.remove(&owner);
            self.links(owner, |_, _| Link::CALM, &world.net);
            world.note(format!("links of {} are calm again", self.owners[owner].name));
        }
        if self.mix.is_empty() || world.now < self.next_at {
            return;
        }
        self.next_at = world.now + self.rng.range(self.pause / 4, self.pause * 2) * MS;
        let fault = self.rng.pick(&self.mix);
        // Mostly the owner of the set.
        let owner = if self.rng.chance(750) { world.active } else { self.rng.below(self.owners.len() as u64) as usize };
        world.stats.attach_faults += 1;
        let (now, name) = (world.now, self.owners[owner].name.clone());
        match fault {
            Fault::Kill | Fault::Power => {
                let mut lines = Vec::new();
                self.owners[owner].kill(now, fault == Fault::Power, &mut lines);
                lines.iter().for_each(|line| world.note(line));
            }
            Fault::Stop | Fault::Suspend if !self.owners[owner].runs(now) => {}
            Fault::Stop => {
                let ms = self.rng.pick(&[20, 150, 900, 3_000, 6_000]);
                world.note(format!("{name} is stopped for {ms} ms"));
                self.owners[owner].time.stop(now + ms * MS);
            }
            Fault::Suspend => {
                let ms = self.rng.pick(&[200, 1_500, 4_000]);
                world.note(format!("{name} sleeps for {ms} ms"));
                self.owners[owner].time.suspend(now, now + ms * MS);
            }
            Fault::Cut | Fault::CutOneWay => {
                let all = self.rng.chance(400);
                let cut = CutOff::drawn(&mut self.rng, self.gateways, all, fault == Fault::CutOneWay);
                world.note(format!("{name} is cut off: {cut}"));
                self.links(owner, |gateway, there| cut.link(gateway, there), &world.net);
                self.calm_at.insert(owner, now + self.rng.range(200, 6_000) * MS);
            }
            Fault::Lossy => {
                let (link, words) = Link::lossy(&mut self.rng);
                world.note(format!("links of {name}: {words}"));
                self.links(owner, |_, _| link, &world.net);
                self.calm_at.insert(owner, now + self.rng.range(500, 6_000) * MS);
            }
        }
    }

    fn run(&mut self, world: &mut World) -> Result<(), String> {
        let (now, active) = (world.now, world.active);
        let forced = self.owners[active].force;
        let mut log = Vec::new();
        let mut outcome = Ok(());
        for (index, owner) in self.owners.iter_mut().enumerate() {
            let (was, before, resent) = (owner.opened, owner.errors, owner.resent);
            owner.slice(now);
            let (wanted, busy, gateways) = (index == active, world.busy, self.gateways);
            let forced = forced && !wanted;
            let mut lent = Lent { now, model: &mut world.model, wanted, forced, busy, gateways, log: &mut log };
            let (grants, name) = (&self.grants, owner.name.clone());
            let taken = |epoch: u64| grants.range(epoch + 1..).any(|(_, to)| *to != name);
            outcome = owner.answers(&mut lent, taken).and_then(|()| owner.tick(&mut lent));
            world.stats.attached += owner.opened - was;
            world.stats.fenced += owner.errors - before;
            world.stats.resent += owner.resent - resent;
            if outcome.is_err() {
                break;
            }
        }
        log.iter().for_each(|line| world.note(line));
        outcome
    }
}

impl World {
    fn with_attached<T>(&mut self, work: impl FnOnce(&mut Attached, &mut World) -> T) -> Option<T> {
        let mut attached = self.attached.take()?;
        let outcome = work(&mut attached, self);
        self.attached = Some(attached);
        Some(outcome)
    }

    /// Runs the attaching hosts up to now.
    pub fn run_attached(&mut self) -> Result<()> {
        let outcome = self.with_attached(Attached::run).unwrap_or(Ok(()));
        let fatal = crate::host::take_fatal();
        anyhow::ensure!(fatal.is_empty(), "in attach: {}", fatal.join("; "));
        outcome.map_err(|broken| anyhow!(broken))
    }

    /// May inject a fault at one of the hosts.
    pub fn trouble_attached(&mut self) {
        self.with_attached(Attached::trouble);
    }

    /// They all go on, over calm links.
    pub fn calm_attached(&mut self) {
        self.with_attached(|attached, world| {
            attached.calm_at.clear();
            for owner in 0..attached.owners.len() {
                attached.links(owner, |_, _| Link::CALM, &world.net);
                attached.owners[owner].time.wake(world.now);
            }
        });
    }

    /// Notes the lease that gateway `index` knows of.
    pub fn see_grants(&mut self, index: usize) {
        if self.agents.is_some() {
            return self.agents_see_grants(index);
        }
        if self.attached.is_none() {
            return;
        }
        let lease = self.set(index).and_then(|set| set.lease());
        if let (Some(lease), Some(attached)) = (lease, &mut self.attached) {
            attached.grants.insert(lease.epoch.0, lease.owner.to_string());
        }
    }

    /// Wants another owner: once the set is free, or by force.
    pub fn want_other_owner(&mut self, force: bool) {
        if self.agents.is_some() {
            return self.want_other_primary(force);
        }
        self.active = (self.active + 1) % self.clients.len();
        let active = self.active;
        match &mut self.attached {
            Some(attached) => attached.owners[active].force = force,
            None => self.clients[active].force = force,
        }
    }

    /// Whether the wanted owner has read everything and may write.
    pub fn owner_is_open(&self) -> bool {
        if self.agents.is_some() {
            return self.has_one_primary();
        }
        match &self.attached {
            Some(attached) => attached.owners[self.active].is_open(),
            None => self.clients[self.active].is_open(),
        }
    }

    /// Whether nothing of any owner is unanswered.
    pub fn owners_are_quiet(&mut self) -> bool {
        if self.agents.is_some() {
            return self.databases_are_quiet();
        }
        match &self.attached {
            Some(attached) => attached.owners.iter().all(Owner::is_quiet),
            None => self.clients.iter().all(Client::is_quiet),
        }
    }

    /// The devices survived all faults of the gateways: the same ones show everything.
    pub fn read_back_attached(&mut self) -> Result<()> {
        let active = self.active;
        let swept = move |w: &World| w.attached.as_ref().map_or(0, |attached| attached.owners[active].swept);
        let before = swept(self);
        if let Some(attached) = &mut self.attached {
            attached.owners[active].sweep = true;
        }
        self.until(120_000, "everything read back through the attached device", |w| swept(w) > before)
    }

    /// The other owner attaches once this one has detached, and reads everything.
    pub fn other_attaches(&mut self) -> Result<()> {
        if self.agents.is_some() {
            return self.other_becomes_primary();
        }
        if self.attached.is_none() {
            return Ok(());
        }
        self.busy = true;
        self.want_other_owner(false);
        self.works("writes and reads of the other owner")
    }
}
