//! Scene: a gateway has no room for a state snapshot of the set for a while. Its group goes on, and nothing is purged
//! that only the refused snapshot covers. Meanwhile the leader sends a newer one: the older one, which is tried again
//! and again, must not replace it. At the end the set is deleted while a snapshot waits for room: nothing of the group
//! is written any more once it has ended here (END-E2).

use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use holdfast_log::GroupLogState;
use holdfast_types::{LogIndex, SetId};

/// Milliseconds without room: several checkpoints.
const REFUSED: u64 = 6_000;
/// Milliseconds after which a snapshot that was refused has been tried again for certain.
const TRIED_AGAIN: u64 = 5_000;
/// Milliseconds for the deletion.
const ENDS: u64 = 120_000;

impl World {
    /// See the module.
    pub fn refused_snapshot(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 16);
        self.busy = true;
        self.works("the first writes")?;
        let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
        let host = self.some_follower(&mut rng, id)?;
        self.refused_for_a_while(host, id)?;
        self.overtaken_by_the_leader(host, id, &mut rng)?;
        self.works("writes and reads, with room for snapshots")?;
        let host = self.some_follower(&mut rng, id)?;
        self.refused_to_the_end(host, id)
    }

    fn some_follower(&mut self, rng: &mut Rng, id: SetId) -> Result<usize> {
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        let leader = self.leader_of(id).context("no leader")?;
        let followers: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.places[*host].is_some() && *host != leader).collect();
        Ok(rng.pick(&followers))
    }

    fn log_state(&self, host: usize, id: SetId) -> Option<GroupLogState> {
        Some(self.node(host)?.adopted()?.raft.log().group(id).state())
    }

    /// The last entry that the newest state snapshot at `host` covers.
    fn covered(&self, host: usize, id: SetId) -> Option<LogIndex> {
        Some(self.group(host, id)?.snapshot_last()?.index)
    }

    fn refuse(&mut self, host: usize, id: SetId) -> Result<()> {
        self.hosts[host].refuse_snapshots(id, true)?;
        self.note(format!("{} has no room for a state snapshot", name(host)));
        let refused = |w: &mut World| w.group(host, id).is_some_and(|group| group.unsaved_snapshot().is_some());
        self.until(60_000, "a state snapshot is refused", refused)
    }

    fn refused_for_a_while(&mut self, host: usize, id: SetId) -> Result<()> {
        self.refuse(host, id)?;
        let before = self.covered(host, id);
        let until = self.now + REFUSED * MS;
        self.until(2 * REFUSED, "some time without room", |w| w.now >= until)?;
        let group = self.group(host, id).context("the group is gone")?;
        ensure!(!group.leadership().borrow().stopped, "a group has stopped, since its disk refuses a state snapshot");
        let (covered, state) = (self.covered(host, id), self.log_state(host, id).context("no log")?);
        ensure!(covered == before, "found a state snapshot up to {covered:?} without room, expected {before:?}");
        let purged = state.purged.map(|purged| purged.index);
        ensure!(purged <= covered, "R1: found entries purged up to {purged:?}, and a state snapshot up to {covered:?}");
        Ok(())
    }

    /// It is cut off until it needs the leader's snapshot, and has room again as that comes.
    fn overtaken_by_the_leader(&mut self, host: usize, id: SetId, rng: &mut Rng) -> Result<()> {
        let last = self.log_state(host, id).and_then(|state| state.last).context("an empty log")?.index;
        self.cut(host, true);
        self.until(120_000, "the leader has purged what it lacks", |w| {
            let leader = w.leader_of(id).filter(|at| *at != host);
            let purged = leader.and_then(|at| w.log_state(at, id)).and_then(|state| state.purged);
            purged.is_some_and(|purged| purged.index > last)
        })?;
        self.cut(host, false);
        let until = self.now + rng.range(600, 3_000) * MS;
        self.until(10_000, "some time", |w| w.now >= until)?;
        self.hosts[host].refuse_snapshots(id, false)?;
        self.note(format!("{} has room again", name(host)));
        self.until(60_000, "the leader's state snapshot", |w| w.covered(host, id) > Some(last))?;
        let (mut newest, until) = (self.covered(host, id), self.now + TRIED_AGAIN * MS);
        while self.now < until {
            self.tick()?;
            let covered = self.covered(host, id);
            ensure!(covered >= newest, "a state snapshot up to {newest:?} was replaced by one up to {covered:?}");
            newest = covered;
        }
        Ok(())
    }

    fn refused_to_the_end(&mut self, host: usize, id: SetId) -> Result<()> {
        self.refuse(host, id)?;
        let snapshot = self.hosts[host].state_snapshot(id);
        self.model_ends();
        let (mut since, mut asked, mut has_room) = (None, self.now, false);
        let deadline = self.now + ENDS * MS;
        while let Some(left) = self.left_of(id) {
            ensure!(self.now < deadline, "no progress: {} s after the deletion there is: {left}", ENDS / 1000);
            if self.now >= asked && self.cluster().is_some_and(|state| state.sets.contains_key(&id)) {
                asked = self.now + 500 * MS;
                self.ask_to_delete(id);
            }
            self.tick()?;
            self.check_fence(id, &mut since)?;
            if !has_room && self.hosts[host].ends_group(id) {
                has_room = true;
                self.hosts[host].refuse_snapshots(id, false)?;
                self.note(format!("{} ends the group, and has room again", name(host)));
            }
        }
        let until = self.now + TRIED_AGAIN * MS;
        self.until(2 * TRIED_AGAIN, "some time after the end", |w| w.now >= until)?;
        ensure!(!snapshot.exists(), "END-E2: a state snapshot was written after the group had ended");
        self.nothing_comes_back(id, &mut since)
    }
}
