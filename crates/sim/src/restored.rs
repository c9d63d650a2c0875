//! Scenes: a machine is put back to an older copy of its disk and started again and again, while all members with its
//! later acknowledgements are down (CLUSTER-C3); and a copy of a disk is started while the original runs.

use crate::host::name;
use crate::net::Link;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail, ensure};
use holdfast_types::MemberId;

/// Number of starts of the restored machine, and milliseconds of each.
const STARTS: u64 = 4;
const RUNS: u64 = 8_000;

impl World {
    /// A quorum holds writes; one member goes back to an earlier copy, and all others of that quorum are down: no
    /// gateway may serve. Then one of these comes back: the restored machine is told, and every answered write is read.
    pub fn restored_disk(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 7);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let mut members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        rng.shuffle(&mut members);
        let quorum = members.len() / 2 + 1;
        let (holders, behind) = members.split_at(quorum);
        let (restored, keepers) = (holders[0], &holders[1..]);
        let member = MemberId(self.places[restored].context("a member")?);
        let copy = self.hosts[restored].copy_disk()?;
        let (before, restarts) = (self.life_of(behind, member), rng.chance(500));
        self.note(format!("a copy is made of the disk of {}", name(restored)));
        if restarts {
            self.start_again(restored)?;
        }
        // By a start, or by a renewal: twice, since the first may be in the copy already.
        for _ in 0..2 {
            let last = self.life_of(behind, member);
            self.until(60_000, "another life of it", |w| w.life_of(behind, member) > last)?;
        }
        ensure!(self.life_of(behind, member) > before, "its lives go on");
        self.part(behind, true);
        self.note(format!("{} hear nobody", names(behind)));
        self.until(60_000, "a leader of those who hear each other", |w| w.leads_among(holders))?;
        self.works("writes that the others do not have")?;
        let now = self.now;
        for host in keepers {
            self.hosts[*host].kill(now);
        }
        self.hosts[restored].restore(now, &copy)?;
        (self.restored, self.told) = (Some(restored), 0);
        self.part(behind, false);
        self.note(format!("{} are killed, and {} goes back to the copy", names(keepers), name(restored)));
        self.counts_for_nobody(restored)?;
        self.told = 0;
        let (now, rtt) = (self.now, self.rtt_ms);
        if self.hosts[restored].process.is_none() {
            self.hosts[restored].start(now, rtt)?;
        }
        for host in keepers {
            self.hosts[*host].start(now, rtt)?;
        }
        self.note(format!("{} are started again", names(keepers)));
        self.until(60_000, "the restored machine is told", |w| w.told > 0)?;
        self.works("writes and reads, after everything was read")
    }

    /// A copy of a member's disk is started on another machine, while the member runs: the copy finds the member at its
    /// own address, and is refused before it registers. The member goes on. Without a machine to spare nothing happens.
    pub fn copied_disk(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 12);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let Some(spare) = (0..self.hosts.len()).find(|host| self.places[*host].is_none()) else {
            self.note("no machine is empty");
            return Ok(());
        };
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let original = rng.pick(&members);
        let life = self.hosts[original].process.as_ref().map(|process| process.life);
        let copy = self.hosts[original].copy_disk()?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[spare].restore(now, &copy)?;
        self.hosts[spare].witness = false;
        (self.restored, self.told) = (Some(spare), 0);
        self.note(format!("a copy of the disk of {} starts as {}", name(original), name(spare)));
        self.hosts[spare].start(now, rtt)?;
        self.until(60_000, "the copy is told", |w| w.told > 0)?;
        self.works("writes and reads beside the copy")?;
        let goes_on = self.hosts[original].process.as_ref().map(|process| process.life) == life;
        ensure!(goes_on, "CLUSTER-C3: {} was started anew beside its copy", name(original));
        // After a power cut of all, whichever of the two is up first would be the member.
        let now = self.now;
        self.hosts[spare].wipe(now)?;
        self.hosts[spare].start(now, rtt)?;
        self.restored = None;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    fn start_again(&mut self, host: usize) -> Result<()> {
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].kill(now);
        self.hosts[host].start(now, rtt)
    }

    /// The restored machine is started again and again: nobody may serve with its help.
    fn counts_for_nobody(&mut self, restored: usize) -> Result<()> {
        for _ in 0..STARTS {
            self.start_again(restored)?;
            let until = self.now + RUNS * MS;
            while self.now < until {
                self.tick()?;
                if let Some(at) = self.reads_at() {
                    bail!("CLUSTER-C3: {} serves with the help of a disk that was put back", name(at));
                }
            }
        }
        Ok(())
    }

    /// The lowest boot counter of it that any of `hosts` knows.
    fn life_of(&self, hosts: &[usize], member: MemberId) -> u64 {
        let known = |host: &usize| self.node(*host)?.cluster.state().boots.get(&member).map(|boot| boot.boot);
        hosts.iter().map(|host| known(host).unwrap_or(0)).min().unwrap_or(0)
    }

    /// A gateway that would answer a read. A former leader that was cut off may not know it for long.
    fn reads_at(&self) -> Option<usize> {
        (0..self.hosts.len()).filter(|host| self.hosts[*host].runs(self.now)).find(|host| {
            self.hosts[*host].enter(self.now);
            self.set(*host).is_some_and(|set| set.may_read().is_ok())
        })
    }

    fn leads_among(&self, hosts: &[usize]) -> bool {
        hosts.iter().any(|host| self.set(*host).is_some_and(|set| set.leading_ready().is_some()))
    }

    /// Whether `hosts` and the others hear each other.
    fn part(&mut self, hosts: &[usize], cut: bool) {
        for host in hosts {
            for other in (0..self.hosts.len()).filter(|other| !hosts.contains(other)) {
                for (from, to) in [(*host, other), (other, *host)] {
                    self.net.set(from, to, Link { cut, ..Link::CALM });
                }
            }
        }
    }
}

fn names(hosts: &[usize]) -> String {
    hosts.iter().map(|host| name(*host)).collect::<Vec<_>>().join(" and ")
}
