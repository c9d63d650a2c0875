//! Scene: the leader dies while the store answers late. The next leader has not read the store's head yet, and the
//! owner continues its lease there: it does not wait for the store, since the lease would end meanwhile and the host
//! would stop a healthy database (R8). Answers of the devices wait for the look (HEAD-H1).

use crate::host::name;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use holdfast_store::Faults;
use holdfast_types::{MemberId, Owner};
use std::time::Duration;

/// Milliseconds after which a look at the head counts no more, by any clock.
const OLD: u64 = 10_000;
/// Time of each request to the store: longer than a continuation waits for a look, and shorter than a look may take.
const LATE_BY: Duration = Duration::from_millis(1_500);
/// Milliseconds until the owner has its lease at the next leader: an election, and the waits for a look before and
/// after the entry.
const CONTINUED: u64 = 20_000;
/// Milliseconds that the store answers late after that.
const ON: u64 = 3_000;

impl World {
    /// See the module.
    pub(super) fn late_store(&mut self) -> Result<()> {
        self.busy = true;
        self.works("the first writes")?;
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        // The others have looked once, when they started.
        let old = self.now + OLD * MS;
        self.until(2 * OLD, "looks that count no more", |w| w.now >= old)?;
        let held = |w: &World| w.leader().and_then(|at| w.set(at)).is_some_and(|set| set.lease().is_some());
        self.until(60_000, "an owner at a leader", |w| held(w))?;
        let at = self.leader().context("no leader")?;
        let owner = self.set(at).and_then(|set| set.lease()).context("no lease")?.owner;
        self.spoil_stores(&Faults { slow: 1_000, slow_by: LATE_BY, ..Faults::default() });
        let now = self.now;
        self.hosts[at].kill(now);
        self.note(format!("the store answers after {LATE_BY:?}, and {} is killed", name(at)));
        self.until(CONTINUED, "the lease at the next leader", |w| w.lease_at_next(at).is_some())?;
        let lease = self.lease_at_next(at).context("no lease at the next leader")?;
        ensure!(lease == owner, "R8: the set went from {owner} to {lease}, and nobody asked for that");
        let on = self.now + ON * MS;
        self.until(2 * ON, "some time", |w| w.now >= on)?;
        self.calm_stores();
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[at].start(now, rtt)?;
        self.works("writes and reads at the next leader")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// The owner whose lease is served by another gateway than `before`, which leads.
    fn lease_at_next(&self, before: usize) -> Option<Owner> {
        (0..self.hosts.len()).filter(|at| *at != before).find_map(|at| {
            let set = self.set(at)?;
            let lease = set.lease().filter(|lease| Some(lease.gateway) == self.places[at].map(MemberId))?;
            set.leading_ready().map(|_| lease.owner)
        })
    }
}
