//! The machine against flat arrays of sectors, over histories with invalid begins and ends too.

use super::*;
use crate::entry::{EntryBuilder, encode_control};
use holdfast_control::set::VolumeChange;
use holdfast_types::{Name, ObjectId, Owner, RequestId, Term, Token};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[path = "rollback_tests.rs"]
mod rollbacks;

const SECTORS: u64 = 48;

/// Content of a sector: its write (0: zeroes), the op in it, and the sector within the op.
type Cell = (u64, u32, u64);
const ZERO: Cell = (0, 0, 0);

/// Per volume, per sector.
type Content = BTreeMap<VolumeId, Vec<Cell>>;

/// The store: content of each root.
type Roots = BTreeMap<LogId, Content>;

fn empty(machine: &SetMachine) -> Content {
    machine.state().volumes.iter().map(|(id, volume)| (*id, vec![ZERO; volume.size.0 as usize])).collect()
}

/// All sectors of all volumes, read by lookups like a gateway's.
fn content(machine: &SetMachine, roots: &Roots) -> Content {
    let mut all = empty(machine);
    for (volume, cells) in &mut all {
        let len = Sectors(cells.len() as u64);
        resolve(&machine.lookup(*volume, Lba(0), len), *volume, cells, machine, roots);
    }
    all
}

fn resolve(pieces: &[Piece], volume: VolumeId, cells: &mut [Cell], machine: &SetMachine, roots: &Roots) {
    let mut at = 0;
    for piece in pieces {
        assert_eq!(piece.lba.0, at, "pieces tile");
        for n in 0..piece.sectors.0 {
            cells[(at + n) as usize] = match piece.source {
                Source::Zero => ZERO,
                Source::Journal(place) => {
                    let first = machine.first_live_index().expect("an index that is looked up");
                    assert!(place.index >= first, "{} below the first live {first}", place.index);
                    let purged = machine.snapshot_upto().map_or(0, |upto| upto.index.0);
                    assert!(place.index.0 > purged, "{} was purged", place.index);
                    (place.index.0, place.header_offset, u64::from(place.skip) + n)
                }
                Source::Map => {
                    let upto = machine.state().checkpoint.expect("a map needs a checkpoint").upto;
                    let root = roots[&upto].get(&volume);
                    root.and_then(|cells| cells.get((at + n) as usize)).copied().unwrap_or(ZERO)
                }
            };
        }
        at += piece.sectors.0;
    }
    assert_eq!(at, cells.len() as u64, "pieces tile to the end");
}

fn owner() -> Owner {
    Owner::new("db1").expect("owner")
}

fn object(n: u64) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: u128::from(n) }
}

fn acquire(n: u64) -> SetCommand {
    SetCommand::Acquire {
        owner: owner(),
        gateway: MemberId(n % 3),
        token: Token(u128::from(n)),
        ttl_ms: 3000,
        request: RequestId(u128::from(n)),
        judged_expired: None,
        force: true,
        plain: false,
        at_unix_ms: n,
    }
}

fn create(n: u64, sectors: u64) -> SetCommand {
    let change = VolumeChange::Create { name: Name::new(format!("v{n}")).expect("name"), size: Sectors(sectors) };
    SetCommand::ChangeVolume { change, request: RequestId(1 << 81 | u128::from(n)) }
}

fn change(request: u64, change: VolumeChange) -> Bytes {
    control(&SetCommand::ChangeVolume { change, request: RequestId(1 << 80 | u128::from(request)) })
}

fn control(command: &SetCommand) -> Bytes {
    encode_control(command).expect("command")
}

#[derive(Clone, Debug)]
struct OpSpec {
    kind: OpKind,
    volume: u32,
    lba: u64,
    sectors: u64,
}

fn entry(epoch: Epoch, seq: WriteSeq, ops: &[OpSpec]) -> Bytes {
    let mut entry = EntryBuilder::new(epoch, seq);
    for op in ops {
        let len = if op.kind == OpKind::Write { op.sectors * SECTOR_BYTES } else { 0 };
        let data = Bytes::from(vec![op.lba as u8; len as usize]);
        assert!(entry.try_push(op.kind, VolumeId(op.volume), Lba(op.lba), Sectors(op.sectors), data));
    }
    entry.finish()
}

#[derive(Clone, Debug)]
enum Step {
    /// Ops, an offset to the right epoch (mostly 0), an offset to the next number (mostly 0).
    Write(Vec<OpSpec>, i64, i64),
    Begin {
        stale: bool,
    },
    Segment,
    /// `back`: 0 the latest begin, 1 the one before.
    End {
        stale: bool,
        back: usize,
    },
    Term,
    Grant,
    Release,
    Create(u64),
    Grow(u32, u64),
    Shrink(u32, u64),
    Delete(u32),
}

fn op() -> impl Strategy<Value = OpSpec> {
    let kind = prop_oneof![4 => Just(OpKind::Write), 1 => Just(OpKind::Trim), 1 => Just(OpKind::Zero)];
    // Mostly inside; volume 4 does not exist at first, and a range may end outside.
    let volume = prop_oneof![40 => 1_u32..=2, 1 => 3_u32..=4];
    let place = prop_oneof![40 => 0..SECTORS - 6, 1 => SECTORS - 6..SECTORS + 4];
    (kind, volume, place, 1_u64..=6).prop_map(|(kind, volume, lba, sectors)| {
        let sectors = if kind == OpKind::Write { sectors.min(4) } else { sectors };
        OpSpec { kind, volume, lba, sectors }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let off = || prop_oneof![12 => Just(0_i64), 1 => Just(-1), 1 => Just(1)];
    prop_oneof![
        20 => (prop::collection::vec(op(), 0..4), off(), off()).prop_map(|(ops, epoch, seq)| Step::Write(ops, epoch, seq)),
        3 => prop::bool::weighted(0.1).prop_map(|stale| Step::Begin { stale }),
        2 => Just(Step::Segment),
        5 => (prop::bool::weighted(0.1), prop_oneof![6 => Just(0_usize), 1 => Just(1)])
            .prop_map(|(stale, back)| Step::End { stale, back }),
        2 => Just(Step::Term),
        1 => Just(Step::Grant),
        1 => Just(Step::Release),
        1 => (1..SECTORS).prop_map(Step::Create),
        2 => (1_u32..4, 0..4_u64).prop_map(|(volume, more)| Step::Grow(volume, more)),
        2 => (1_u32..4, 1..SECTORS).prop_map(|(volume, size)| Step::Shrink(volume, size)),
        1 => (1_u32..6).prop_map(Step::Delete),
    ]
}

/// One log, and the result of direct apply at every index.
struct History {
    log: Vec<(LogId, Bytes)>,
    answers: Vec<Applied>,
    machines: Vec<SetMachine>,
    contents: Vec<Content>,
    roots: Roots,
    /// Position of each applied end, with its snapshot.
    ends: Vec<(usize, LogId, Vec<u8>)>,
}

impl History {
    fn new(steps: &[Step]) -> Self {
        let mut machine = SetMachine::new(SetState::new(Epoch(1000)));
        let mut history = Self {
            log: Vec::new(),
            answers: Vec::new(),
            machines: Vec::new(),
            contents: Vec::new(),
            roots: Roots::new(),
            ends: Vec::new(),
        };
        let mut model = Content::new();
        let (mut term, mut begins) = (1, Vec::new());
        let setup = [create(1, SECTORS), create(2, SECTORS), acquire(1)];
        for command in setup {
            history.push(&mut machine, &mut model, term, control(&command), &[]);
        }
        for step in steps {
            let next = history.log.len() as u64 + 1;
            let stale = |stale: bool| Term(if stale { term - 1 } else { term });
            let (payload, ops) = match step {
                Step::Write(ops, epoch, seq) => {
                    let epoch = Epoch(machine.state().epoch.0.saturating_add_signed(*epoch));
                    let seq = WriteSeq((machine.state().last_seq.0 + 1).saturating_add_signed(*seq));
                    (entry(epoch, seq, ops), &ops[..])
                }
                Step::Term => {
                    term += 1;
                    continue;
                }
                Step::Begin { stale: old } => {
                    begins.push(LogId::new(term, next));
                    (control(&SetCommand::CheckpointBegin { term: stale(*old) }), &[][..])
                }
                Step::Segment => {
                    let object = object(next);
                    let command =
                        SetCommand::SegmentCommitted { term: Term(term), object, stored_bytes: 10, raw_bytes: 20 };
                    (control(&command), &[][..])
                }
                Step::End { stale: old, back } => {
                    let Some(begin) = begins.iter().rev().nth(*back).copied() else { continue };
                    let root = RootRef { object: object(begin.index.0), bytes: 1 };
                    (control(&SetCommand::CheckpointEnd { term: stale(*old), begin, root }), &[][..])
                }
                Step::Grant => (control(&acquire(next)), &[][..]),
                Step::Release => (control(&SetCommand::Release { epoch: machine.state().epoch, token: None }), &[][..]),
                Step::Create(sectors) => (control(&create(next, *sectors)), &[][..]),
                Step::Grow(volume, more) => {
                    let volume = VolumeId(*volume);
                    let size = machine.state().volumes.get(&volume).map_or(1, |found| found.size.0) + more;
                    (change(next, VolumeChange::Grow { volume, size: Sectors(size) }), &[][..])
                }
                Step::Shrink(volume, to) => {
                    let (volume, to) = (VolumeId(*volume), Sectors(*to));
                    let from = machine.state().volumes.get(&volume).map_or(to, |found| found.size);
                    (change(next, VolumeChange::Shrink { volume, from, to, epoch: machine.state().epoch }), &[][..])
                }
                Step::Delete(volume) => {
                    let volume = VolumeId(*volume);
                    let Some(name) = machine.state().volumes.get(&volume).map(|found| found.name.clone()) else {
                        continue;
                    };
                    (change(next, VolumeChange::Delete { volume, name, epoch: machine.state().epoch }), &[][..])
                }
            };
            history.push(&mut machine, &mut model, term, payload, ops);
        }
        history
    }

    /// Applies one entry to the machine and, by simple rules, to the model.
    fn push(&mut self, machine: &mut SetMachine, model: &mut Content, term: u64, payload: Bytes, ops: &[OpSpec]) {
        let id = LogId::new(term, self.log.len() as u64 + 1);
        let (epoch, seq) = (machine.state().epoch, machine.state().last_seq);
        let held = machine.state().lease.is_some();
        let before = model.clone();
        let is_write = matches!(entry::decode(&payload), Ok(EntryPayload::Writes(_)));
        let applied = machine.apply(id, &payload).expect("an entry of ours");
        if let Ok(EntryPayload::Writes(view)) = entry::decode(&payload) {
            let inside = |op: &OpSpec| {
                let cells = model.get(&VolumeId(op.volume)).map_or(0, Vec::len) as u64;
                op.lba + op.sectors <= cells
            };
            if held && view.epoch == epoch && view.seq.0 == seq.0 + 1 {
                let outside: Vec<u32> = (0..).zip(ops).filter(|(_, op)| !inside(op)).map(|(n, _)| n).collect();
                let whole = outside.is_empty();
                let expected = if whole { SetAnswer::Written } else { SetAnswer::WrittenExcept { outside } };
                assert_eq!(applied.answer, expected, "MACHINE-M2");
                let inside: Vec<bool> = ops.iter().map(inside).collect();
                for (op, _) in view.ops().expect("opens").into_iter().zip(inside).filter(|(_, inside)| *inside) {
                    let cells = model.get_mut(&op.volume).expect("inside");
                    for n in 0..op.sectors.0 {
                        cells[(op.lba.0 + n) as usize] =
                            if op.kind == OpKind::Write { (id.index.0, op.header_offset, n) } else { ZERO };
                    }
                }
            } else if applied.answer == SetAnswer::Written {
                assert!(view.epoch == epoch && view.seq.0 <= seq.0 && view.seq.0 > 0, "R2: a duplicate, or refused");
            }
        }
        model.retain(|id, _| machine.state().volumes.contains_key(id));
        for (id, cells) in empty(machine) {
            let known = model.entry(id).or_default();
            known.resize(cells.len(), ZERO);
        }
        match applied.event {
            Some(Event::CheckpointBegun { at }) => self.upload(machine, at, &before),
            Some(Event::Checkpointed { upto }) => {
                let (at, bytes) = machine.snapshot().expect("a checkpoint is a snapshot");
                assert_eq!((at, machine.snapshot_upto()), (upto, Some(upto)));
                assert!(machine.sealed().is_none());
                self.ends.push((self.log.len(), at, bytes));
            }
            _ => {}
        }
        assert!(!is_write || applied.event.is_none());
        assert_eq!(content(machine, &self.roots), *model, "MACHINE-M3 at {id}");
        self.log.push((id, payload));
        self.answers.push(applied);
        self.machines.push(machine.clone());
        self.contents.push(model.clone());
    }

    /// The uploader's part: the old root under the sealed memtable must equal the content at the begin (R4), and
    /// becomes the new root.
    fn upload(&mut self, machine: &SetMachine, at: LogId, model: &Content) {
        let (upto, sealed) = machine.sealed().expect("sealed by the begin");
        assert_eq!(upto, at);
        let below = SetMachine { active: (*sealed).clone(), sealed: None, ..machine.clone() };
        let root = content(&below, &self.roots);
        assert_eq!(root, *model, "R4: expected the root at {at} to equal the content at that time");
        self.roots.insert(at, root);
        assert_eq!(machine.data_bytes(), 0);
    }

    /// MACHINE-M4 for one snapshot: replay to the end of the log, compared at every index.
    fn replay(&self, (end, upto, bytes): &(usize, LogId, Vec<u8>)) {
        let mut machine = SetMachine::from_snapshot(*upto, bytes).expect("a snapshot of ours");
        assert_eq!(machine.snapshot(), Some((*upto, bytes.clone())));
        for (n, (id, payload)) in self.log.iter().enumerate().filter(|(_, (id, _))| id.index > upto.index) {
            let applied = machine.apply(*id, payload).expect("an entry of ours");
            // A copy of a partly applied entry gets another answer after a restart; no caller waits for it.
            if !matches!(self.answers[n].answer, SetAnswer::Refused(SetRefusal::SeqGap { found, expected }) if found < expected)
            {
                assert_eq!(applied.answer, self.answers[n].answer, "MACHINE-M4: answer at {id}");
            }
            assert_eq!(content(&machine, &self.roots), self.contents[n], "MACHINE-M4: content at {id}");
            if n < *end {
                continue;
            }
            let straight = &self.machines[n];
            assert_eq!(applied.event, self.answers[n].event, "MACHINE-M4: event at {id}");
            assert_eq!(machine.state(), straight.state(), "MACHINE-M4: state at {id}");
            assert_eq!(machine.sealed(), straight.sealed(), "MACHINE-M4: sealed at {id}");
            assert_eq!(machine.active, straight.active, "MACHINE-M4: active at {id}");
            assert_eq!(machine.snapshot(), straight.snapshot(), "MACHINE-M4: snapshot at {id}");
            assert_eq!(machine.extents(), straight.extents(), "MACHINE-M4: extents at {id}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// MACHINE-M1 to MACHINE-M4. A crash at any index restarts from the newest snapshot before it; every snapshot is
    /// tried, up to the log's end.
    #[test]
    fn replay_from_any_snapshot_is_the_straight_run(steps in prop::collection::vec(step(), 0..70)) {
        let history = History::new(&steps);
        for end in &history.ends {
            history.replay(end);
        }
    }

    #[test]
    fn any_snapshot_bytes_are_an_error_or_a_state(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        change in 1_u8..,
    ) {
        let upto = LogId::new(1, 4);
        prop_assert!(SetMachine::from_snapshot(upto, &bytes).is_err());
        let history = History::new(&[Step::Begin { stale: false }, Step::End { stale: false, back: 0 }]);
        let mut good = history.ends[0].2.clone();
        prop_assert!(SetMachine::from_snapshot(upto, &good).is_ok());
        prop_assert!(SetMachine::from_snapshot(LogId::new(2, 4), &good).is_err());
        let at = at.index(good.len());
        prop_assert!(SetMachine::from_snapshot(upto, &good[..at]).is_err());
        good[at] ^= change;
        prop_assert!(SetMachine::from_snapshot(upto, &good).is_err(), "byte {at}");
    }
}

/// A set with two volumes of 48 sectors, held under epoch 1003 by an entry at index 3.
fn held() -> SetMachine {
    let mut machine = SetMachine::new(SetState::new(Epoch(1000)));
    for (n, command) in [create(1, SECTORS), create(2, SECTORS), acquire(1)].iter().enumerate() {
        machine.apply(LogId::new(1, n as u64 + 1), &control(command)).expect("command");
    }
    machine
}

fn write(volume: u32, lba: u64, sectors: u64) -> OpSpec {
    OpSpec { kind: OpKind::Write, volume, lba, sectors }
}

#[test]
fn only_applied_writes_are_ever_seen() {
    let mut machine = held();
    let epoch = machine.state().epoch;
    let apply = |machine: &mut SetMachine, index, epoch, seq, ops: &[OpSpec]| {
        machine.apply(LogId::new(1, index), &entry(epoch, WriteSeq(seq), ops)).expect("entry").answer
    };
    assert_eq!(apply(&mut machine, 4, epoch, 1, &[write(1, 0, 8)]), SetAnswer::Written);
    let before = machine.clone();
    let unchanged = |machine: &SetMachine| {
        for volume in [VolumeId(1), VolumeId(2)] {
            let all = Sectors(SECTORS);
            assert_eq!(machine.lookup(volume, Lba(0), all), before.lookup(volume, Lba(0), all));
        }
        assert_eq!(machine.extents(), before.extents());
    };
    // R2: a fenced writer, a writer of the future, a gap, a duplicate with other content.
    let old = Epoch(epoch.0 - 1);
    assert!(matches!(
        apply(&mut machine, 5, old, 2, &[write(1, 0, 8)]),
        SetAnswer::Refused(SetRefusal::WrongEpoch { .. })
    ));
    unchanged(&machine);
    let future = Epoch(epoch.0 + 1);
    assert!(matches!(apply(&mut machine, 6, future, 2, &[write(1, 0, 8)]), SetAnswer::Refused(_)));
    unchanged(&machine);
    assert!(matches!(
        apply(&mut machine, 7, epoch, 3, &[write(1, 0, 8)]),
        SetAnswer::Refused(SetRefusal::SeqGap { .. })
    ));
    unchanged(&machine);
    assert_eq!(apply(&mut machine, 8, epoch, 1, &[write(2, 0, 8)]), SetAnswer::Written);
    unchanged(&machine);
    assert_eq!(machine.state().last_seq, WriteSeq(1), "a refused entry is not counted");
    // Its number is free for the valid entry.
    assert_eq!(apply(&mut machine, 11, epoch, 2, &[write(2, SECTORS - 2, 2)]), SetAnswer::Written);
    assert_eq!(machine.extents(), before.extents() + 1);
}

#[test]
fn what_was_on_its_way_while_its_volume_shrank_or_went_has_no_effect_and_says_so() {
    let mut machine = held();
    let epoch = machine.state().epoch;
    let apply = |machine: &mut SetMachine, index, seq, ops: &[OpSpec]| {
        machine.apply(LogId::new(1, index), &entry(epoch, WriteSeq(seq), ops)).expect("entry").answer
    };
    let read = |machine: &SetMachine, volume, lba| machine.lookup(VolumeId(volume), Lba(lba), Sectors(1))[0].source;
    assert_eq!(apply(&mut machine, 4, 1, &[write(1, 10, 1), write(2, 10, 1)]), SetAnswer::Written);
    let (volume, from, to) = (VolumeId(1), Sectors(SECTORS), Sectors(8));
    machine.apply(LogId::new(1, 5), &change(1, VolumeChange::Shrink { volume, from, to, epoch })).expect("shrink");
    let name = Name::new("v2").expect("name");
    let deleted = machine
        .apply(LogId::new(1, 6), &change(2, VolumeChange::Delete { volume: VolumeId(2), name, epoch }))
        .expect("delete");
    assert_eq!(deleted.event, Some(Event::VolumesChanged));
    assert_eq!(
        machine.data_bytes(),
        entry_bytes(epoch) + 2 * SECTOR_BYTES,
        "expected a discard to count as data, so that a checkpoint follows"
    );
    // MACHINE-M2: ops inside are written, others are named; an op across the end has no effect at all (R5).
    let ops = [write(1, 0, 1), write(1, 10, 1), write(1, 7, 2), write(2, 10, 1), write(1, 7, 1)];
    assert_eq!(apply(&mut machine, 7, 2, &ops), SetAnswer::WrittenExcept { outside: vec![1, 2, 3] });
    assert_eq!(machine.state().last_seq, WriteSeq(2), "those behind it are in order");
    assert_eq!(apply(&mut machine, 8, 3, &[write(1, 1, 1)]), SetAnswer::Written);
    // A copy must not be told that everything was written, not even after the volume has its old size again.
    machine.apply(LogId::new(1, 9), &change(3, VolumeChange::Grow { volume, size: Sectors(SECTORS) })).expect("grow");
    assert!(matches!(apply(&mut machine, 10, 2, &ops), SetAnswer::Refused(SetRefusal::SeqGap { .. })));
    // MACHINE-M7: neither data from before the shrink nor the refused op.
    assert_eq!(read(&machine, 1, 10), Source::Zero);
    assert_eq!(read(&machine, 1, 8), Source::Zero);
    assert!(matches!(read(&machine, 1, 7), Source::Journal(_)));
    // VOLUME-V1: a volume of the same name is another one, and empty.
    let made = machine
        .apply(LogId::new(1, 11), &change(4, VolumeChange::Create { name: Name::new("v2").expect("name"), size: from }))
        .expect("create");
    assert_eq!(made.answer, SetAnswer::VolumeChanged { volume: VolumeId(3), discarded: None });
    assert_eq!(read(&machine, 3, 10), Source::Zero);
    assert_eq!(apply(&mut machine, 12, 4, &[write(2, 10, 1)]), SetAnswer::WrittenExcept { outside: vec![0] });
    assert_eq!(read(&machine, 3, 10), Source::Zero);
}

/// A device may cache discarded data, and the size alone does not show the shrink once the volume has grown again.
#[test]
fn shrinks_are_remembered_with_their_places_also_once_they_are_grown_over() {
    let mut machine = held();
    let epoch = machine.state().epoch;
    assert_eq!(machine.cuts().count(), 0);
    let volume = VolumeId(1);
    let at = |index: u64| Epoch(machine.state().base_epoch.0 + index);
    let (first, second) = (Cut { at: at(4), volume, size: Sectors(8) }, Cut { at: at(6), volume, size: Sectors(16) });
    let all = Sectors(SECTORS);
    let shrink = |from, to| VolumeChange::Shrink { volume, from, to, epoch };
    let mut requests = 0;
    let mut apply = |machine: &mut SetMachine, index, what: VolumeChange| {
        requests += 1;
        machine.apply(LogId::new(1, index), &change(requests, what)).expect("change").answer
    };
    apply(&mut machine, 4, shrink(all, first.size));
    apply(&mut machine, 5, VolumeChange::Grow { volume, size: all });
    apply(&mut machine, 6, shrink(all, second.size));
    apply(&mut machine, 7, VolumeChange::Grow { volume, size: all });
    assert!(matches!(apply(&mut machine, 8, shrink(second.size, first.size)), SetAnswer::Refused(_)), "not as seen");
    assert!(first.at > epoch, "after the grant");
    assert_eq!(machine.cuts().copied().collect::<Vec<_>>(), [first, second]);
    assert_eq!(machine.place(), Epoch(1008), "a refused entry counts as applied");
    let mut index = 9;
    for _ in 0..CUTS_REMEMBERED {
        apply(&mut machine, index, shrink(all, Sectors(1)));
        apply(&mut machine, index + 1, VolumeChange::Grow { volume, size: all });
        index += 2;
    }
    assert_eq!(machine.cuts().count(), CUTS_REMEMBERED, "bounded");
    assert!(machine.cuts().all(|cut| cut.size == Sectors(1)), "the last ones");
}

/// Bytes counted for an entry of two one-sector writes.
fn entry_bytes(epoch: Epoch) -> u64 {
    match entry::decode(&entry(epoch, WriteSeq(1), &[write(1, 10, 1), write(2, 10, 1)])) {
        Ok(EntryPayload::Writes(view)) => view.bytes() as u64,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bad_entry_changes_nothing() {
    let mut machine = held();
    let mut payload = entry(machine.state().epoch, WriteSeq(1), &[write(1, 0, 8)]).to_vec();
    payload[100] ^= 1;
    let before = machine.clone();
    assert!(matches!(machine.apply(LogId::new(1, 4), &Bytes::from(payload)), Err(EntryError::Checksum { .. })));
    assert_eq!(machine.applied(), before.applied());
    assert_eq!(machine.state(), before.state());
    assert_eq!(machine.extents(), 0);
}

#[test]
#[should_panic(expected = "R4")]
fn entries_are_applied_in_order() {
    let mut machine = held();
    let _ = machine.apply(LogId::new(1, 3), &control(&acquire(2)));
}

#[test]
fn what_nobody_wrote_is_zero_before_a_checkpoint_and_the_map_s_after() {
    let mut machine = held();
    let epoch = machine.state().epoch;
    let all = |machine: &SetMachine| machine.lookup(VolumeId(1), Lba(0), Sectors(SECTORS));
    let piece = |lba, sectors, source| Piece { lba: Lba(lba), sectors: Sectors(sectors), source };
    assert_eq!(all(&machine), vec![piece(0, SECTORS, Source::Zero)]);
    let root = RootRef { object: object(1), bytes: 1 };
    let begin = LogId::new(1, 5);
    let at = |index, op_sectors| {
        Source::Journal(JournalRef { index: LogIndex(index), header_offset: 96, op_sectors, skip: 0 })
    };
    machine.apply(LogId::new(1, 4), &entry(epoch, WriteSeq(1), &[write(1, 8, 8)])).expect("write");
    machine.apply(begin, &control(&SetCommand::CheckpointBegin { term: Term(1) })).expect("begin");
    let zeroes = OpSpec { kind: OpKind::Trim, volume: 1, lba: 12, sectors: 20 };
    machine.apply(LogId::new(1, 6), &entry(epoch, WriteSeq(2), &[zeroes])).expect("trim");
    // Active over sealed; adjacent zeroes of both are one piece.
    assert_eq!(all(&machine), vec![piece(0, 8, Source::Zero), piece(8, 4, at(4, 8)), piece(12, 36, Source::Zero)]);
    assert_eq!(machine.lookup_prefix(VolumeId(1), Lba(0), Sectors(SECTORS), 2), all(&machine)[..2]);
    assert_eq!(machine.first_live_index(), Some(LogIndex(4)));
    let end = SetCommand::CheckpointEnd { term: Term(1), begin, root };
    let applied = machine.apply(LogId::new(1, 7), &control(&end)).expect("end");
    assert_eq!(applied.event, Some(Event::Checkpointed { upto: begin }));
    assert_eq!(applied.retired.map(|memtable| memtable.extents()), Some(1));
    assert_eq!(all(&machine), vec![piece(0, 12, Source::Map), piece(12, 20, Source::Zero), piece(32, 16, Source::Map)]);
    assert_eq!(machine.first_live_index(), None);
    assert_eq!(machine.lookup(VolumeId(1), Lba(0), Sectors(0)), vec![]);
}

/// R4: a root at X has the content at X, also where it is overwritten before the upload.
#[test]
fn what_is_sealed_stays_as_it_was_at_the_begin() {
    let mut machine = held();
    let epoch = machine.state().epoch;
    machine.apply(LogId::new(1, 4), &entry(epoch, WriteSeq(1), &[write(1, 0, 8), write(1, 16, 8)])).expect("write");
    machine.apply(LogId::new(1, 5), &control(&SetCommand::CheckpointBegin { term: Term(1) })).expect("begin");
    let (_, at_begin) = machine.sealed().expect("sealed");
    let at_begin = Memtable::clone(&at_begin);
    machine.apply(LogId::new(1, 6), &entry(epoch, WriteSeq(2), &[write(1, 0, 8), write(1, 20, 2)])).expect("write");
    let (_, later) = machine.sealed().expect("still sealed");
    assert_eq!(*later, at_begin);
}

#[test]
fn a_begin_over_an_unfinished_one_keeps_what_that_sealed() {
    let mut machine = held();
    let epoch = machine.state().epoch;
    machine.apply(LogId::new(1, 4), &entry(epoch, WriteSeq(1), &[write(1, 0, 8), write(1, 16, 8)])).expect("write");
    machine.apply(LogId::new(1, 5), &control(&SetCommand::CheckpointBegin { term: Term(1) })).expect("begin");
    machine.apply(LogId::new(1, 6), &entry(epoch, WriteSeq(2), &[write(1, 4, 8)])).expect("write");
    machine.apply(LogId::new(2, 7), &control(&SetCommand::CheckpointBegin { term: Term(2) })).expect("begin");
    let (upto, sealed) = machine.sealed().expect("sealed");
    assert_eq!((upto, sealed.extents(), sealed.data_bytes()), (LogId::new(2, 7), 3, 20 * SECTOR_BYTES));
    // The old leader's end comes too late, in whatever term it is appended.
    let root = RootRef { object: object(1), bytes: 1 };
    let late = SetCommand::CheckpointEnd { term: Term(2), begin: LogId::new(1, 5), root };
    let applied = machine.apply(LogId::new(2, 8), &control(&late)).expect("end");
    assert!(matches!(applied.answer, SetAnswer::Refused(SetRefusal::NotLatestBegin { .. })));
    assert_eq!((machine.sealed().map(|(at, _)| at), machine.snapshot()), (Some(upto), None));
}

#[test]
fn a_grant_is_an_event_once() {
    let mut machine = held();
    let again = machine.apply(LogId::new(1, 4), &control(&acquire(1))).expect("acquire");
    assert!(matches!(again.answer, SetAnswer::Granted(_)));
    assert_eq!(again.event, None);
    let other = machine.apply(LogId::new(1, 5), &control(&acquire(2))).expect("acquire");
    assert_eq!(other.event, Some(Event::GrantApplied { epoch: Epoch(1005), gateway: MemberId(2) }));
}
