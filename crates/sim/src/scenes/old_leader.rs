//! Scene: a member that is being healed hears nobody but a leader of before its removal (QUARANTINE-Q4). It has
//! forgotten what it acknowledged to that leader, so it must follow it in nothing: not its appends, and not its
//! candidacy.

use crate::host::name;
use crate::net::Link;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail};
use holdfast_types::GroupId;
use std::fs;

/// Members that are needed: three of them go on while two hear only each other.
const MEMBERS: usize = 5;
/// Milliseconds in which the two hear each other, before and after the old leader asks for votes. They are answered
/// only some seconds after a start.
const TOGETHER: u64 = 8_000;

impl World {
    /// See the module. With fewer members, of which a change of members needs the old leader, there is no such course.
    pub(super) fn old_leader(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 11);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "every member whole", |w| w.is_whole())?;
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        if members.len() < MEMBERS {
            self.note(format!("{} members, expected {MEMBERS} for this scene", members.len()));
            return Ok(());
        }
        let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
        let old = self.leader_of(id).context("no leader")?;
        let others: Vec<usize> = members.iter().copied().filter(|host| *host != old).collect();
        let damaged = rng.pick(&others);
        let snapshot = self.hosts[damaged].state_snapshot(id);
        self.until(120_000, "a state snapshot", |_| snapshot.exists())?;
        self.cut(old, true);
        self.note(format!("{} leads, and hears nobody", name(old)));
        self.until(60_000, "another leader", |w| w.leader_of(id).is_some_and(|at| at != old))?;
        self.works("writes under the next leader")?;

        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[damaged].kill(now);
        let mut bytes = fs::read(&snapshot)?;
        let at = bytes.len() / 2;
        *bytes.get_mut(at).context("an empty snapshot")? ^= 1;
        fs::write(&snapshot, bytes)?;
        self.hosts[damaged].start(now, rtt)?;
        self.until(60_000, "it is out of the group, and begins to learn again", |w| w.learns_again(damaged, id))?;
        self.cut(damaged, true);
        for (from, to) in [(old, damaged), (damaged, old)] {
            self.net.set(from, to, Link::CALM);
        }
        self.note(format!("{} and {} hear each other and nobody else", name(damaged), name(old)));
        self.together(damaged, id)?;
        self.stands(old, id)?;
        self.together(damaged, id)?;
        // One that believes to lead asks for no votes. After a start it does, without the entry of the removal.
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[old].kill(now);
        self.hosts[old].start(now, rtt)?;
        self.note(format!("{} starts again, and hears only {}", name(old), name(damaged)));
        self.together(damaged, id)?;
        self.together(damaged, id)?;

        self.cut(damaged, false);
        self.cut(old, false);
        self.note("all hear each other");
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        self.works("writes and reads")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    fn learns_again(&self, host: usize, id: GroupId) -> bool {
        let healing = self.node(host).and_then(|node| node.raft()).map(|raft| raft.healing()).unwrap_or_default();
        healing.iter().any(|found| found.group == id && found.since.is_some()) && self.group(host, id).is_some()
    }

    /// The gateway at `host` asks for votes.
    pub(super) fn stands(&mut self, host: usize, id: GroupId) -> Result<()> {
        let group = self.group(host, id).context("no group")?;
        let process = self.hosts[host].process.as_ref().context("no process")?;
        process.spawn(async move { drop(group.stand_for_election().await) });
        self.note(format!("{} stands for election", name(host)));
        Ok(())
    }

    /// The damaged member takes nothing from the old leader: it does not count as healed, and its group has no leader.
    fn together(&mut self, damaged: usize, id: GroupId) -> Result<()> {
        let until = self.now + TOGETHER * MS;
        while self.now < until {
            self.tick()?;
            if !self.learns_again(damaged, id) {
                bail!("QUARANTINE-Q4: {} was healed by a leader of before its removal", name(damaged));
            }
        }
        Ok(())
    }
}
