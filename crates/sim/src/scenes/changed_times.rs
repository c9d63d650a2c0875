//! Scene: the settings are for gateways that are far apart, and they stand in one zone. The set gets short times, and a
//! lost leader is replaced soon. Then the lines get long and short again, so that the set's times follow (ADR 0058).
//! Meanwhile leaders are cut off at any moment: no other one leads while the old one may read (R3), whatever the times
//! were under which it was promised.

use crate::host::name;
use crate::net::Link;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail};
use std::time::Duration;

/// The setting, in milliseconds: a leader lease of 3.1 s, an election 4.6 s after the last heartbeat at the soonest.
const CEILING_MS: u32 = 150;
/// Milliseconds in which a set with short times has another leader: time for three elections.
const SOON: u64 = 4_000;
/// Milliseconds until the times follow the lines, at most: some looks, a calm, and elections meanwhile.
const FOLLOWS: u64 = 90_000;
/// Times that the lines change.
const ROUNDS: usize = 6;
/// Milliseconds in which the scene looks for two leaders: longer than the longest promise.
const ASKED: u64 = 4_000;
/// A long line.
const FAR: Link = Link { cut: false, delay: (35 * MS, 45 * MS), loss: 0 };

impl World {
    /// The settings of this scene, before the gateways are started.
    pub(super) fn expect_far_gateways(&mut self) {
        self.rtt_ms = CEILING_MS;
    }

    /// See the module.
    pub(super) fn changed_times(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 24);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        self.until(FOLLOWS, "short times at every member", |w| w.times_are(false))?;
        // What was promised under the longer ones ends.
        self.run_for(ASKED)?;
        let serves = |w: &mut World| w.serves_now().is_some();
        self.until(60_000, "a leader that serves", serves)?;
        let lost = self.serves_now().context("no leader that serves")?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[lost].kill(now);
        self.note(format!("{} is killed", name(lost)));
        self.until(SOON, "another leader, soon", |w| w.leader().is_some_and(|at| at != lost))?;
        let now = self.now;
        self.hosts[lost].start(now, rtt)?;
        for round in 0..ROUNDS {
            self.change_lines(&mut rng, round % 2 == 0)?;
        }
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    fn change_lines(&mut self, rng: &mut Rng, far: bool) -> Result<()> {
        self.lines(far);
        self.note(if far { "long lines" } else { "short lines" });
        // Before the times change, as they do, and after it.
        self.run_for(rng.range(0, 15_000))?;
        self.until(60_000, "a leader that serves", |w| w.serves_now().is_some())?;
        let at = self.serves_now().context("no leader that serves")?;
        self.cut(at, true);
        self.note(format!("{} hears nobody", name(at)));
        let over = self.now + ASKED * MS;
        while self.now < over {
            if let Some(next) = self.leads_beside(at) {
                bail!("R3: {} leads while {} may read: a promise ended with its times", name(next), name(at));
            }
            self.tick()?;
        }
        self.lines(far);
        self.works("writes and reads in company again")?;
        self.until(FOLLOWS, "times for these lines at every member", |w| w.times_are(far))
    }

    /// All lines between gateways are long, or short; none is cut.
    fn lines(&mut self, far: bool) {
        let all = self.hosts.len();
        let link = if far { FAR } else { Link::CALM };
        for from in 0..all {
            (0..all).filter(|to| *to != from).for_each(|to| self.net.set(from, to, link));
        }
    }

    /// Whether every member of the cluster that runs the set has the times of the settings, or else shorter ones.
    fn times_are(&self, longest: bool) -> bool {
        let setting = Duration::from_millis(u64::from(CEILING_MS));
        let mut members = (0..self.hosts.len()).filter(|host| self.places[*host].is_some());
        members.all(|host| self.set(host).is_some_and(|set| (set.timing().rtt() == setting) == longest))
    }

    fn run_for(&mut self, ms: u64) -> Result<()> {
        let over = self.now + ms * MS;
        while self.now < over {
            self.tick()?;
        }
        Ok(())
    }
}
