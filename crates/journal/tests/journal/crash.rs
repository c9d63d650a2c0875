//! Random histories, crashed anywhere, keeping any part of the unsynced changes (JOURNAL-J1 to JOURNAL-J6).
//!
//! After each crash the journal must equal some prefix of the history that includes everything acknowledged; and that
//! state must be durable once it was opened.

use crate::common::{self, Generator, Model, open, write};
use holdfast_journal::{Journal, Op};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// A run of one journal over several boots.
struct Run {
    disk: SimDisk,
    generator: Generator,
    /// Operations since the last recovery, and the number of acknowledged ones.
    issued: Vec<Op>,
    acknowledged: usize,
    /// Purges that went ahead: of so many operations, for this group. The last one may not have become durable.
    ahead: Vec<(usize, GroupId, LogId)>,
    ahead_durable: usize,
    /// The state before them.
    base: Model,
    boots: u64,
    /// Whether syncs are to be left out.
    forgetful: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let generator = Generator::new(seed);
        Self {
            disk: SimDisk::new(),
            generator,
            issued: Vec::new(),
            acknowledged: 0,
            ahead: Vec::new(),
            ahead_durable: 0,
            base: Model::default(),
            boots: 0,
            forgetful: false,
        }
    }

    fn state_after(&self, ops: usize) -> Model {
        let mut model = self.base.clone();
        self.issued[..ops].iter().for_each(|op| model.apply(op));
        model
    }

    /// The same, with the first of the purges that went ahead.
    fn state_with(&self, ops: usize, ahead: usize) -> Model {
        let mut model = self.state_after(ops);
        for (at, group, upto) in &self.ahead[..ahead] {
            let drops = |op: &Op| matches!(op, Op::DropGroup { group: dropped } if dropped == group);
            if !self.issued[*at..ops].iter().any(drops) {
                model.purge_ahead(*group, *upto);
            }
        }
        model
    }

    /// As on a full disk: the purges among `ops` go ahead of them.
    fn purge_ahead(&mut self, journal: &mut Journal<SimDisk>, ops: &VecDeque<Op>) -> bool {
        let mut purges = BTreeMap::new();
        for op in ops {
            match op {
                Op::Purge { group, upto } => purges.insert(*group, *upto),
                Op::DropGroup { group } => purges.remove(group),
                _ => None,
            };
        }
        for (group, upto) in purges {
            self.ahead.push((self.acknowledged, group, upto));
            match journal.purge_ahead([(group, upto)]) {
                Ok(true) => self.ahead_durable = self.ahead.len(),
                Ok(false) => {
                    self.ahead.pop();
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// One boot: recovers, checks, works until the power goes. `Err` says what is wrong.
    fn boot(&mut self, jobs: u64, crash_after: u64) -> Result<(), String> {
        self.boots += 1;
        let seed = self.generator.rng.next();
        if self.generator.rng.chance(20) {
            // Power may also fail during recovery, any number of times.
            let steps = self.generator.rng.below(12);
            self.disk.die_after(steps);
            let _ = open(&self.disk, seed);
            self.crash();
        }
        let (mut journal, report) = open(&self.disk, seed ^ 1).map_err(|error| error.to_string())?;
        if !report.corrupt.is_empty() || !report.damaged.is_empty() {
            return Err(format!("boot {}: a crash alone was taken for corruption: {report:?}", self.boots));
        }
        let found = Model::of(&journal)?;
        let ops = self.acknowledged..=self.issued.len();
        let mut states = ops.flat_map(|ops| (self.ahead_durable..=self.ahead.len()).map(move |ahead| (ops, ahead)));
        let Some((reached, ahead)) = states.find(|(ops, ahead)| self.state_with(*ops, *ahead) == found) else {
            let (acknowledged, issued) = (self.acknowledged, self.issued.len());
            return Err(format!(
                "boot {}: not a state after {acknowledged} to {issued} operations\nfound {}\nacknowledged {}\nreport {report:?}",
                self.boots,
                brief(&found),
                brief(&self.state_after(acknowledged)),
            ));
        };
        let lost = self.disk.crashed(Survives::Nothing);
        let (again, report_again) = open(&lost, seed ^ 2).map_err(|error| error.to_string())?;
        let found_again = Model::of(&again)?;
        if found_again != found {
            return Err(format!(
                "boot {}: what recovery returned was not durable\nfirst {}\nthen {}\n{report:?}\n{report_again:?}",
                self.boots,
                brief(&found),
                brief(&found_again),
            ));
        }
        self.base = self.state_with(reached, ahead);
        self.issued.clear();
        self.ahead.clear();
        self.ahead_durable = 0;
        self.acknowledged = 0;

        if self.forgetful {
            self.disk.ignore_syncs();
        }
        self.disk.die_after(crash_after);
        let mut model = self.base.clone();
        for _ in 0..jobs {
            let mut ops = VecDeque::new();
            for _ in 0..1 + self.generator.rng.below(3) {
                let job = self.generator.job(&model);
                job.iter().for_each(|op| model.apply(op));
                ops.extend(job);
            }
            let waits = self.generator.rng.chance(20);
            if waits && !self.purge_ahead(&mut journal, &ops) {
                // Nothing of these was written.
                break;
            }
            self.issued.extend(ops.iter().cloned());
            let fine = write(&mut journal, &mut ops);
            self.acknowledged = self.issued.len() - ops.len();
            if !fine || journal.tidy().is_err() {
                break;
            }
            if self.generator.rng.chance(15) && journal.mark_idle().is_err() {
                break;
            }
            if self.generator.rng.chance(3) {
                let old = self.disk.names().into_iter().rev().find_map(|name| self.disk.contents(&name));
                self.disk.recycle(old.unwrap_or_default());
            }
        }
        if self.generator.rng.chance(30) && journal.finish().is_err() && !self.disk.is_dead() {
            return Err("a clean end failed".to_string());
        }
        drop(journal);
        self.crash();
        Ok(())
    }

    fn crash(&mut self) {
        let rng = &mut self.generator.rng;
        if rng.chance(25) {
            return self.disk.restart();
        }
        self.disk = match rng.below(5) {
            0 => self.disk.crashed(Survives::Nothing),
            1 => self.disk.crashed(Survives::Everything),
            2 => {
                let unsynced = self.disk.unsynced_bytes() as u64;
                self.disk.crashed(Survives::Prefix(rng.below(unsynced + 1) as usize))
            }
            _ => {
                let percent = rng.below(101);
                self.disk.crashed(Survives::Some(&mut || rng.chance(percent)))
            }
        };
    }
}

fn brief(model: &Model) -> String {
    let group = |(id, group): (&holdfast_types::GroupId, &common::ModelGroup)| {
        let entries: Vec<String> =
            group.entries.iter().map(|(index, (term, _))| format!("{}-{index}", term.0)).collect();
        format!(
            "{id}: purged {:?} committed {:?} vote {:?} entries {}",
            group.purged,
            group.committed,
            group.vote,
            entries.join(" ")
        )
    };
    model.0.iter().map(group).collect::<Vec<_>>().join("\n  ")
}

fn run(seed: u64, boots: u64, jobs: u64, forgetful: bool) -> Result<(), String> {
    let mut run = Run::new(seed);
    run.forgetful = forgetful;
    for _ in 0..boots {
        let crash_after = run.generator.rng.below(4 * jobs + 4);
        run.boot(jobs, crash_after)?;
    }
    run.boot(0, u64::MAX)
}

proptest! {
    // More with PROPTEST_CASES=20000.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acknowledged_survives_any_crash(seed in any::<u64>(), boots in 1u64..8, jobs in 1u64..60) {
        if let Err(what) = run(seed, boots, jobs, false) {
            prop_assert!(false, "seed {} boots {} jobs {}: {}", seed, boots, jobs, what);
        }
    }
}

/// Check of the checker: a journal whose syncs do nothing must be caught.
#[test]
fn a_missing_sync_is_noticed() {
    let caught = (0..20).filter(|seed| run(*seed, 4, 30, true).is_err()).count();
    assert!(caught >= 15, "only {caught} of 20 histories without syncs were found wrong");
}

/// JOURNAL-J4: a start writes again what may not have been synced. If it dies meanwhile, half of that batch vouches for
/// nothing: the start after it writes all of it again.
#[test]
fn what_is_uncertain_is_written_again_though_the_start_before_was_cut_short() {
    let group = GroupId(1);
    let entry = |index: u64| Op::Entry { group, id: LogId::new(1, index), payload: vec![7; 9000].into() };
    let mut torn = 0;
    for (first, second) in (0..4).flat_map(|first| (0..12).map(move |second| (first, second))) {
        let context = format!("the process dies after {first} changes, the next one after {second}");
        let disk = SimDisk::new();
        let (mut journal, _) = open(&disk, 1).unwrap();
        let earlier = disk.names().swap_remove(0);
        assert!(write(&mut journal, &mut VecDeque::from([entry(1)])));
        disk.die_after(first);
        write(&mut journal, &mut VecDeque::from([entry(2)]));
        drop(journal);
        disk.restart();
        disk.die_after(second);
        drop(open(&disk, 3));
        disk.restart();
        // The file after it has the number of the one that was created ahead, and took its place.
        let begun = disk.unsynced().into_iter().find(|(name, bytes)| *name != earlier && bytes.len() > 8192);
        if let Some((name, _)) = &begun {
            // Of the batch behind the file's header, only the first block came to the disk.
            disk.damage(name, |bytes| bytes[8192..].fill(0));
        }
        let (journal, report) = open(&disk, 5).unwrap();
        assert!(report.corrupt.is_empty() && report.damaged.is_empty(), "{context}: {report:?}");
        torn += usize::from(begun.is_some() && !report.cuts.is_empty());
        let found = Model::of(&journal).unwrap();
        drop(journal);
        let (again, _) = open(&disk.crashed(Survives::Nothing), 7).unwrap();
        let again = Model::of(&again).unwrap();
        assert!(again == found, "{context}: found {}\nthen {}\n{report:?}", brief(&found), brief(&again));
    }
    assert!(torn > 0, "no start was cut short in its batch: nothing is tested");
}

/// JOURNAL-J4: a truncation that a start has seen is durable before anything is answered.
#[test]
fn a_truncation_that_a_start_has_seen_stays() {
    let group = GroupId(1);
    let entry = |index: u64| Op::Entry { group, id: LogId::new(1, index), payload: vec![7; 20].into() };
    let mut unsynced = 0;
    for changes in 0..4 {
        let disk = SimDisk::new();
        let (mut journal, _) = open(&disk, 1).unwrap();
        assert!(write(&mut journal, &mut (1..=3).map(entry).collect()));
        disk.die_after(changes);
        let done = write(&mut journal, &mut VecDeque::from([Op::Truncate { group, from: 2 }]));
        drop(journal);
        disk.restart();
        let (journal, _) = open(&disk, 3).unwrap();
        let found = Model::of(&journal).unwrap();
        unsynced += usize::from(!done && found.0[&group].entries.len() == 1);
        drop(journal);
        let (again, _) = open(&disk.crashed(Survives::Nothing), 5).unwrap();
        let again = Model::of(&again).unwrap();
        assert!(again == found, "{changes} changes: found {}\nthen {}", brief(&found), brief(&again));
    }
    assert!(unsynced > 0, "no truncation was left unsynced: nothing is tested");
}

/// A purge names an entry. It goes ahead only if this entry is what is on the disk: if another leader's is still there,
/// the group would begin with what is behind that one.
#[test]
fn a_purge_of_what_is_not_on_the_disk_yet_waits_for_its_turn() {
    let group = GroupId(1);
    let entry = |index: u64| Op::Entry { group, id: LogId::new(1, index), payload: vec![7; 20].into() };
    let (mut journal, _) = open(&SimDisk::new(), 2).unwrap();
    assert!(write(&mut journal, &mut (1..=10).map(entry).collect()));
    let before = Model::of(&journal).unwrap();
    for upto in [LogId::new(2, 8), LogId::new(1, 11)] {
        assert_eq!(journal.purge_ahead([(group, upto)]).ok(), Some(false), "{upto}");
        assert!(Model::of(&journal).unwrap() == before, "{upto}");
    }
    assert_eq!(journal.purge_ahead([(group, LogId::new(1, 8))]).ok(), Some(true));
}

/// On a full disk, a purge goes ahead of two changes of leader: one overwrote what is purged, the next brought it back.
/// The power may go between any two of them, and the group is sound.
#[test]
fn a_purge_that_goes_ahead_of_two_leaders_damages_nothing() {
    let group = GroupId(1);
    let entry = |term: u64, index: u64| Op::Entry { group, id: LogId::new(term, index), payload: vec![7; 20].into() };
    let leaders = |upto: u64| {
        let second = (5..upto).map(|index| entry(2, index));
        let back = (5..=10).map(|index| entry(1, index));
        let truncate = || std::iter::once(Op::Truncate { group, from: 5 });
        truncate().chain(second).chain(truncate()).chain(back).chain([entry(3, 11)]).collect::<Vec<Op>>()
    };
    for upto in [6, 8, 13] {
        let waits = leaders(upto);
        for written in 0..=waits.len() {
            let disk = SimDisk::new();
            let (mut journal, _) = open(&disk, 2).unwrap();
            assert!(write(&mut journal, &mut (1..=10).map(|index| entry(1, index)).collect()));
            assert_eq!(journal.purge_ahead([(group, LogId::new(1, 8))]).ok(), Some(true));
            assert!(write(&mut journal, &mut waits[..written].iter().cloned().collect()));
            drop(journal);
            let (again, report) = open(&disk.crashed(Survives::Nothing), 4).unwrap();
            assert!(report.damaged.is_empty() && report.corrupt.is_empty(), "{written} written: {report:?}");
            let found = Model::of(&again).unwrap();
            let state = &found.0[&group];
            assert_eq!(state.purged, Some(LogId::new(1, 8)));
            assert!(state.entries.keys().all(|index| *index > 8), "{written} written: {}", brief(&found));
        }
    }
}
