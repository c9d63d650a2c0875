//! Scene: the boot clock of a leader's machine goes back, as after a move of a virtual machine. By that clock it would
//! have its read lease for longer than the others count on: the lease is void at once (R3), until a quorum has answered
//! again. That takes no longer than usual, however far the clock went back.

use crate::host::name;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail};
use holdfast_store::Faults;
use std::time::Duration;

/// Milliseconds by which it goes back: longer than a read lease, than all that is waited for here, and within the drift
/// that a lease allows for.
const BACK: [i64; 3] = [60_000, 3_000, 40];
/// Milliseconds in which a leader that hears the others serves again, or another one does.
const SOON: u64 = 20_000;
/// Milliseconds for which a leader that hears nobody is asked.
const ASKED: u64 = 4_000;
/// Time of each request to the store while objects are deleted: some wait for the answers to others.
const LATE_BY: Duration = Duration::from_millis(300);
/// Turns of deletions in which the clock goes back.
const DELETIONS: usize = 3;

impl World {
    /// See the module.
    pub(super) fn clock_back(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        for back in BACK {
            let at = self.goes_back(back)?;
            self.until(SOON, "reads after the clock went back", |w| w.serves_now().is_some())?;
            self.note(format!("{} serves again", name(self.serves_now().unwrap_or(at))));
            self.works("writes and reads after the clock went back")?;
        }
        for back in BACK {
            self.until(60_000, "a leader that serves", |w| w.serves_now().is_some())?;
            let at = self.serves_now().context("no leader that serves")?;
            self.cut(at, true);
            self.note(format!("{} hears nobody", name(at)));
            self.goes_back(back)?;
            let over = self.now + ASKED * MS;
            while self.now < over {
                self.hosts[at].enter(self.now);
                if self.set(at).is_some_and(|set| set.may_read().is_ok()) {
                    bail!("R3: {} may read, by a lease of before its clock went back", name(at));
                }
                self.tick()?;
            }
            self.cut(at, false);
            self.works("writes and reads in company again")?;
        }
        self.goes_back_under_deletions()?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// The clock goes back while the leader deletes objects. That a quorum has confirmed it counts no more: it asks
    /// again before the next object (SPACE-G3).
    fn goes_back_under_deletions(&mut self) -> Result<()> {
        self.spoil_stores(&Faults { slow: 1_000, slow_by: LATE_BY, ..Faults::default() });
        for _ in 0..DELETIONS {
            self.until(120_000, "deletions", |w| w.deletes_now())?;
            self.goes_back(BACK[2])?;
            self.until(120_000, "the end of these deletions", |w| !w.deletes_now())?;
        }
        self.calm_stores();
        self.works("writes and reads after deletions")
    }

    /// Whether the leader has deleted some of the objects that may be deleted, and not all.
    fn deletes_now(&self) -> bool {
        let Some(set) = self.leader().and_then(|at| self.set(at)) else { return false };
        let retired: Vec<String> =
            set.host.with(|machine| machine.state().retired.keys().map(ToString::to_string).collect());
        if retired.len() < 2 {
            return false;
        }
        let keys = self.stores.servers[0].keys();
        let is_there = |object: &&String| keys.iter().any(|key| key.ends_with(object.as_str()));
        (1..retired.len()).contains(&retired.iter().filter(is_there).count())
    }

    /// The clock of the leader that serves goes back. Returns its gateway.
    fn goes_back(&mut self, ms: i64) -> Result<usize> {
        self.until(60_000, "a leader that serves", |w| w.serves_now().is_some())?;
        let at = self.serves_now().context("no leader that serves")?;
        self.hosts[at].time.leap(-ms);
        self.note(format!("the boot clock of {} goes back by {ms} ms", name(at)));
        Ok(at)
    }

    pub(super) fn serves_now(&self) -> Option<usize> {
        let at = self.leader()?;
        self.hosts[at].enter(self.now);
        self.set(at).filter(|set| set.may_read().is_ok()).map(|_| at)
    }
}
