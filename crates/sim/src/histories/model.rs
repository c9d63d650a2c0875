//! The volumes as flat lists of sectors, advanced by each committed entry; and the allowed answers.

use bytes::{BufMut, Bytes, BytesMut};
use holdfast_control::set::{RetireOf, SetAnswer, SetCommand, SnapshotId, VolumeChange};
use holdfast_front::device::ReadPart;
use holdfast_types::{Epoch, LogId, Name, RequestId, SECTOR_BYTES, VolumeId};
use holdfast_volume::entry::{self, EntryPayload, OpKind, WritesView};
use holdfast_volume::map::PAGE_SECTORS;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Parts of a volume that are written, trimmed and compared; each but the first has the boundary of a map page in its
/// middle.
pub const WINDOWS: [u64; 3] = [0, PAGE_SECTORS - WINDOW / 2, 2 * PAGE_SECTORS - WINDOW / 2];
/// Sectors of one window.
pub const WINDOW: u64 = 384;
/// The largest volume.
pub const SIZE_MAX: u64 = WINDOWS[2] + WINDOW;

/// Content of a sector: the number of its write, 0 for zeroes.
type Tag = u32;

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: Name,
    pub size: u64,
    cells: Arc<Vec<Tag>>,
}

pub type Volumes = BTreeMap<VolumeId, Volume>;

/// A pending or finished snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub request: RequestId,
    /// The begin that it shows, once there is one.
    pub upto: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub struct Model {
    pub now: Volumes,
    /// The volumes at each begin of a checkpoint.
    pub at: BTreeMap<u64, Volumes>,
    pub waiting: BTreeMap<Name, Asked>,
    pub snapshots: BTreeMap<Name, Asked>,
    /// Content of snapshots of earlier lives, by the request that made each: this life's log does not have them.
    kept: BTreeMap<RequestId, Volumes>,
    /// Writes that took effect.
    pub applied: BTreeSet<Tag>,
    lease: Option<Epoch>,
    seq: u64,
    /// Requests that were carried out (R12).
    done: BTreeSet<RequestId>,
    pub counts: Counts,
}

/// Counts of events: a run without any must not pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub writes: u64,
    pub refused: u64,
    pub outside: u64,
    pub checkpoints: u64,
    pub snapshots: u64,
    pub rollbacks: u64,
    pub discards: u64,
    pub retired: u64,
    /// Those of failed checkpoints, in the term of the failure.
    pub given_up: u64,
    pub deleted: u64,
}

/// Counts of a history besides those of its model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub steps: u64,
    pub reads: u64,
    pub snapshot_reads: u64,
    /// Pairs of snapshots whose difference turned one into the other (HISTORY-H4).
    pub compared: u64,
    pub unread: u64,
    pub takeovers: u64,
    pub ghosts: u64,
    pub rotten: u64,
    pub clones: u64,
    pub recoveries: u64,
    /// Snapshots that came back with a recovery.
    pub came_back: u64,
    /// Data keys created and removed.
    pub keys_made: u64,
    pub keys_dropped: u64,
    /// Checked roots that were in leaves.
    pub roots_in_leaves: u64,
}

/// The parts of `range` that lie in windows, as places in a volume's list.
fn cells(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    (0u64..).zip(WINDOWS).filter_map(move |(number, start)| {
        let (from, to) = (range.start.max(start), range.end.min(start + WINDOW));
        let place = |lba: u64| (number * WINDOW + lba - start) as usize;
        (from < to).then(|| (from, place(from)..place(to - 1) + 1))
    })
}

/// Content of a write: each sector has the write's number and its own address.
pub fn content(tag: Tag, lba: u64, sectors: u64) -> Bytes {
    let mut out = BytesMut::with_capacity((sectors * SECTOR_BYTES) as usize);
    for lba in lba..lba + sectors {
        let word = word(tag, lba);
        (0..SECTOR_BYTES / 8).for_each(|_| out.put_u64_le(word));
    }
    out.freeze()
}

fn word(tag: Tag, lba: u64) -> u64 {
    if tag == 0 { 0 } else { u64::from(tag) << 32 | lba }
}

impl Volume {
    /// All zeroes.
    pub fn new(name: Name, size: u64) -> Self {
        Self { name, size, cells: Arc::new(vec![0; WINDOWS.len() * WINDOW as usize]) }
    }

    pub fn clear(&mut self, range: Range<u64>) {
        for (_, places) in cells(range) {
            Arc::make_mut(&mut self.cells)[places].fill(0);
        }
    }

    /// Copies a range of another volume.
    pub fn copy(&mut self, range: Range<u64>, from: &Self) {
        for (_, places) in cells(range) {
            Arc::make_mut(&mut self.cells)[places.clone()].copy_from_slice(&from.cells[places]);
        }
    }

    /// Renames an image, and cuts or extends it with zeroes.
    pub fn become_like(&mut self, name: &Name, size: u64) {
        self.clear(self.size.min(size)..SIZE_MAX);
        (self.name, self.size) = (name.clone(), size);
    }

    /// Its difference to another one, for display.
    pub fn unlike(&self, other: &Self) -> String {
        let first = self.cells.iter().zip(&*other.cells).enumerate().find(|(_, (found, expected))| found != expected);
        match first {
            Some((at, (found, expected))) => {
                let sector = WINDOWS[at / WINDOW as usize] + at as u64 % WINDOW;
                format!("write {found} in sector {sector}, expected write {expected}")
            }
            None => format!("{} of {} sectors, expected {} of {}", self.name, self.size, other.name, other.size),
        }
    }

    fn tag(&self, lba: u64) -> Tag {
        cells(lba..lba + 1).next().map_or(0, |(_, places)| self.cells[places.start])
    }

    /// Compares the result of a read from `lba` on. The error names the first sector that differs.
    pub fn compare(&self, lba: u64, sectors: u64, parts: &[ReadPart]) -> Result<(), String> {
        let mut at = lba;
        for part in parts {
            match part {
                ReadPart::Zeroes(bytes) => {
                    for _ in 0..u64::from(*bytes) / SECTOR_BYTES {
                        match self.tag(at) {
                            0 => at += 1,
                            tag => return Err(format!("sector {at}: found zeroes, expected write {tag}")),
                        }
                    }
                }
                ReadPart::Data(data) => {
                    for sector in data.chunks(SECTOR_BYTES as usize) {
                        let tag = self.tag(at);
                        let expected = word(tag, at).to_le_bytes();
                        if let Some(other) = sector.chunks(8).find(|found| **found != expected) {
                            let mut found = [0; 8];
                            found[..other.len()].copy_from_slice(other);
                            let found = u64::from_le_bytes(found);
                            return Err(format!(
                                "sector {at}: found write {} of sector {}, expected write {tag}",
                                found >> 32,
                                found & 0xffff_ffff
                            ));
                        }
                        at += 1;
                    }
                }
            }
        }
        if at == lba + sectors { Ok(()) } else { Err(format!("found {} sectors, expected {sectors}", at - lba)) }
    }
}

impl Model {
    /// For a set that begins with these volumes.
    pub fn beginning(volumes: Volumes) -> Self {
        Self { now: volumes, ..Self::default() }
    }

    /// The set begins with these snapshots of an earlier life.
    pub fn inherit(&mut self, snapshots: Vec<(Name, RequestId, Volumes)>) {
        for (name, request, then) in snapshots {
            self.snapshots.insert(name, Asked { request, upto: Some(0) });
            self.kept.insert(request, then);
        }
    }

    /// Content of the snapshot that `request` made, as of the begin at `upto` or of an earlier life.
    pub fn shown(&self, request: RequestId, upto: u64) -> Volumes {
        self.kept.get(&request).or_else(|| self.at.get(&upto)).cloned().unwrap_or_default()
    }

    /// Notes a committed entry; `answer` is the result of applying it.
    ///
    /// # Panics
    /// If the volumes do not allow that answer.
    pub fn commit(&mut self, id: LogId, payload: &Bytes, answer: Option<SetAnswer>) {
        let Some(answer) = answer else { panic!("{id}: the answer does not decode") };
        match entry::decode(payload) {
            Ok(EntryPayload::Writes(writes)) => self.writes(id, &writes, &answer),
            Ok(EntryPayload::Control(command)) => self.command(id, command, answer),
            Err(e) => panic!("{id}: the entry does not decode: {e}"),
        }
    }

    fn writes(&mut self, id: LogId, writes: &WritesView, answer: &SetAnswer) {
        if self.lease != Some(writes.epoch) || writes.seq.0 > self.seq + 1 {
            assert!(matches!(answer, SetAnswer::Refused(_)), "R2: {id} of {}: {answer:?}", writes.epoch);
            self.counts.refused += 1;
            return;
        }
        if writes.seq.0 <= self.seq {
            return;
        }
        self.seq = writes.seq.0;
        let mut outside = Vec::new();
        let ops = writes.ops().unwrap_or_else(|e| panic!("{id}: the entry's data does not open: {e}"));
        for (number, op) in (0u32..).zip(ops) {
            let range = op.lba.0..op.lba.0 + op.sectors.0;
            let Some(volume) = self.now.get_mut(&op.volume).filter(|volume| range.end <= volume.size) else {
                outside.push(number);
                continue;
            };
            if op.kind != OpKind::Write {
                volume.clear(range);
                continue;
            }
            self.counts.writes += 1;
            for (lba, places) in cells(range.clone()) {
                let from = ((lba - range.start) * SECTOR_BYTES) as usize;
                let sectors = op.data[from..].chunks(SECTOR_BYTES as usize);
                let list = Arc::make_mut(&mut volume.cells);
                for (cell, sector) in list[places].iter_mut().zip(sectors) {
                    *cell = u32::from_le_bytes([sector[4], sector[5], sector[6], sector[7]]);
                    self.applied.insert(*cell);
                }
            }
        }
        self.counts.outside += outside.len() as u64;
        let expected = if outside.is_empty() { SetAnswer::Written } else { SetAnswer::WrittenExcept { outside } };
        assert_eq!(*answer, expected, "MACHINE-M2: {id}");
    }

    fn once(&mut self, id: LogId, request: RequestId) {
        assert!(self.done.insert(request), "R12: {id}: a request was carried out twice");
    }

    fn command(&mut self, id: LogId, command: SetCommand, answer: SetAnswer) {
        match (command, answer) {
            (SetCommand::Acquire { .. } | SetCommand::Continue { .. }, SetAnswer::Granted(lease))
                if self.lease != Some(lease.epoch) =>
            {
                (self.lease, self.seq) = (Some(lease.epoch), 0);
            }
            (SetCommand::Release { .. }, SetAnswer::Released) => self.lease = None,
            (SetCommand::ChangeVolume { change, request }, SetAnswer::VolumeChanged { volume, .. }) => {
                self.once(id, request);
                self.change(id, volume, change);
            }
            (SetCommand::SnapshotCreate { name, request, .. }, SetAnswer::SnapshotAsked) => {
                self.snapshot_asked(id, name, request);
            }
            (SetCommand::SnapshotDelete { name, made_by }, SetAnswer::SnapshotDeleted { existed }) => {
                self.snapshot_deleted(id, &name, made_by, existed);
            }
            (SetCommand::CheckpointBegin { .. }, SetAnswer::CheckpointBegun { at }) => {
                assert_eq!(at, id);
                self.at.insert(id.index.0, self.now.clone());
                self.waiting.values_mut().for_each(|asked| asked.upto = Some(id.index.0));
            }
            (SetCommand::CheckpointEnd { begin, .. }, SetAnswer::CheckpointEnded) => {
                self.checkpoint_ended(begin.index.0)
            }
            (SetCommand::Rollback { to, safety, request }, SetAnswer::RolledBack { now: true }) => {
                self.rolled_back(id, &to, &safety, request);
            }
            (SetCommand::Retire { of, objects, .. }, SetAnswer::Retired) => {
                self.counts.retired += objects.len() as u64;
                if let RetireOf::GivenUp { .. } = of {
                    self.counts.given_up += objects.len() as u64;
                }
            }
            (SetCommand::Deleted { objects, .. }, SetAnswer::DeletionNoted) => {
                self.counts.deleted += objects.len() as u64;
            }
            // Refused, or a repeat: nothing may have changed.
            _ => {}
        }
    }

    fn snapshot_asked(&mut self, id: LogId, name: Name, request: RequestId) {
        match self.waiting.get(&name).or_else(|| self.snapshots.get(&name)) {
            Some(known) => assert_eq!(known.request, request, "SET-S11: {id}: {name} is another's"),
            None => {
                self.once(id, request);
                self.waiting.insert(name, Asked { request, upto: None });
            }
        }
    }

    fn snapshot_deleted(&mut self, id: LogId, name: &Name, made_by: RequestId, existed: bool) {
        let mut found = false;
        for list in [&mut self.waiting, &mut self.snapshots] {
            if list.get(name).is_some_and(|asked| asked.request == made_by) {
                list.remove(name);
                found = true;
            }
        }
        assert_eq!(existed, found, "SET-S11: {id}: snapshot {name}");
    }

    fn checkpoint_ended(&mut self, begin: u64) {
        self.counts.checkpoints += 1;
        for (name, asked) in std::mem::take(&mut self.waiting) {
            if asked.upto == Some(begin) {
                self.counts.snapshots += 1;
                self.snapshots.insert(name, asked);
            } else {
                self.waiting.insert(name, asked);
            }
        }
    }

    fn rolled_back(&mut self, id: LogId, to: &SnapshotId, safety: &SnapshotId, request: RequestId) {
        self.once(id, request);
        assert_eq!(self.lease, None, "SET-S12: {id}: rolled back under a lease");
        let of = |name: &Name| {
            let asked = self.snapshots.get(name)?;
            asked.upto.map(|upto| self.shown(asked.request, upto))
        };
        let safe = of(&safety.name);
        assert_eq!(safe.as_ref(), Some(&self.now), "SET-S12: {id}: what no snapshot shows is rolled back over");
        let Some(then) = of(&to.name) else { panic!("SET-S12: {id}: no snapshot {}", to.name) };
        self.now = then;
        self.counts.rollbacks += 1;
    }

    fn change(&mut self, id: LogId, volume: VolumeId, change: VolumeChange) {
        match change {
            VolumeChange::Create { name, size } => {
                let before = self.now.insert(volume, Volume::new(name, size.0));
                let mut ever = self.at.values().chain(self.kept.values());
                assert!(before.is_none() && ever.all(|then| !then.contains_key(&volume)), "VOLUME-V1: {id}: {volume}");
            }
            VolumeChange::Grow { size, .. } => self.of(id, volume).size = size.0,
            VolumeChange::Shrink { to, .. } => {
                self.counts.discards += 1;
                let found = self.of(id, volume);
                found.clear(to.0..SIZE_MAX);
                found.size = to.0;
            }
            VolumeChange::Rename { to, .. } => self.of(id, volume).name = to,
            VolumeChange::Delete { .. } => {
                self.counts.discards += 1;
                assert!(self.now.remove(&volume).is_some(), "{id}: {volume} was not there");
            }
        }
    }

    fn of(&mut self, id: LogId, volume: VolumeId) -> &mut Volume {
        self.now.get_mut(&volume).unwrap_or_else(|| panic!("{id}: {volume} was not there"))
    }
}
