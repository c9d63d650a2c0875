//! Scene: the state snapshot that a leader sends to a member which is healed is damaged on its way, behind the
//! checksums of TCP. The member takes nothing of it, and gets it again (R9).

use super::damaged_disks::rot;
use crate::host::name;
use crate::rng::Rng;
use crate::world::World;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;

/// Bytes of a state snapshot by which it is known on its way, and how many of them differ from each other: so that no
/// other message has them by chance.
const KNOWN_BY: usize = 24;
const DIFFERENT: usize = 12;

/// The last bytes of `two` that are in `one` too: the state comes last in the file of a snapshot, behind everything
/// that is not checked on the way.
fn common(one: &[u8], two: &[u8]) -> Option<Vec<u8>> {
    let known: BTreeSet<&[u8]> = one.windows(KNOWN_BY).collect();
    let fits = |window: &&[u8]| known.contains(*window) && window.iter().collect::<BTreeSet<_>>().len() >= DIFFERENT;
    two.windows(KNOWN_BY).rev().find(fits).map(<[u8]>::to_vec)
}

impl World {
    /// See the module.
    ///
    /// # Errors
    /// A broken rule, or no progress.
    pub(super) fn damaged_on_the_way(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 17);
        self.busy = true;
        self.works("the first writes")?;
        let host = self.seasoned_member(&mut rng)?;
        let id = self.set(host).context("no set")?.id;
        let now = self.now;
        self.hosts[host].kill(now);
        rot(&self.hosts[host].state_snapshot(id))?;
        self.works("writes and reads without it")?;
        let leader = self.leader_of(id).context("no leader")?;
        let snapshot = self.hosts[leader].state_snapshot(id);
        let one = fs::read(&snapshot)?;
        let newer = |_: &mut World| fs::read(&snapshot).is_ok_and(|two| two != one);
        self.until(60_000, "a newer state snapshot", newer)?;
        let known_by = common(&one, &fs::read(&snapshot)?).context("two state snapshots have nothing in common")?;
        self.net.damage_next(host, &known_by);
        self.note(format!("the next state snapshot on its way to {} is damaged", name(host)));
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].start(now, rtt)?;
        self.until(60_000, "the damage on its disk is found", |w| w.heals(host))?;
        self.until(180_000, "every member whole again", |w| w.is_whole())?;
        ensure!(self.net.has_damaged(), "no state snapshot with the known bytes was sent");
        self.works("writes and reads after it")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_snapshots_have_in_common_is_found_from_the_end() {
        let tail: Vec<u8> = (50..90).collect();
        let (one, two) = ([&[1_u8; 30][..], &tail, &[2; 9]].concat(), [&[3_u8; 7][..], &tail, &[4; 30]].concat());
        assert_eq!(common(&one, &two), Some(tail[tail.len() - KNOWN_BY..].to_vec()));
        assert_eq!(common(&[7; 99], &[7; 99]), None, "the same byte again and again is in other messages, too");
    }
}
