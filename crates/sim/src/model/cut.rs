//! Model of permitted reads if the order of writes is not known from outside: an attached set's clients submit many
//! writes at a time over several connections, and writes under way are sent again when a gateway is lost.
//!
//! Known of the order: a write that was known (answered, or read) before another was submitted comes before it; and of
//! two overlapping writes of one device, the one submitted first (ATTACH-M1 of `attach::machine`). A *cut* contains
//! with each write all that come before it, each complete (R5).

use super::{Broken, Fate, Id, Model, Place, Write};
use std::collections::{BTreeMap, BTreeSet};

impl Write {
    fn covers(&self) -> impl Iterator<Item = Place> + use<> {
        let volume = self.volume;
        (self.first..self.first + self.blocks).map(move |block| (volume, block))
    }

    fn overlaps(&self, other: &Write) -> bool {
        let apart = self.first + self.blocks <= other.first || other.first + other.blocks <= self.first;
        self.volume == other.volume && !apart
    }
}

impl Model {
    /// The writes among `ids` that took effect, given those in `found` and all that were known at stamp `least`.
    fn cut(&self, ids: &[Id], least: u64, found: &BTreeMap<Place, Id>) -> BTreeSet<Id> {
        let seen: BTreeSet<Id> = found.values().copied().collect();
        let known = |write: &Write, at: u64| write.known_at.is_some_and(|known| known <= at);
        let of = |id: &Id| self.writes.get(id).map(|write| (*id, write));
        let there = |(id, write): &(Id, &Write)| seen.contains(id) || known(write, least);
        // Everything known before the last of them was submitted.
        let last = ids.iter().filter_map(of).filter(there).map(|(_, write)| write.handed_at).max().unwrap_or(0);
        let mut cut: BTreeSet<Id> = BTreeSet::new();
        for (id, write) in ids.iter().rev().filter_map(of) {
            let before = |later: &Write| later.epoch == write.epoch && later.overlaps(write);
            let held_back = || cut.iter().filter_map(|later| self.writes.get(later)).any(before);
            if there(&(id, write)) || known(write, last) || held_back() {
                cut.insert(id);
            }
        }
        cut
    }

    /// Content of each block after `cut`, over `base`.
    fn after(&self, base: &BTreeMap<Place, Id>, cut: &BTreeSet<Id>) -> BTreeMap<Place, Id> {
        let mut content = base.clone();
        for (id, write) in cut.iter().filter_map(|id| Some((*id, self.writes.get(id)?))) {
            content.extend(write.covers().map(|place| (place, id)));
        }
        content
    }

    /// As [`Model::resolve`].
    pub(super) fn resolve_cut(&mut self, epoch: u64, found: &BTreeMap<Place, Id>) -> Result<(), Broken> {
        let open = std::mem::take(&mut self.open);
        let cut = self.cut(&open, self.stamp, found);
        let content = self.after(&self.base, &cut);
        if !super::same(&content, found) {
            let known = open.iter().rposition(|id| self.writes.get(id).is_some_and(|w| w.known_at.is_some()));
            self.open = open;
            return Err(self.misfit(epoch, known.map_or(0, |at| at + 1), found));
        }
        let stamp = self.stamp();
        for id in open {
            let Some(write) = self.writes.get_mut(&id) else { continue };
            // Covered by others in all its places: whether it took effect before them is unknown.
            let hidden = write.covers().all(|place| content.get(&place).is_some_and(|shown| *shown > id));
            write.fate = if cut.contains(&id) || hidden { Fate::Landed } else { Fate::Lost };
            if cut.contains(&id) {
                write.known_at.get_or_insert(stamp);
            }
        }
        for (place, id) in &content {
            self.raise(*place, stamp, *id);
        }
        self.base = content;
        self.resolved_epoch = epoch;
        Ok(())
    }

    /// As [`Model::snapshot`], where `least` is a stamp.
    pub(super) fn snapshot_cut(&self, least: u64, found: &BTreeMap<Place, Id>) -> Result<(), Broken> {
        let ids: Vec<Id> =
            self.writes.iter().filter(|(_, write)| write.fate != Fate::Lost).map(|(id, _)| *id).collect();
        let cut = self.cut(&ids, least, found);
        let content = self.after(&BTreeMap::new(), &cut);
        if super::same(&content, found) {
            return Ok(());
        }
        Err(format!("R4: it is no cut: place, found, expected: {:?}", super::differ(found, &content)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Model {
        let mut model = Model::new(true);
        model.granted(5).expect("the first");
        model.resolve(5, &BTreeMap::new()).expect("empty");
        model
    }

    fn shows(of: &[(Place, Id)]) -> BTreeMap<Place, Id> {
        of.iter().copied().collect()
    }

    #[test]
    fn what_was_under_way_at_the_same_time_may_be_there_or_not_each_for_itself() {
        for shown in 0..8 {
            let mut model = begun();
            let ids: Vec<Id> = (0..3).map(|at| model.hand_in(5, at % 2, at, 1)).collect();
            let found = (0..3).filter(|at| shown & (1 << at) != 0).map(|at| ((at % 2, at), ids[at])).collect();
            model.resolve(6, &found).expect("any of them");
        }
    }

    #[test]
    fn what_was_answered_or_read_is_there() {
        let mut model = begun();
        let (first, second) = (model.hand_in(5, 0, 0, 1), model.hand_in(5, 1, 1, 1));
        model.answered(first).expect("handed in");
        assert!(model.resolve(6, &shows(&[((1, 1), second)])).is_err(), "R1");
        let asked = model.stamp();
        model.read(asked, 1, 1, second).expect("under way");
        assert!(model.resolve(6, &shows(&[((0, 0), first)])).is_err(), "it was read");
        model.resolve(6, &shows(&[((0, 0), first), ((1, 1), second)])).expect("both");
    }

    #[test]
    fn a_write_is_there_whole_and_after_those_that_it_waited_for() {
        let mut model = begun();
        let (first, second) = (model.hand_in(5, 0, 0, 2), model.hand_in(5, 0, 1, 2));
        assert!(model.resolve(6, &shows(&[((0, 0), first)])).is_err(), "R5: half of it");
        assert!(
            model.resolve(6, &shows(&[((0, 1), second), ((0, 2), second)])).is_err(),
            "ATTACH-M1: the first came before"
        );
        model.resolve(6, &shows(&[((0, 0), first), ((0, 1), second), ((0, 2), second)])).expect("both");
        assert!(model.resolve(7, &shows(&[((0, 0), first), ((0, 1), first), ((0, 2), second)])).is_err(), "an old one");
    }

    #[test]
    fn what_was_not_there_when_a_later_owner_looked_never_comes() {
        let mut model = begun();
        let (lost, hidden, last) = (model.hand_in(5, 0, 0, 1), model.hand_in(5, 0, 4, 1), model.hand_in(5, 0, 4, 1));
        model.granted(6).expect("later");
        model.resolve(6, &shows(&[((0, 4), last)])).expect("fits");
        assert!(model.answered(lost).is_err(), "R2");
        model.answered(hidden).expect("it was there before the last");
        let asked = model.stamp();
        assert!(model.read(asked, 0, 0, lost).is_err());
        assert!(model.read(asked, 0, 4, hidden).is_err(), "R3");
    }

    #[test]
    fn a_snapshot_holds_with_a_write_all_that_were_known_before_it_was_handed_in() {
        let mut model = begun();
        let first = model.hand_in(5, 0, 0, 1);
        let beside = model.hand_in(5, 1, 1, 1);
        model.answered(first).expect("handed in");
        let least = model.last_answered();
        let later = model.hand_in(5, 1, 2, 1);
        let fine = |model: &Model, of: &[(Place, Id)]| model.snapshot(least, later, &shows(of)).is_ok();
        assert!(fine(&model, &[((0, 0), first)]));
        assert!(fine(&model, &[((0, 0), first), ((1, 2), later)]), "without the one beside");
        assert!(fine(&model, &[((0, 0), first), ((1, 1), beside)]));
        assert!(!fine(&model, &[((1, 2), later)]), "the first was known before");
        assert!(!fine(&model, &[]), "and when it was asked for");
        let after = model.hand_in(5, 0, 5, 1);
        assert!(!fine(&model, &[((0, 0), first), ((0, 5), after)]), "handed in when it was there");
    }
}
