//! Random histories, cut everywhere.
//!
//! - The power fails after each change of the disk (a write, a sync, a name). Every prefix of the unsynced bytes is
//!   kept that ends at or beside a boundary of the format (batch header, record, its head, its payload), and one every
//!   [`STRIDE`] bytes. Everything acknowledged must be there, and nothing damaged (JOURNAL-J1 to JOURNAL-J6).
//! - Each file of the finished history loses its end, at those places. In the file written last that looks like a torn
//!   tail: everything acknowledged before it must be there. For an earlier file the next one has its synced offset: the
//!   damage must be named, by file and offset, and other groups must be complete (R9).
//! - In some short histories the power also fails after each change of the disk, and *every* subset of the unsynced
//!   sectors and names is kept, unless there are too many. (`crash.rs` draws random subsets in long histories.)
//!
//! Another history: `HOLDFAST_CUTS_SEED=7 cargo test -p holdfast-journal --test journal -- cuts::`.

use crate::common::{Generator, Model, open, write};
use holdfast_journal::{BLOCK_BYTES, Op, RecoverError, RecoveryReport, record_bytes};
use holdfast_testkit::{SimDisk, Survives};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Jobs of the history, half of them before a restart: some batches each, enough to begin, carry and drop files.
const JOBS: u64 = 130;

/// Histories of which every subset is tried, and their jobs.
const SUBSET_HISTORIES: u64 = 4;
const SUBSET_JOBS: u64 = 60;

/// Most unsynced sectors and names of which every subset is tried (4,096 subsets): enough for most batches.
const SUBSET_MAX: usize = 12;

/// Distance between two cuts where the format has no boundary, in bytes.
const STRIDE: usize = 128;

const BLOCK: usize = BLOCK_BYTES;

#[expect(clippy::disallowed_methods, reason = "the environment says which history is cut")]
fn seed() -> u64 {
    let seed = std::env::var("HOLDFAST_CUTS_SEED").ok().map_or(4, |text| text.parse().expect("a number"));
    println!("HOLDFAST_CUTS_SEED={seed}");
    seed
}

/// A finished or interrupted history.
struct Run {
    disk: SimDisk,
    issued: Vec<Op>,
    /// How many of them were acknowledged.
    acknowledged: usize,
    /// After each job: the file written last, the end of its last batch, and the number of acknowledged operations.
    reached: Vec<(String, usize, usize)>,
    /// End of the last batch when files were last dropped: records carried out of them have no other copy.
    forward: (String, usize),
}

/// Runs the history of `seed`, to its end or until the power fails after `changes` changes of the disk. The second half
/// runs after a restart, in files of the other kind (sealed or not).
fn run(seed: u64, changes: u64, jobs: u64) -> Run {
    let (issued, reached, forward) = (Vec::new(), Vec::new(), (String::new(), 0));
    let mut run = Run { disk: SimDisk::new(), issued, acknowledged: 0, reached, forward };
    run.disk.die_after(changes);
    // Recorded only in a full run.
    let whole = changes == u64::MAX;
    let (mut generator, mut model) = (Generator::new(seed), Model::default());
    for boot in 0..2 {
        let Ok((mut journal, report)) = open(&run.disk, seed + boot) else { return run };
        assert!(report.corrupt.is_empty() && report.damaged.is_empty(), "boot {boot}: {report:?}");
        run.forward = last_end(&run.disk).unwrap_or_default();
        for _ in 0..jobs / 2 {
            let mut ops: VecDeque<Op> = generator.job(&model).into();
            ops.iter().for_each(|op| model.apply(op));
            run.issued.extend(ops.iter().cloned());
            let fine = write(&mut journal, &mut ops);
            run.acknowledged = run.issued.len() - ops.len();
            if !fine {
                return run;
            }
            if whole && let Some((name, end)) = last_end(&run.disk) {
                run.reached.push((name, end, run.acknowledged));
            }
            let files = run.disk.names();
            if journal.tidy().is_err() {
                return run;
            }
            if whole && files.iter().any(|name| run.disk.contents(name).is_none()) {
                run.forward = last_end(&run.disk).unwrap_or_default();
            }
            if generator.rng.chance(15) && journal.mark_idle().is_err() {
                return run;
            }
        }
        if boot == 1 {
            let _ = journal.finish();
        }
    }
    run
}

/// States after none, one, two, ... of the operations.
fn states(issued: &[Op]) -> Vec<Model> {
    let mut states = vec![Model::default()];
    for op in issued {
        let mut next = states.last().cloned().unwrap_or_default();
        next.apply(op);
        states.push(next);
    }
    states
}

/// A batch, parsed here again from the description of the format, so that the code under test does not choose its own
/// cuts.
struct Batch {
    /// Header and records, without the padding of the block.
    range: Range<usize>,
    idle: bool,
    synced_before: usize,
    /// Where something ends and something else begins.
    boundaries: Vec<usize>,
}

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// The batch that begins at `at`, if any.
fn batch(bytes: &[u8], at: usize) -> Option<Batch> {
    let head = bytes.get(at..at + 64)?;
    if !head.starts_with(b"HFB1") || number(head, 8, 8) == 0 {
        return None;
    }
    let range = at..at + number(head, 48, 8).min(bytes.len() - at);
    let mut boundaries = vec![at, at + 4, at + 8, at + 64];
    let mut record = at + 64;
    while record + 48 <= range.end {
        let (len, chunks) = (number(bytes, record + 32, 4), number(bytes, record + 6, 2));
        let payload = record + 48 + 20 * chunks;
        boundaries.extend([record, record + 4, record + 48, payload, payload + len / 2, payload + len]);
        record += record_bytes(len);
    }
    boundaries.push(range.end);
    let idle = number(head, 28, 4) & 1 == 1;
    Some(Batch { range, idle, synced_before: number(head, 40, 8), boundaries })
}

/// The batches of a file, from the end of its header.
fn batches(bytes: &[u8]) -> Vec<Batch> {
    let (mut found, mut at) = (Vec::new(), BLOCK);
    while let Some(batch) = batch(bytes, at) {
        at = batch.range.end.next_multiple_of(BLOCK);
        found.push(batch);
    }
    found
}

/// The last file with a batch.
fn last_written(disk: &SimDisk) -> Option<(String, Vec<Batch>)> {
    disk.names().into_iter().rev().find_map(|name| {
        let batches = batches(&disk.contents(&name)?);
        (!batches.is_empty()).then_some((name, batches))
    })
}

/// The last file with a batch, and the end of that batch.
fn last_end(disk: &SimDisk) -> Option<(String, usize)> {
    last_written(disk).map(|(name, batches)| (name, batches.last().map_or(0, |batch| batch.range.end)))
}

/// Offsets of cuts for these boundaries: at them, beside them, and every [`STRIDE`] bytes up to the last one.
fn cuts(boundaries: &[usize]) -> BTreeSet<usize> {
    let (first, last) = (boundaries.iter().min().copied().unwrap_or(0), boundaries.iter().max().copied().unwrap_or(0));
    let beside = boundaries.iter().flat_map(|at| [at.saturating_sub(1), *at, at + 1]);
    beside.chain((first..last).step_by(STRIDE)).filter(|at| (first..=last).contains(at)).collect()
}

/// After a power cut that left this disk: nothing counts as damaged, and the content is a state after all acknowledged
/// operations. Returns whether a torn tail was cut.
fn opens_whole(left: &SimDisk, seed: u64, run: &Run, states: &[Model], context: &str) -> bool {
    let (journal, report) = open(left, seed ^ 0xc07).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(report.corrupt.is_empty() && report.damaged.is_empty(), "{context}: {report:?}");
    let found = Model::of(&journal).unwrap_or_else(|error| panic!("{context}: {error}"));
    let (acknowledged, issued) = (run.acknowledged, run.issued.len());
    assert!(
        states[acknowledged..=issued].contains(&found),
        "{context}: not a state after {acknowledged} to {issued} operations: {report:?}"
    );
    !report.cuts.is_empty()
}

#[test]
fn a_power_cut_anywhere_keeps_what_was_acknowledged() {
    let seed = seed();
    let whole = run(seed, u64::MAX, JOBS);
    let states = states(&whole.issued);
    assert_eq!(whole.acknowledged, whole.issued.len());
    let (mut changes, mut opened, mut torn) = (0, 0, 0);
    loop {
        let run = run(seed, changes, JOBS);
        if !run.disk.is_dead() {
            break;
        }
        // Every prefix of the unsynced bytes, write by write.
        let mut kept = BTreeSet::from([0]);
        let mut before = 0;
        for (_, bytes) in run.disk.unsynced() {
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let boundaries = batch(&bytes, 0).map_or(vec![0, 8, 12, 16, 32, 48, 56, 64, 72, used], |b| b.boundaries);
            kept.extend(cuts(&boundaries).into_iter().map(|at| before + at.min(bytes.len())));
            before += bytes.len();
            kept.insert(before);
        }
        for kept in kept {
            let context = format!("seed {seed}, the power gone after {changes} changes, {kept} of {before} bytes kept");
            let disk = run.disk.crashed(Survives::Prefix(kept));
            opened += 1;
            torn += usize::from(opens_whole(&disk, seed, &run, &states, &context));
        }
        changes += 1;
    }
    println!("{changes} changes of the disk, {opened} cuts, {torn} of them with a torn tail");
    assert!(changes > 300 && opened > 3000 && torn > 1000, "too little was cut: {changes} {opened} {torn}");
}

/// Number of sectors and names that a power cut may lose here.
fn unsynced(disk: &SimDisk) -> usize {
    let mut asked = 0;
    disk.crashed(Survives::Each(&mut || {
        asked += 1;
        true
    }));
    asked
}

/// Every disk that a power cut may leave, with the kept (true) and lost changes.
fn each_left(disk: &SimDisk, mut see: impl FnMut(&SimDisk, &[bool])) {
    let mut kept: Vec<bool> = Vec::new();
    loop {
        let mut asked = 0;
        let left = disk.crashed(Survives::Each(&mut || {
            if asked == kept.len() {
                kept.push(false);
            }
            asked += 1;
            kept[asked - 1]
        }));
        see(&left, &kept);
        // Keep the last lost one now, and choose again for the ones behind it: a kept name brings more sectors with it.
        let Some(last) = kept.iter().rposition(|kept| !kept) else { return };
        kept.truncate(last);
        kept.push(true);
    }
}

#[test]
fn a_power_cut_may_leave_any_subset_of_what_was_not_synced() {
    let first = seed();
    let (mut points, mut several, mut beyond, mut opened, mut torn) = (0, 0, 0, 0, 0);
    for seed in first..first + SUBSET_HISTORIES {
        let states = states(&run(seed, u64::MAX, SUBSET_JOBS).issued);
        for changes in 0.. {
            let run = run(seed, changes, SUBSET_JOBS);
            if !run.disk.is_dead() {
                break;
            }
            let choices = unsynced(&run.disk);
            if choices > SUBSET_MAX {
                beyond += 1;
                continue;
            }
            points += usize::from(choices > 0);
            several += usize::from(run.disk.unsynced().len() > 1);
            each_left(&run.disk, |left, kept| {
                let context = format!("seed {seed}, the power gone after {changes} changes, kept {kept:?}");
                opened += 1;
                torn += usize::from(opens_whole(left, seed, &run, &states, &context));
            });
        }
    }
    println!(
        "{points} moments with something unsynced, {several} of them with several writes: {opened} subsets, \
         {torn} with a torn tail; {beyond} moments had too much"
    );
    let enough = points > 100 && several > 5 && opened > 1000 && torn > 200;
    assert!(enough, "too little was tried: {points} {several} {opened} {torn}");
    assert!(beyond < points / 2, "of {beyond} moments not every subset was tried, of {points} it was");
}

/// Damage to a file.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Zeroes from here on.
    Zeroed(usize),
    /// Nothing from here on.
    Shortened(usize),
}

impl Cut {
    fn make(self, disk: &SimDisk, name: &str) {
        match self {
            Cut::Zeroed(at) => disk.damage(name, |bytes| bytes[at..].fill(0)),
            Cut::Shortened(at) => disk.shorten(name, at),
        }
    }

    /// The first changed byte in a file with these bytes. A partial block counts as missing.
    fn first_lost(self, bytes: &[u8]) -> Option<usize> {
        let at = match self {
            Cut::Zeroed(at) => at,
            Cut::Shortened(at) => at / BLOCK * BLOCK,
        };
        bytes[at..].iter().position(|byte| *byte != 0).map(|first| at + first)
    }
}

#[test]
fn a_file_that_loses_its_end_is_a_torn_tail_or_named_damage() {
    let seed = seed();
    let whole = run(seed, u64::MAX, JOBS);
    let states = states(&whole.issued);
    let model = states.last().expect("one at least");
    let files: BTreeMap<String, Vec<u8>> =
        whole.disk.names().into_iter().filter_map(|name| Some((name.clone(), whole.disk.contents(&name)?))).collect();
    let (last, _) = last_written(&whole.disk).expect("written");
    let (mut tails, mut named, mut harmless) = (0, 0, 0);
    for (name, bytes) in &files {
        let batches = batches(bytes);
        let mut boundaries = vec![0, 8, 12, 16, 32, 48, 64, 72, 80, BLOCK];
        boundaries.extend(batches.iter().flat_map(|batch| batch.boundaries.iter().copied()));
        let blocks = (0..=batches.last().map_or(BLOCK, |last| last.range.end)).step_by(BLOCK);
        let shortened = blocks.flat_map(|at| [at, at + 1, at + BLOCK - 1]).filter(|at| *at < bytes.len());
        for cut in cuts(&boundaries).into_iter().map(Cut::Zeroed).chain(shortened.map(Cut::Shortened)) {
            let context = format!("seed {seed}, {name} of {:?} {cut:?}", files.keys());
            let disk = whole.disk.crashed(Survives::Everything);
            cut.make(&disk, name);
            let (journal, report) = match open(&disk, seed ^ 0xc07) {
                Ok(opened) => opened,
                // A header that lost the part behind its version: the file is named, nothing was begun.
                Err(RecoverError::Version { file, .. }) if file == *name => continue,
                Err(error) => panic!("{context}: {error}"),
            };
            let Some(lost) = cut.first_lost(bytes) else {
                assert!(
                    Model::of(&journal).as_ref() == Ok(model) && report.corrupt.is_empty(),
                    "{context}: {report:?}"
                );
                harmless += 1;
                continue;
            };
            if *name == last && lost >= BLOCK {
                // A batch that does not fit into the file does not count as begun.
                let torn: &[Batch] = if matches!(cut, Cut::Zeroed(_)) { &batches } else { &[] };
                tails += usize::from(a_torn_tail(&context, &whole, &states, torn, lost, &report, &journal));
                continue;
            }
            // The file created ahead has only a header; for the others the next one has the synced offset.
            let vouched = files.range(name.clone()..).nth(1).and_then(|(_, next)| batch(next, BLOCK));
            let vouched = vouched.map_or(0, |batch| batch.synced_before);
            let gone = || batches.iter().filter(|batch| batch.range.end > lost);
            // An idle marker is not synced by itself; if it is gone with the batches behind it, the gap begins there.
            let end = gone().find(|batch| batch.range.end <= vouched && !batch.idle).map(|batch| batch.range.end);
            let from = gone().next().map_or(0, |batch| batch.range.start);
            let place = if lost < BLOCK { Some(0..1) } else { end.map(|end| from..end) };
            if let Some(place) = place {
                let says =
                    |at: &holdfast_journal::CorruptRecord| at.file == *name && place.contains(&(at.offset as usize));
                assert!(report.corrupt.iter().any(says), "{context}: not named, {place:?}: {report:?}");
                named += 1;
            }
            for (group, state) in &model.0 {
                let found = || Model::of_group(&journal, *group).unwrap_or_else(|error| panic!("{context}: {error}"));
                // A group whose records were all in the lost bytes is unknown; then the loss itself is named.
                let whole = report.damaged.contains_key(group)
                    || found().map_or(report.lost.is_some(), |found| found == *state);
                assert!(whole, "{context}: {group} is not what it was, and not named: {report:?}");
            }
        }
    }
    println!("{} files: {tails} torn tails, {named} cuts named as damage, {harmless} without effect", files.len());
    assert!(files.len() >= 3 && tails > 30 && named > 500, "too little was cut: {tails} {named}");
}

/// The end of the file written last is gone, from `lost` on: expects a state acknowledged by then, or a later one. Not
/// checked if that removes copies which tidying carried forward before it dropped their file: no power cut leaves that.
/// Returns whether it was checked.
fn a_torn_tail(
    context: &str,
    whole: &Run,
    states: &[Model],
    batches: &[Batch],
    lost: usize,
    report: &RecoveryReport,
    journal: &holdfast_journal::Journal<SimDisk>,
) -> bool {
    let name = &whole.reached.last().expect("jobs were done").0;
    if whole.forward.0 == *name && lost < whole.forward.1 {
        return false;
    }
    assert!(report.corrupt.is_empty() && report.damaged.is_empty(), "{context}: {report:?}");
    let before = |(file, end, _): &&(String, usize, usize)| file < name || *end <= lost;
    let acknowledged = whole.reached.iter().filter(before).map(|(_, _, acknowledged)| *acknowledged).max().unwrap_or(0);
    let found = Model::of(journal).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(states[acknowledged..].contains(&found), "{context}: not a state after {acknowledged} or more: {report:?}");
    // Inside of a batch: the batch is cut, and the report has its begin.
    let torn = batches.iter().find(|batch| batch.range.contains(&lost) && lost >= batch.range.start + 64);
    if let Some(torn) = torn {
        let says = |cut: &holdfast_journal::Cut| cut.file == *name && cut.offset as usize == torn.range.start;
        assert!(report.cuts.iter().any(says), "{context}: the cut at {} is not told: {report:?}", torn.range.start);
    }
    true
}
