//! A simple model of a journal, random histories for it, and the comparison with a recovered journal.
#![allow(dead_code, reason = "each test binary uses a part")]

use bytes::Bytes;
use holdfast_journal::{Journal, Op, Params, RecoverError, RecoveryReport, Sealing, read_entry};
use holdfast_seal::NodeKey;
use holdfast_testkit::SimDisk;
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use std::collections::{BTreeMap, VecDeque};

pub const GROUPS: u64 = 4;
/// Small files, so that short histories rotate, carry and drop.
pub const PARAMS: Params = Params { file_bytes: 64 << 10, room_bytes: 256 << 10, disk_uuid: 7, boot: 1 };

/// Chance from a seed (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Expected content of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelGroup {
    pub vote: Option<Bytes>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
    pub entries: BTreeMap<u64, (Term, Bytes)>,
}

impl ModelGroup {
    fn last(&self) -> Option<LogId> {
        let entry =
            self.entries.iter().next_back().map(|(index, (term, _))| LogId { term: *term, index: LogIndex(*index) });
        entry.or(self.purged)
    }

    fn next(&self) -> u64 {
        let after_entries = self.entries.keys().next_back().map(|last| last + 1);
        after_entries.or(self.purged.map(|purged| purged.index.0 + 1)).unwrap_or(0)
    }
}

/// Expected content of all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model(pub BTreeMap<GroupId, ModelGroup>);

impl Model {
    pub fn apply(&mut self, op: &Op) {
        let group = self.0.entry(op.group()).or_default();
        match op {
            Op::Entry { id, payload, .. } => {
                group.entries.insert(id.index.0, (id.term, payload.clone()));
            }
            Op::Vote { payload, .. } => group.vote = Some(payload.clone()),
            Op::Truncate { from, .. } => group.entries.retain(|index, _| index < from),
            Op::Purge { upto, .. } => {
                group.entries.retain(|index, _| *index > upto.index.0);
                group.purged = Some(*upto);
            }
            Op::Committed { id, .. } => group.committed = Some(*id),
            Op::DropGroup { .. } => *group = ModelGroup::default(),
        }
        if *group == ModelGroup::default() {
            self.0.remove(&op.group());
        }
    }

    /// A purge that went ahead of what waited (`Journal::purge_ahead`): nothing up to `upto` is left.
    pub fn purge_ahead(&mut self, group: GroupId, upto: LogId) {
        let group = self.0.entry(group).or_default();
        if group.purged.is_none_or(|purged| purged.index < upto.index) {
            group.entries.retain(|index, _| *index > upto.index.0);
            group.purged = Some(upto);
        }
    }

    pub fn of(journal: &Journal<SimDisk>) -> Result<Model, String> {
        let mut model = Model::default();
        for id in journal.catalog().groups() {
            if let Some(group) = Self::of_group(journal, id)? {
                model.0.insert(id, group);
            }
        }
        Ok(model)
    }

    pub fn of_group(journal: &Journal<SimDisk>, id: GroupId) -> Result<Option<ModelGroup>, String> {
        let catalog = journal.catalog();
        let shared = catalog.index(id);
        let (mut group, range, last) = {
            let index = shared.lock().expect("whole");
            let group = ModelGroup {
                vote: index.vote(),
                committed: index.committed(),
                purged: index.purged(),
                entries: BTreeMap::new(),
            };
            (group, index.first()..index.next(), index.last())
        };
        for index in range {
            let (log_id, payload) = read_entry(&catalog, id, &shared, index).map_err(|error| error.to_string())?;
            group.entries.insert(index, (log_id.term, payload));
        }
        if last != group.last() {
            return Err(format!("{id}: last {last:?}, expected {:?}", group.last()));
        }
        Ok((group != ModelGroup::default()).then_some(group))
    }
}

/// Random operations that fit a model.
pub struct Generator {
    pub rng: Rng,
    pub drawn: u64,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng(seed), drawn: 0 }
    }

    /// Bytes that no other call returned.
    fn payload(&mut self, len: u64) -> Bytes {
        self.drawn += 1;
        let stamp = self.drawn.to_le_bytes();
        (0..len as usize).map(|at| stamp[at % 8] ^ (at / 8) as u8).collect::<Vec<u8>>().into()
    }

    /// Some operations of one group, as of one job.
    pub fn job(&mut self, model: &Model) -> Vec<Op> {
        // Group 3 is nearly idle: its records have to be carried forward.
        let group = GroupId(if self.rng.chance(2) { 3 } else { self.rng.below(GROUPS - 1) });
        let empty = ModelGroup::default();
        let state = model.0.get(&group).unwrap_or(&empty);
        let next = state.next();
        let first = state.entries.keys().next().copied().unwrap_or(next);
        let last_term = state.entries.values().next_back().map_or(0, |(term, _)| term.0);
        let last_term = last_term.max(state.purged.map_or(0, |purged| purged.term.0));
        let id_at =
            |index: u64| state.entries.get(&index).map(|(term, _)| LogId { term: *term, index: LogIndex(index) });
        match self.rng.below(100) {
            0..60 => {
                let term = last_term + u64::from(self.rng.chance(10));
                let start = if state.purged.is_none() && next == 0 { self.rng.below(2) } else { next };
                let count = 1 + self.rng.below(4);
                (start..start + count)
                    .map(|index| {
                        let len = if self.rng.chance(10) { self.rng.below(20_000) } else { self.rng.below(900) };
                        let payload = self.payload(len);
                        Op::Entry { group, id: LogId::new(term, index), payload }
                    })
                    .collect()
            }
            60..68 => vec![Op::Vote { group, payload: self.payload(24) }],
            68..76 if next > first => {
                let from = first + self.rng.below(next - first);
                let term = last_term + 1;
                let mut ops = vec![Op::Truncate { group, from }];
                if self.rng.chance(70) && (from > 0 || state.purged.is_none()) {
                    ops.push(Op::Entry { group, id: LogId::new(term, from), payload: self.payload(300) });
                }
                ops
            }
            76..79 if next > first => {
                // A leader overwrites the end of the log, the next one brings back what was there, and purges some of
                // it.
                let from = first + self.rng.below(next - first);
                let Some(upto) = id_at(from + self.rng.below(next - from)) else { return Vec::new() };
                let overwritten = from..from + 1 + self.rng.below(2 * (next - from));
                let mut ops = vec![Op::Truncate { group, from }];
                for index in overwritten {
                    let id = LogId::new(last_term + 1, index);
                    ops.push(Op::Entry { group, id, payload: self.payload(100) });
                }
                ops.push(Op::Truncate { group, from });
                let back = state.entries.range(from..).map(|(index, (term, payload))| {
                    let id = LogId { term: *term, index: LogIndex(*index) };
                    Op::Entry { group, id, payload: payload.clone() }
                });
                ops.extend(back);
                ops.push(Op::Purge { group, upto });
                ops
            }
            79..88 if next > first => {
                let keep = self.rng.below(3).min(next - first - 1);
                id_at(next - 1 - keep).map(|upto| Op::Purge { group, upto }).into_iter().collect()
            }
            88..90 => vec![Op::Purge { group, upto: LogId::new(last_term + 1, next + self.rng.below(5)) }],
            90..96 if next > first => id_at(next - 1).map(|id| Op::Committed { group, id }).into_iter().collect(),
            96 => vec![Op::DropGroup { group }],
            _ => vec![Op::Vote { group, payload: self.payload(8) }],
        }
    }
}

/// Opens with file uuids drawn from `seed`; files begun under an even seed are sealed, so a history of several opens
/// has both kinds. The greater part of each entry counts as one that came sealed.
pub fn open(disk: &SimDisk, seed: u64) -> Result<(Journal<SimDisk>, RecoveryReport), RecoverError> {
    let sealing = Sealing { clear_bytes: |payload| payload.len() / 3, ..sealing(9, seed.is_multiple_of(2)) };
    open_with(disk, seed, Some(sealing))
}

/// A node key of this byte. Files in clear are read as well: most histories have files of both kinds.
pub fn sealing(byte: u8, new_files: bool) -> Sealing {
    Sealing { reads_clear: true, ..Sealing::new(NodeKey::from_bytes([byte; 32]), new_files) }
}

/// [`open`] with the given sealing.
pub fn open_with(
    disk: &SimDisk,
    seed: u64,
    sealing: Option<Sealing>,
) -> Result<(Journal<SimDisk>, RecoveryReport), RecoverError> {
    let mut rng = Rng(seed ^ 0x5eed);
    let uuids = Box::new(move || u128::from(rng.next()) << 64 | u128::from(rng.next()));
    Journal::open_sealed(disk.clone(), PARAMS, sealing, uuids)
}

/// Writes all of `ops`; on failure the durable ones are removed from `ops`.
pub fn write(journal: &mut Journal<SimDisk>, ops: &mut VecDeque<Op>) -> bool {
    journal.write(ops).is_ok()
}
