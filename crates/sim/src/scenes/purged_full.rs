//! Scene: the disk of a follower is full, entries wait for a file, and a checkpoint ends. Its purge stands behind what
//! waits for room, and is what makes room: it is written first, old files go, and the rest follows. Nobody has to free
//! the disk (R8).

use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::Result;

/// Full disks in one course.
const ROUNDS: usize = 4;
/// Milliseconds without a write after which entries wait for room, while clients write. Short: the follower takes only
/// so many entries more, and the end of the checkpoint must be among them.
const WAITS: u64 = 40;
/// Milliseconds for a checkpoint and its purge.
const FREES: u64 = 15_000;

impl World {
    /// See the module.
    pub(super) fn purged_full(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 23);
        for round in 1..=ROUNDS {
            self.busy = true;
            self.works("writes")?;
            let host = self.whole_follower(&mut rng)?;
            // No checkpoint ends until its journal waits: nothing is purged.
            self.lose_store(0);
            self.note(format!("round {round}: the disk of {} is full, and the store is away", name(host)));
            self.fill_disk(host, WAITS)?;
            self.busy = false;
            self.calm_stores();
            let late = self.now + FREES * MS;
            let has_room = |w: &World| w.usage(host).is_some_and(|usage| usage.stalled.is_none());
            self.until(2 * FREES, "a checkpoint and its purge", |w| w.now >= late || has_room(w))?;
            let room = if has_room(self) { "the purge made room" } else { "the purge has not arrived" };
            self.note(format!("round {round}: {room} at {}", name(host)));
            self.hosts[host].disk.set_files_max(None);
        }
        self.busy = true;
        self.works("writes and reads after it")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }
}
