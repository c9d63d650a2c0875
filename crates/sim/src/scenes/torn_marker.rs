//! Scene: the power of a gateway fails between the write of a batch and its sync, where an idle marker stands before
//! the batch that no sync has covered either. The disk keeps the batch and loses the marker: a gap in the unsynced
//! tail, with whole records behind it. That is no corruption: the tail is cut or kept, and nothing that was synced is
//! lost (R1, R9, JOURNAL-J1).

use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::Result;

/// Power cuts in one course.
const ROUNDS: usize = 3;
/// Milliseconds that a write takes: so that one is seen before it begins.
const WRITE_MS: u64 = 5;

impl World {
    /// See the module.
    pub(super) fn torn_marker(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 22);
        self.busy = true;
        self.works("the first writes")?;
        for _ in 0..ROUNDS {
            self.until(180_000, "every member whole", |w| w.is_whole())?;
            let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
            let host = rng.pick(&members);
            let delay = std::mem::replace(&mut self.hosts[host].disk_delay, (WRITE_MS * MS, WRITE_MS * MS));
            self.until(60_000, "a write behind an idle marker", |w| {
                // Writers pause until the journal has marked that it is idle.
                w.busy = w.hosts[host].is_marked_idle();
                let now = w.now;
                w.hosts[host].cut_power_behind_marker(now)
            })?;
            self.note(format!("{} loses power behind an idle marker", name(host)));
            self.hosts[host].disk_delay = delay;
            self.busy = true;
            let (now, rtt) = (self.now, self.rtt_ms);
            self.hosts[host].start(now, rtt)?;
            self.until(180_000, "every member whole", |w| w.is_whole())?;
            self.works("writes and reads after it")?;
        }
        self.all_in_the_store()?;
        self.power_and_read_back()
    }
}
