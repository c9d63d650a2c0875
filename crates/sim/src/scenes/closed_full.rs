//! Scene: the disk of a follower is full, its journal has entries that wait for a file, and its gateway is told to
//! stop. The journal does not wait for room then: it ends, and acknowledges nothing of what it has not written (R1).

use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result};
use holdfast_log::LogUsage;

/// Milliseconds without a write after which entries wait for room, while clients write.
const WAITS: u64 = 500;

impl World {
    /// See the module.
    pub(super) fn closed_full(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 21);
        self.busy = true;
        self.works("the first writes")?;
        let host = self.whole_follower(&mut rng)?;
        self.note(format!("the disk of {} is full", name(host)));
        self.fill_disk(host, WAITS)?;
        let adopted = self.node(host).and_then(|node| node.adopted()).context("not adopted")?;
        adopted.raft.log().clone().close();
        self.until(10_000, "its journal has ended", |w| w.usage(host).is_some_and(|usage| usage.failed.is_some()))?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].kill(now);
        self.hosts[host].start(now, rtt)?;
        self.note(format!("{} starts again, with room", name(host)));
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        self.works("writes and reads after it")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// The disk of `host` takes no more files, until its journal has entries that wait for room: it has not written
    /// for `waits` ms.
    pub(super) fn fill_disk(&mut self, host: usize, waits: u64) -> Result<()> {
        let disk = self.hosts[host].disk.clone();
        let (mut writes, mut since) = (disk.writes(), self.now);
        self.until(120_000, "its journal has entries that wait for room", |w| {
            // The room of a file that the journal gives up meanwhile is gone, too.
            disk.set_files_max(Some(disk.names().len()));
            if disk.writes() != writes {
                (writes, since) = (disk.writes(), w.now);
            }
            w.usage(host).is_some_and(|usage| usage.stalled.is_some()) && w.now >= since + waits * MS
        })
    }

    pub(super) fn usage(&self, host: usize) -> Option<LogUsage> {
        Some(self.node(host)?.adopted()?.raft.log().usage())
    }
}
