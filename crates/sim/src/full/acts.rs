//! Fills the disks of a world, and frees them.

use super::Full;
use crate::world::{MS, World};
use anyhow::Result;

/// Interval between two checks whether a journal waits for space.
const LOOK_EVERY: u64 = 20 * MS;

/// Time until a start that was refused for lack of space is repeated.
const START_AGAIN: u64 = 400 * MS;

impl Full {
    fn tick(&mut self, world: &mut World) -> Result<()> {
        let now = world.now;
        let due: Vec<usize> = self.until.iter().filter(|(_, at)| **at <= now).map(|(host, _)| *host).collect();
        for host in due {
            self.until.remove(&host);
            world.note(format!("the disk of {} has room again", host + 1));
            world.set_files_max(host, None);
        }
        let due: Vec<usize> = self.starts.iter().filter(|(_, at)| **at <= now).map(|(host, _)| *host).collect();
        for host in due {
            self.starts.remove(&host);
            if world.hosts[host].process.is_none() {
                world.note(format!("{} starts again", host + 1));
                let rtt = world.rtt_ms;
                world.hosts[host].start(now, rtt)?;
            }
        }
        if now.is_multiple_of(LOOK_EVERY) {
            for host in 0..world.hosts.len() {
                let usage = world.node(host).and_then(|node| node.adopted().map(|adopted| adopted.raft.log().usage()));
                let waits = usage.is_some_and(|usage| usage.stalled.is_some());
                let known = self.waiting.iter().position(|known| *known == host);
                match (waits, known) {
                    (true, None) => {
                        self.waiting.push(host);
                        world.stats.stalls += 1;
                        world.note(format!("the journal of {} waits for room", host + 1));
                    }
                    (false, Some(at)) => drop(self.waiting.remove(at)),
                    _ => {}
                }
            }
        }
        if now < self.next_at {
            return Ok(());
        }
        self.next_at = now + self.rng.range(self.pause / 4, self.pause * 2) * MS;
        let all = self.rng.chance(250);
        let victim = match world.leader() {
            Some(leader) if self.rng.chance(500) => leader,
            _ => self.rng.below(world.hosts.len() as u64) as usize,
        };
        for host in (0..world.hosts.len()).filter(|host| all || *host == victim) {
            let room = self.rng.pick(&[0, 0, 1, 3]);
            let ms = self.rng.pick(&[300, 1_500, 6_000]);
            let files = world.hosts[host].disk.names().len() + room;
            world.note(format!("the disk of {} has room for {room} files more, for {ms} ms", host + 1));
            world.stats.full += 1;
            world.set_files_max(host, Some(files));
            self.until.insert(host, now + ms * MS);
        }
        Ok(())
    }
}

impl World {
    fn set_files_max(&mut self, host: usize, files: Option<usize>) {
        let host = &mut self.hosts[host];
        host.files_max = files;
        host.disk.set_files_max(files);
    }

    /// May fill disks now, or free them.
    pub fn fill_disks(&mut self) -> Result<()> {
        let Some(mut full) = self.full.take() else { return Ok(()) };
        let outcome = full.tick(self);
        self.full = Some(full);
        outcome
    }

    /// Every disk has room.
    pub fn empty_disks(&mut self) {
        if let Some(full) = &mut self.full {
            full.until.clear();
            full.starts.clear();
            (0..self.hosts.len()).for_each(|host| self.set_files_max(host, None));
        }
    }

    /// Whether gateway `index` ended because its disk lacks the space for a start: it is started again.
    pub fn waits_for_room(&mut self, index: usize, why: &str) -> bool {
        let now = self.now;
        let full = self.hosts[index].files_max.is_some() && why.contains("disk full");
        let Some(disks) = self.full.as_mut().filter(|_| full) else { return false };
        disks.starts.insert(index, now + START_AGAIN);
        self.hosts[index].kill(now);
        self.stats.roomless += 1;
        self.note(format!("{} {why}", index + 1));
        true
    }
}
