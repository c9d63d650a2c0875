//! Scene: a gateway that hears no other one does not hear that the set's stores were changed. The old stores tell it
//! that the head is elsewhere, where another cluster may have taken the set over meanwhile: from then on it answers
//! nothing, until it hears of the new ones (HEAD-H1).

use super::PLACES;
use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use holdfast_store::Stores;
use holdfast_types::Placement;

/// Milliseconds for a change of stores without one member, with nothing in its way.
const MOVES: u64 = 240_000;
/// Milliseconds after which no earlier look at the head counts any more.
const STALE: u64 = 12_000;

impl World {
    /// See the module.
    pub fn left_stores(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 8);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let to = self.other_list(&mut rng)?;
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let deaf = rng.pick(&members);
        self.cut(deaf, true);
        self.note(format!("{} hears nobody; the set is to lie in stores {to:?}", name(deaf)));
        let (deadline, mut asked) = (self.now + MOVES * MS, self.now);
        while !self.counts_in(&to) {
            ensure!(self.now < deadline, "no progress: the set lies in {:?}, to be in {to:?}", self.placement());
            if self.now >= asked {
                asked = self.now + 500 * MS;
                self.ask_to_move(&to, false);
            }
            self.tick()?;
            self.look_at_lists()?;
        }
        let later = self.now + STALE * MS;
        self.until(2 * STALE, "no earlier look counts", |w| w.now >= later)?;
        let set = self.set(deaf).context("no set at the deaf gateway")?;
        let known = set.switch.text();
        ensure!(Some(&known) != self.placement().as_ref(), "it is not to know the new stores: {known}");
        let answers = self.call(deaf, 60_000, async move { set.head.before_answer().await })?;
        self.note(format!("{} may answer: {answers:?}", name(deaf)));
        ensure!(answers.is_err(), "HEAD-H1: a gateway answers that knows only stores in which the head is no more");
        self.cut(deaf, false);
        self.until(MOVES, "every gateway knows the new stores", |w| w.lies_in(&to))?;
        self.works("writes after a change of stores")?;
        self.all_in_the_store()?;
        for at in (0..PLACES).filter(|at| !to.contains(at)) {
            let objects = self.stores.servers[at].empty(false);
            self.note(format!("store {} is emptied of {objects} objects", at + 1));
        }
        self.power_and_read_back().context("with what was left emptied")
    }

    /// By the gateway that knows most of group 0, the set lies in these stores, and is on its way to no others.
    fn counts_in(&self, to: &[usize]) -> bool {
        let Some(text) = self.placement() else { return false };
        let placement = Placement::parse(&text);
        placement.next.is_none() && Stores::parse(&placement.stores).is_ok_and(|list| super::places(&list) == to)
    }
}
