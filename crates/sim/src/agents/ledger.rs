//! Ledger of the commits that databases acknowledged to clients, by number. Databases cannot see it; each recovery is
//! compared with it.
//!
//! LEDGER-L1  A recovery finds every commit that was acknowledged before it began to read (R1, R4), each as it was
//!     acknowledged.
//! LEDGER-L2  A commit that is acknowledged after another owner's recovery was found by that recovery: otherwise two
//!     databases took writes at once (R2).
//!
//! Commits are in a ring on the volumes. Each names its predecessor, which distinguishes remains of a log that ended
//! elsewhere from the log itself.

use crate::model::{BLOCKS, Broken, Id, Place, VOLUMES};
use std::collections::BTreeMap;

/// Places for commits.
pub const PLACES: u64 = (VOLUMES * BLOCKS - 1) as u64;
/// Place where the pool keeps its importing host.
pub const LABEL: Place = (VOLUMES - 1, BLOCKS - 1);
/// Most commits that a database has under way: as many may be missing or present behind the end of the acknowledged
/// ones.
pub const UNDER_WAY_MAX: u64 = 4;

const _: () = assert!(PLACES > 4 * UNDER_WAY_MAX);

/// Where commit `number` lies.
pub fn place_of(number: u64) -> Place {
    let at = (number % PLACES) as usize;
    (at % VOLUMES, at / VOLUMES)
}

/// Meaning of a write of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The commit of this number, after the one in write `before`.
    Commit { number: u64, before: Id },
    /// This host has imported the pool; none: it was exported.
    Label { host: Option<usize> },
}

/// End of a recovery: the last commit found, and its write; 0 if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub number: u64,
    pub id: Id,
}

/// See the module.
#[derive(Default)]
pub struct Ledger {
    meaning: BTreeMap<Id, Meaning>,
    /// The last acknowledged commit, and those before it that may still be on the volumes, each with its write.
    acknowledged: u64,
    ids: BTreeMap<u64, Id>,
    /// The latest owner's recovery, and its result.
    recovered_epoch: u64,
    recovered: BTreeMap<u64, Id>,
    pub commits: u64,
    pub recoveries: u64,
}

impl Ledger {
    /// Sets the meaning of write `id`.
    pub fn mean(&mut self, id: Id, what: Meaning) {
        self.meaning.insert(id, what);
    }

    /// The host in a label.
    pub fn label(&self, id: Id) -> Option<usize> {
        match self.meaning.get(&id) {
            Some(Meaning::Label { host }) => *host,
            _ => None,
        }
    }

    /// The last acknowledged commit.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The end of the log on these volumes, as a database would find it.
    pub fn read(&self, found: &BTreeMap<Place, Id>) -> (End, BTreeMap<u64, Id>) {
        let record = |(place, id): (&Place, &Id)| match self.meaning.get(id) {
            Some(Meaning::Commit { number, before }) if place_of(*number) == *place => Some((*number, (*id, *before))),
            _ => None,
        };
        let records: BTreeMap<u64, (Id, Id)> = found.iter().filter_map(record).collect();
        let newest = records.keys().last().copied().unwrap_or(0);
        // Far enough back that everything before was acknowledged before the newest was begun.
        let first = (newest + 2 * UNDER_WAY_MAX).saturating_sub(PLACES).max(1);
        let (mut end, mut log) = (End { number: first - 1, id: 0 }, BTreeMap::new());
        for number in first..=newest {
            match records.get(&number) {
                Some((id, before)) if *before == end.id || end.id == 0 && first > 1 => {
                    end = End { number, id: *id };
                    log.insert(number, *id);
                }
                _ => break,
            }
        }
        (end, log)
    }

    /// The database of `epoch` has recovered up to `end`, with `log`; `least` was acknowledged before it began to read.
    /// Checks LEDGER-L1.
    pub fn recover(
        &mut self,
        who: &str,
        epoch: u64,
        end: End,
        log: &BTreeMap<u64, Id>,
        least: u64,
    ) -> Result<(), Broken> {
        self.recoveries += 1;
        if end.number < least {
            let lost = end.number + 1;
            return Err(format!(
                "LEDGER-L1 (R1, R4): commit {lost} was acknowledged, and {who} under e{epoch} recovered up to {} of {least}",
                end.number
            ));
        }
        let other = self.ids.range(..=least).find(|(number, id)| log.get(number).is_some_and(|found| found != *id));
        if let Some((number, id)) = other {
            return Err(format!(
                "LEDGER-L1 (R1, R4): commit {number} was acknowledged as write {id}, and {who} under e{epoch} recovered write {:?} in its place",
                log.get(number)
            ));
        }
        if epoch >= self.recovered_epoch {
            (self.recovered_epoch, self.recovered) = (epoch, log.clone());
        }
        Ok(())
    }

    /// The database of `epoch` acknowledges commit `number` to a client. Checks LEDGER-L2.
    pub fn acknowledge(&mut self, who: &str, epoch: u64, number: u64, id: Id) -> Result<(), Broken> {
        self.commits += 1;
        if epoch < self.recovered_epoch {
            // A commit answered before the other owner's grant but reported after it is fine if that owner found it.
            // Commits older than its log cannot be judged.
            let oldest = self.recovered.keys().next().copied().unwrap_or(0);
            let found = self.recovered.get(&number) == Some(&id);
            if found || number < oldest {
                return Ok(());
            }
            return Err(format!(
                "LEDGER-L2 (R2): {who} acknowledged commit {number} (write {id}) under e{epoch}, which the recovery under e{} had not found",
                self.recovered_epoch
            ));
        }
        self.acknowledged = self.acknowledged.max(number);
        self.ids.insert(number, id);
        while self.ids.len() as u64 > PLACES {
            self.ids.pop_first();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of writes 101, 102, ... with these commits on the volumes.
    fn log_of(numbers: impl Iterator<Item = u64>) -> (Ledger, BTreeMap<Place, Id>) {
        let (mut ledger, mut found) = (Ledger::default(), BTreeMap::new());
        for number in numbers {
            let before = if number == 1 { 0 } else { 99 + number };
            ledger.mean(100 + number, Meaning::Commit { number, before });
            found.insert(place_of(number), 100 + number);
        }
        (ledger, found)
    }

    #[test]
    fn a_log_ends_where_the_next_commit_is_missing_or_of_another_log() {
        for upto in [0, 1, 3, 46, 47, 48, 100, 1000] {
            let (ledger, found) = log_of(1..=upto);
            assert_eq!(ledger.read(&found).0.number, upto);
        }
        let (ledger, mut found) = log_of(1..=60);
        found.insert(place_of(58), 58 - PLACES + 100);
        assert_eq!(ledger.read(&found).0, End { number: 57, id: 157 }, "a hole");
        let (mut ledger, mut found) = log_of(1..=60);
        ledger.mean(900, Meaning::Commit { number: 59, before: 158 });
        found.insert(place_of(59), 900);
        assert_eq!(ledger.read(&found).0, End { number: 59, id: 900 }, "60 is of a log that ended");
    }

    #[test]
    fn what_was_acknowledged_is_found_or_a_rule_is_broken() {
        let (mut ledger, found) = log_of(1..=5);
        ledger.acknowledge("db1", 3, 4, 104).expect("nobody else");
        let (end, log) = ledger.read(&found);
        ledger.recover("db2", 7, end, &log, ledger.acknowledged()).expect("all there");
        assert!(ledger.recover("db2", 8, End { number: 3, id: 103 }, &log, 4).is_err(), "LEDGER-L1");
        ledger.acknowledge("db1", 3, 5, 105).expect("found by db2");
        assert!(ledger.acknowledge("db1", 3, 6, 106).is_err(), "LEDGER-L2");
        let mut other = log.clone();
        other.insert(4, 999);
        assert!(ledger.recover("db2", 9, end, &other, 4).is_err(), "LEDGER-L1: another one in its place");
    }
}
