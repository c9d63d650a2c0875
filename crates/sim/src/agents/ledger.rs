//! What clients outside were told: the commits that a database acknowledged, by their numbers. A database knows nothing of it; each recovery is held against it.
//!
//! LEDGER-L1  A recovery finds every commit that was acknowledged before it began to read (R1, R4), each as it was acknowledged.
//! LEDGER-L2  A commit that is acknowledged after another owner's recovery was found by that one: else two databases took writes at once (R2).
//!
//! Commits lie on the volumes as in a ring; each names the one before it, so that rests of a log that ended elsewhere are told from what follows.

use crate::model::{BLOCKS, Broken, Id, Place, VOLUMES};
use std::collections::BTreeMap;

/// Places of commits.
pub const SLOTS: u64 = (VOLUMES * BLOCKS - 1) as u64;
/// Where the pool keeps who has it imported.
pub const LABEL: Place = (VOLUMES - 1, BLOCKS - 1);
/// Commits that a database has under way at most: so many may be missing or there behind the end of what was acknowledged.
pub const UNDER_WAY_MAX: u64 = 4;

const _: () = assert!(SLOTS > 4 * UNDER_WAY_MAX);

/// Where commit `number` lies.
pub fn slot(number: u64) -> Place {
    let at = (number % SLOTS) as usize;
    (at % VOLUMES, at / VOLUMES)
}

/// What a write of the model's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The commit of this number, after the one that write `before` is.
    Commit { number: u64, before: Id },
    /// This host has the pool imported; none: it was exported.
    Label { host: Option<usize> },
}

/// A recovery's end: the last commit that is there, and the write that it is; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub number: u64,
    pub id: Id,
}

/// See the module.
#[derive(Default)]
pub struct Ledger {
    meaning: BTreeMap<Id, Meaning>,
    /// The latest commit that was acknowledged, and those before it that may still lie somewhere, each with its write.
    acknowledged: u64,
    ids: BTreeMap<u64, Id>,
    /// The latest owner's recovery, and what it found.
    recovered_epoch: u64,
    recovered: BTreeMap<u64, Id>,
    pub commits: u64,
    pub recoveries: u64,
}

impl Ledger {
    /// What write `id` is.
    pub fn mean(&mut self, id: Id, what: Meaning) {
        self.meaning.insert(id, what);
    }

    /// The host that a label names.
    pub fn label(&self, id: Id) -> Option<usize> {
        match self.meaning.get(&id) {
            Some(Meaning::Label { host }) => *host,
            _ => None,
        }
    }

    /// The latest commit that was acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// What a database makes of its volumes: the end of its log.
    pub fn read(&self, found: &BTreeMap<Place, Id>) -> (End, BTreeMap<u64, Id>) {
        let record = |(place, id): (&Place, &Id)| match self.meaning.get(id) {
            Some(Meaning::Commit { number, before }) if slot(*number) == *place => Some((*number, (*id, *before))),
            _ => None,
        };
        let records: BTreeMap<u64, (Id, Id)> = found.iter().filter_map(record).collect();
        let newest = records.keys().last().copied().unwrap_or(0);
        // So far back that every one was acknowledged before the newest was begun.
        let first = (newest + 2 * UNDER_WAY_MAX).saturating_sub(SLOTS).max(1);
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
    ///
    /// # Errors
    /// LEDGER-L1.
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

    /// The database of `epoch` tells a client that commit `number` is done.
    ///
    /// # Errors
    /// LEDGER-L2.
    pub fn acknowledge(&mut self, who: &str, epoch: u64, number: u64, id: Id) -> Result<(), Broken> {
        self.commits += 1;
        if epoch < self.recovered_epoch {
            // Answered before the other owner's grant, heard of after it: fine, if that one found it. Of what is older than its log nobody can say.
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
        while self.ids.len() as u64 > SLOTS {
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
            found.insert(slot(number), 100 + number);
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
        found.insert(slot(58), 58 - SLOTS + 100);
        assert_eq!(ledger.read(&found).0, End { number: 57, id: 157 }, "a hole");
        let (mut ledger, mut found) = log_of(1..=60);
        ledger.mean(900, Meaning::Commit { number: 59, before: 158 });
        found.insert(slot(59), 900);
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
