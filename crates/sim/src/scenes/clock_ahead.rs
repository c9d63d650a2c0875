//! Scene: the boot clocks of followers leap ahead while their leader is cut off. By those clocks their promise is over,
//! and they could elect another leader while this one still reads (R3). A suspend looks the same, but there time has
//! passed. A promise is counted on CLOCK_MONOTONIC, so it is kept in both cases.

use crate::host::name;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail};

/// Milliseconds by which they leap: far beyond every promise.
const AHEAD: i64 = 60_000;
/// Times that this is done.
const ROUNDS: usize = 4;
/// Milliseconds in which the scene looks for two leaders: longer than a read lease.
const ASKED: u64 = 2_000;

impl World {
    /// See the module.
    pub(super) fn clock_ahead(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        for _ in 0..ROUNDS {
            self.until(60_000, "a leader that serves", |w| w.serves_now().is_some())?;
            let at = self.serves_now().context("no leader that serves")?;
            self.cut(at, true);
            for other in (0..self.hosts.len()).filter(|other| *other != at) {
                self.hosts[other].time.leap(AHEAD);
            }
            self.note(format!("{} hears nobody, and the boot clocks of the others leap ahead", name(at)));
            let over = self.now + ASKED * MS;
            while self.now < over {
                if let Some(next) = self.leads_beside(at) {
                    bail!("R3: {} leads while {} may read: a promise ended with a leap", name(next), name(at));
                }
                self.tick()?;
            }
            self.cut(at, false);
            self.works("writes and reads in company again")?;
        }
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// Another gateway that leads, while `at` may still read.
    pub(super) fn leads_beside(&self, at: usize) -> Option<usize> {
        self.hosts[at].enter(self.now);
        self.set(at).filter(|set| set.may_read().is_ok())?;
        (0..self.hosts.len())
            .filter(|other| *other != at)
            .find(|other| self.set(*other).is_some_and(|set| set.leading_ready().is_some()))
    }
}
