//! Scene: the leader that changes the set's stores hears nobody, and another gateway leads and makes a checkpoint. The
//! first one still believes that it leads, and reaches both lists of stores. It must not end the old list with a head
//! of before that checkpoint: not when it begins its last comparison (MOVE-V2), and not at the end of it (MOVE-V3).
//! What is in the stores is checked at every moment (SIMMOVE-W1).

use super::PLACES;
use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use holdfast_control::set::RootRef;
use holdfast_store::{Faults, Stores};
use holdfast_types::{Placement, PlacementPhase};

/// Milliseconds for each step of a change of stores.
const STEP: u64 = 240_000;
/// Milliseconds in which only the overtaken leader reaches the store that was away.
const ALONE: u64 = 15_000;
/// What the leader says that it waits for (`set::store_migration`).
const LAST_COMPARISON: &str = "compared once more";
const BETWEEN_CHECKPOINTS: &str = "a checkpoint for all stores";
const OTHER_HEAD: &str = "the head names another checkpoint";
const OTHER_COMMIT: &str = "another checkpoint was committed";

impl World {
    /// See the module.
    pub fn overtaken_mover(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 20);
        for in_comparison in [false, true] {
            self.busy = true;
            self.works("writes before the change")?;
            self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
            let to = self.three_others(&mut rng)?;
            let now = self.stores_in_force()?;
            let lost = *to.iter().find(|at| !now.contains(at)).context("no new store")?;
            self.overtaken(&to, lost, in_comparison)?;
            self.until_moved(&to)?;
            self.works("writes and reads in the new stores")?;
            self.all_in_the_store()?;
        }
        self.power_and_read_back()
    }

    fn stores_in_force(&self) -> Result<Vec<usize>> {
        let text = self.placement().context("no set")?;
        Ok(super::places(&Stores::parse(&Placement::parse(&text).stores)?))
    }

    /// Three stores, of which one is new: without that one there are enough for a checkpoint, and not to end the list.
    fn three_others(&self, rng: &mut Rng) -> Result<Vec<usize>> {
        let now = self.stores_in_force()?;
        let mut all: Vec<usize> = (0..PLACES).collect();
        loop {
            rng.shuffle(&mut all);
            if all[..3].iter().any(|at| !now.contains(at)) {
                return Ok(all[..3].to_vec());
            }
        }
    }

    fn said(&self, at: usize) -> String {
        self.set(at).and_then(|set| set.migration.said()).map(|said| said.waits).unwrap_or_default()
    }

    fn root_at(&self, at: usize) -> Option<RootRef> {
        self.set(at)?.host.with(|m| m.state().current_root())
    }

    /// The leader, if it says that it waits for `what` while the old list is to end.
    fn says(&self, what: &str) -> Option<usize> {
        let ends = matches!(Placement::parse(&self.placement()?).next, Some((PlacementPhase::Ending, _)));
        self.leader().filter(|at| ends && self.said(*at).contains(what))
    }

    /// As [`World::until`], and looks at the lists.
    fn looking(&mut self, limit: u64, what: &str, mut done: impl FnMut(&mut World) -> bool) -> Result<()> {
        let deadline = self.now + limit * MS;
        while !done(self) {
            ensure!(self.now < deadline, "no progress: {what} not within {} s", limit / 1000);
            self.tick()?;
            self.look_at_lists()?;
        }
        Ok(())
    }

    fn overtaken(&mut self, to: &[usize], lost: usize, in_comparison: bool) -> Result<()> {
        let (mut asked, waits_for) = (self.now, if in_comparison { LAST_COMPARISON } else { BETWEEN_CHECKPOINTS });
        self.looking(STEP, "the old list is to end", |w| {
            if w.now >= asked {
                asked = w.now + 500 * MS;
                w.ask_to_move(to, false);
            }
            w.says(waits_for).is_some() || w.lies_in(to)
        })?;
        let Some(mover) = self.says(waits_for) else {
            self.note("the old list has ended before anybody could look");
            return Ok(());
        };
        self.lose_store(lost);
        self.note(format!("{} ends the old list: {}; store {} is away", name(mover), self.said(mover), lost + 1));
        if !in_comparison {
            // Its own checkpoint first: then only the store is waited for.
            self.looking(STEP, "it waits for the store", |w| {
                let said = w.said(mover);
                !said.is_empty() && !said.contains(BETWEEN_CHECKPOINTS)
            })?;
        }
        self.cut(mover, true);
        self.note(format!("{} hears nobody: {}", name(mover), self.said(mover)));
        let before = self.root_at(mover);
        self.looking(STEP, "a checkpoint of another leader", |w| {
            let next = w.leaders_but(mover);
            next.is_some_and(|at| w.root_at(at) != before)
        })?;
        let refusal = if in_comparison { OTHER_COMMIT } else { OTHER_HEAD };
        if in_comparison {
            // At first the store is there for the overtaken one alone, so that the other leader does not end the list
            // before it. It may lack an object for good, which that leader has deleted: then the list is the other's.
            self.hosts[mover].set_ways(Some(lost), &Faults::default());
            let alone = self.now + ALONE * MS;
            self.looking(STEP, "it looks first", |w| w.now >= alone || w.said(mover).contains(refusal))?;
        }
        self.calm_stores();
        self.looking(STEP, "it sees that it was overtaken", |w| {
            w.said(mover).contains(refusal) || w.placement().is_none_or(|text| Placement::parse(&text).next.is_none())
        })?;
        self.note(format!("{} says: {}", name(mover), self.said(mover)));
        self.cut(mover, false);
        Ok(())
    }

    fn leaders_but(&self, mover: usize) -> Option<usize> {
        (0..self.hosts.len())
            .filter(|at| *at != mover)
            .find(|at| self.set(*at).is_some_and(|set| set.leading_ready().is_some()))
    }

    fn until_moved(&mut self, to: &[usize]) -> Result<()> {
        let mut asked = self.now;
        self.looking(STEP, "the set lies in the new stores", |w| {
            if w.now >= asked {
                asked = w.now + 500 * MS;
                w.ask_to_move(to, false);
            }
            w.lies_in(to)
        })
    }
}
