//! A whole run: a cluster, faults by chance, the healing, and everything read back.

use crate::nemesis::Nemesis;
use crate::world::{MS, World};
use anyhow::{Result, bail};

/// A run with less than this many milliseconds of faults has more of them at a time, and requires less progress.
const SHORT: u64 = 10_000;

impl World {
    /// The whole run: a cluster, faults for `chaos` milliseconds, healing.
    pub fn run(&mut self, chaos: u64) -> Result<()> {
        self.bootstrap()?;
        self.busy = true;
        let short = chaos < SHORT;
        self.short = short;
        if short {
            self.enough = 30;
        }
        self.works("the first writes")?;
        let mut nemesis = Nemesis::new(self, short);
        self.trouble_stores(short);
        let until = self.now + chaos * MS;
        while self.now < until {
            nemesis.tick(self)?;
            self.trouble_attached();
            self.trouble_agents();
            self.fill_disks()?;
            self.move_sets();
            self.tick()?;
        }
        self.heal_and_read_back(&mut nemesis)
    }

    /// All faults end; then everything must work, and all data must be there, before and after a power cut of all
    /// machines.
    fn heal_and_read_back(&mut self, nemesis: &mut Nemesis) -> Result<()> {
        self.empty_disks();
        nemesis.heal(self)?;
        self.calm_attached();
        self.calm_agents();
        self.note("healed");
        // Membership first, so that the rest is tested with the final groups.
        let begun = self.now;
        while let Some(missing) = self.members_missing().or_else(|| self.not_everywhere()) {
            if self.now >= begun + 180_000 * MS {
                bail!(
                    "no progress: the members are not settled 180 s after every fault: {missing}. {}",
                    self.picture()
                );
            }
            nemesis.want_all_active(self);
            self.place_everywhere();
            for _ in 0..5 {
                self.tick()?;
            }
        }
        self.note("every group has the members that group 0 names");
        self.works("writes and reads")?;
        self.settle_snapshots()?;
        self.all_in_the_store()?;
        self.until(60_000, "the same state everywhere", |w| {
            let members = (0..w.hosts.len()).filter(|h| w.places[*h].is_some());
            let at: Vec<_> = members.map(|h| w.set(h).map(|s| s.host.with(|m| m.applied()))).collect();
            at[0].is_some() && at.iter().all(|applied| *applied == at[0])
        })?;
        let objects = self.stores.servers[0].objects();
        self.note(format!("all at the same entry, everything in {objects} objects"));
        self.settle_stores()?;
        self.power_and_read_back()?;
        self.works("writes and reads after a power cut")?;
        self.settle_snapshots()?;
        self.without_each_store()?;
        self.other_attaches()
    }
}
