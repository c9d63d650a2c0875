//! Scene: a deletion is cut short at each of its steps. Each gateway is killed between its note that the group ends and
//! the drop of the log, and starts while it hears nobody. The head is damaged on its way when the tombstone is to take
//! its place, the leader of group 0 is killed between the tombstone and the word of it, and somebody removes the
//! tombstone for a while. Nothing is left in the end.

use crate::host::name;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use holdfast_control::cluster::DeletionStage;
use holdfast_store::{Faults, keys};
use holdfast_types::{GroupId, SetId};
use holdfast_volume::head::is_tombstone;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds for everything.
const ENDS: u64 = 240_000;
/// Milliseconds in which a gateway that was killed hears nobody.
const DEAF: u64 = 3_000;
/// Milliseconds without a tombstone: it is missed after the time in which every gateway has looked at the head.
const REMOVED: u64 = 14_000;

/// What has been done to the deletion.
#[derive(Default)]
struct Done {
    /// Gateways that were killed while they ended the group.
    cut: BTreeSet<usize>,
    /// Those that hear nobody, and until when.
    deaf: BTreeMap<usize, u64>,
    /// Reads are damaged on their way.
    spoilt: bool,
    /// The leader of group 0 was killed right after the tombstone was written.
    untold: bool,
    /// The tombstone, while it is away, and until when.
    removed: Option<(u64, Bytes)>,
    was_removed: bool,
}

impl World {
    /// See the module.
    pub fn deletion_cut_short(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
        self.model_ends();
        let members = self.places.iter().flatten().count();
        let (mut done, mut since, mut asked) = (Done::default(), None, self.now);
        let deadline = self.now + ENDS * MS;
        while let Some(left) = self.left_of(id) {
            ensure!(self.now < deadline, "no progress: {} s after the deletion there is: {left}", ENDS / 1000);
            if self.now >= asked && self.cluster().is_some_and(|state| state.sets.contains_key(&id)) {
                asked = self.now + 1_000 * MS;
                self.ask_to_delete(id);
            }
            self.tick()?;
            self.check_fence(id, &mut since)?;
            self.cut_ends_short(id, &mut done)?;
            self.leave_the_tombstone_untold(id, &mut done)?;
            self.remove_the_tombstone(id, &mut done);
        }
        ensure!(done.cut.len() == members, "{} of {members} gateways were killed as they ended it", done.cut.len());
        ensure!(done.untold && done.was_removed, "the tombstone was not seen in time");
        self.nothing_comes_back(id, &mut since)
    }

    fn stage_of(&self, id: SetId) -> Option<DeletionStage> {
        self.cluster()?.deletions.under_way.get(&id).map(|found| found.stage)
    }

    /// END-E1 and END-E3: the note is there, and the log is still to be dropped.
    fn cut_ends_short(&mut self, id: SetId, done: &mut Done) -> Result<()> {
        let due: Vec<usize> =
            done.deaf.iter().filter(|(_, until)| **until <= self.now).map(|(host, _)| *host).collect();
        for host in due {
            done.deaf.remove(&host);
            self.note(format!("{} hears the others", name(host)));
            self.cut(host, false);
        }
        for host in (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect::<Vec<_>>() {
            if !self.hosts[host].ends_group(id) || !done.cut.insert(host) {
                continue;
            }
            self.note(format!("{} is killed as it ends the group, and starts while it hears nobody", name(host)));
            let (now, rtt) = (self.now, self.rtt_ms);
            self.hosts[host].kill(now);
            self.cut(host, true);
            self.hosts[host].start(now, rtt)?;
            done.deaf.insert(host, now + DEAF * MS);
        }
        Ok(())
    }

    /// TOMB-T2: whoever leads next finds the tombstone in its place. Until then half of all reads are damaged.
    fn leave_the_tombstone_untold(&mut self, id: SetId, done: &mut Done) -> Result<()> {
        if done.untold || self.stage_of(id) != Some(DeletionStage::Ending) {
            return Ok(());
        }
        let stands = self.stores.servers[0].object(&keys::head(id)).is_some_and(|body| is_tombstone(&body));
        if !stands {
            if !std::mem::replace(&mut done.spoilt, true) {
                self.spoil_stores(&Faults { flip_bit: 500, ..Faults::default() });
            }
            return Ok(());
        }
        let Some(at) = self.leader_of(GroupId::CLUSTER) else { return Ok(()) };
        done.untold = true;
        self.calm_stores();
        self.note(format!("{} is killed after it has written the tombstone", name(at)));
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[at].kill(now);
        self.hosts[at].start(now, rtt)
    }

    /// TOMB-T1: without the tombstone nothing is deleted.
    fn remove_the_tombstone(&mut self, id: SetId, done: &mut Done) {
        let key = keys::head(id);
        if !done.was_removed && self.stage_of(id) == Some(DeletionStage::Forgotten) {
            done.was_removed = true;
            self.note("somebody removes the tombstone");
            done.removed = self.stores.servers[0].take(&key).map(|body| (self.now + REMOVED * MS, body));
        }
        if let Some((_, body)) = done.removed.take_if(|(until, _)| *until <= self.now) {
            self.note("the tombstone is put back");
            self.stores.servers[0].put_back(&key, body);
        }
    }
}
