//! Scene: a disk says that it has synced, and loses all of it with the power, while its gateway's identity remembers
//! the start before. The leader notices that the follower denies what it had acknowledged, the follower ends, and is
//! healed (REVERSION-V1).

use crate::host::name;
use crate::rng::Rng;
use crate::world::World;
use anyhow::Result;
use holdfast_testkit::Survives;

/// Writes that the disk only says it has. Few, so that its journal seldom begins another file meanwhile: a file without
/// a header is damage, which is found before anybody is asked.
const LOST: u64 = 8;

impl World {
    /// See the module.
    pub(super) fn lying_disk(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 13);
        self.busy = true;
        self.works("the first writes")?;
        let liar = self.whole_follower(&mut rng)?;
        // No state snapshot is to cover what is lost.
        self.lose_store(0);
        self.hosts[liar].disk.ignore_syncs();
        self.note(format!("the disk of {} does not sync any more", name(liar)));
        let answered = self.model.answered + LOST;
        self.until(120_000, "writes", |w| w.model.answered >= answered)?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[liar].kill(now);
        self.hosts[liar].disk = self.hosts[liar].disk.crashed(Survives::Nothing);
        self.note(format!("{} loses power, and all that its disk had not synced", name(liar)));
        self.calm_stores();
        (self.liar, self.told) = (Some(liar), 0);
        let now = self.now;
        self.hosts[liar].start(now, rtt)?;
        let noticed = |w: &mut World| w.told > 0 || w.heals(liar);
        self.until(60_000, "it is told that its log went backwards, or finds damage", noticed)?;
        self.until(180_000, "every member whole again", |w| w.is_whole())?;
        self.liar = None;
        self.works("writes and reads after it")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// Whether gateway `index` ended for `fatal` because its log went backwards, and its disk is known to lie: then it
    /// is started again.
    pub fn went_backwards(&mut self, index: usize, fatal: &[String]) -> Result<bool> {
        if self.liar != Some(index) || !fatal.iter().all(|what| what.contains("log went backwards")) {
            return Ok(false);
        }
        self.told += 1;
        self.note(fatal.join("; "));
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[index].kill(now);
        self.hosts[index].start(now, rtt)?;
        Ok(true)
    }
}
