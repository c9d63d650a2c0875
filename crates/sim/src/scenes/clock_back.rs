//! Scene: the boot clock of the leader's machine goes back, as after a move of a virtual machine, in the moment in
//! which it is cut off. By that clock it would have its read lease for longer than the others count on: it must not
//! believe that (R3).

use crate::host::name;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail};

/// Milliseconds that all machines sleep first: only then is there something by which the boot clock can go back and the
/// monotonic clock not.
const ASLEEP: u64 = 5_000;
/// Milliseconds by which it goes back.
const BACK: u64 = 3_000;
/// Milliseconds until the gateway has looked at its clocks, and until its boot clock is where it was before: openraft
/// asserts, where debug assertions are on, that it hears nobody at an earlier moment than the last time.
const LOOKS: u64 = 500;
const OVER: u64 = 4_000;

impl World {
    /// See the module.
    ///
    /// # Errors
    /// A broken rule, or no progress.
    pub(super) fn clock_back(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        let now = self.now;
        for host in &mut self.hosts {
            host.time.suspend(now, now + ASLEEP * MS);
        }
        self.note("all machines sleep");
        self.works("writes and reads after the sleep")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        self.until(60_000, "a leader that serves", |w| w.serves_now().is_some())?;
        let at = self.serves_now().context("no leader that serves")?;
        self.cut(at, true);
        // Time asleep is what the boot clock has and the monotonic clock has not.
        let clock = &mut self.hosts[at].time.clock;
        let back = (BACK * MS).min(clock.asleep).min(clock.offset);
        clock.asleep -= back;
        clock.offset -= back;
        self.note(format!("{} hears nobody, and its boot clock goes back by {BACK} ms", name(at)));
        let (looks, over) = (self.now + LOOKS * MS, self.now + OVER * MS);
        while self.now < over {
            self.tick()?;
            self.hosts[at].enter(self.now);
            if self.now >= looks && self.set(at).is_some_and(|set| set.may_read().is_ok()) {
                bail!("R3: {} may read, by a lease that its clock made longer", name(at));
            }
        }
        self.cut(at, false);
        self.works("writes and reads after it")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    fn serves_now(&self) -> Option<usize> {
        let at = self.leader()?;
        self.hosts[at].enter(self.now);
        self.set(at).filter(|set| set.may_read().is_ok()).map(|_| at)
    }
}
