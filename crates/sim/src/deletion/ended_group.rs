//! Scene: a gateway has begun to end the group of a deleted set, and starts from a journal of before the deletion,
//! while it hears nobody: neither its group 0 nor the group's log says that the set is deleted. Only the note does, and
//! the group must not run again (END-E1). Then it hears the others, is healed, and nothing is left.

use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use holdfast_testkit::Survives;
use holdfast_types::GroupId;

/// Milliseconds in which it hears nobody.
const DEAF: u64 = 6_000;
/// Milliseconds for the deletion.
const ENDS: u64 = 240_000;

impl World {
    /// See the module.
    pub fn ended_group(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 19);
        self.busy = true;
        self.works("the first writes")?;
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
        let leaders = [self.leader_of(id), self.leader_of(GroupId::CLUSTER)];
        let others: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.places[*host].is_some() && !leaders.contains(&Some(*host)))
            .collect();
        let host = rng.pick(&others);
        self.model_ends();
        let before = self.hosts[host].disk.crashed(Survives::Everything);
        let (mut since, mut asked, mut deaf_until) = (None, self.now, None);
        let deadline = self.now + ENDS * MS;
        while let Some(left) = self.left_of(id) {
            ensure!(self.now < deadline, "no progress: {} s after the deletion there is: {left}", ENDS / 1000);
            if self.now >= asked && self.cluster().is_some_and(|state| state.sets.contains_key(&id)) {
                asked = self.now + 1_000 * MS;
                self.ask_to_delete(id);
            }
            self.tick()?;
            self.check_fence(id, &mut since)?;
            match deaf_until {
                None if self.hosts[host].ends_group(id) => {
                    let (now, rtt) = (self.now, self.rtt_ms);
                    self.hosts[host].kill(now);
                    self.hosts[host].disk = before.crashed(Survives::Everything);
                    self.cut(host, true);
                    (self.liar, self.told) = (Some(host), 0);
                    self.note(format!("{} hears nobody, and starts from a journal of before the deletion", name(host)));
                    self.hosts[host].start(now, rtt)?;
                    deaf_until = Some(now + DEAF * MS);
                }
                Some(until) if self.now < until => {
                    let runs = self.group(host, id).is_some();
                    ensure!(!runs, "END-E1: {} runs a group again that it was told to end", name(host));
                }
                Some(until) if self.now < until + MS => self.cut(host, false),
                _ => {}
            }
        }
        ensure!(deaf_until.is_some(), "{} was not seen as it ended the group", name(host));
        self.nothing_comes_back(id, &mut since)?;
        self.liar = None;
        Ok(())
    }
}
