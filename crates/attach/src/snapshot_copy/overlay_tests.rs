//! The overlay against a flat model, an array of bytes that is written in place.

use super::*;
use proptest::prelude::*;

/// Three and a half chunks: ranges cross them, and the last one is never whole.
const SECTORS: u64 = 3 * CHUNK_SECTORS + CHUNK_SECTORS / 2 + 3;
const SIZE: usize = (SECTORS * SECTOR_BYTES) as usize;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, u8),
    /// Its bytes never arrive completely, and it is given up.
    Broken(u64, u64),
    Zero(u64, u64),
    Read(u64, u64),
}

/// Short ranges anywhere, and some over whole chunks.
fn range() -> impl Strategy<Value = (u64, u64)> {
    let short = (0..SECTORS, 0..40u64);
    let long = (0..SECTORS, 0..SECTORS);
    let whole = (0..3u64, 1..3u64).prop_map(|(first, count)| (first * CHUNK_SECTORS, count * CHUNK_SECTORS));
    prop_oneof![6 => short, 1 => long, 1 => whole].prop_map(|(first, count)| (first, count.min(SECTORS - first)))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (range(), 1..=255u8).prop_map(|((at, len), byte)| Op::Write(at, len, byte)),
        1 => range().prop_map(|(at, len)| Op::Broken(at, len)),
        2 => range().prop_map(|(at, len)| Op::Zero(at, len)),
        2 => range().prop_map(|(at, len)| Op::Read(at, len)),
    ]
}

struct World {
    overlay: Overlay,
    snapshot: Vec<u8>,
    scratch: Vec<u8>,
    model: Vec<u8>,
    /// Sectors with data, to count blocks the slow way.
    data: Vec<bool>,
}

impl World {
    fn new(max: u64) -> Self {
        let snapshot: Vec<u8> = (0..SIZE).map(|at| (at / SECTOR_BYTES as usize % 251) as u8).collect();
        let model = snapshot.clone();
        Self {
            overlay: Overlay::new(max),
            snapshot,
            scratch: vec![0xee; SIZE],
            model,
            data: vec![false; SECTORS as usize],
        }
    }

    fn held(&self) -> u64 {
        self.data.chunks(BLOCK_SECTORS as usize).filter(|block| block.contains(&true)).count() as u64 * BLOCK_BYTES
    }

    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let mut next = offset;
        for run in self.overlay.runs(offset, len) {
            assert_eq!(run.offset, next, "in order and without gaps");
            assert!(run.len > 0);
            next += run.len;
            let range = run.offset as usize..(run.offset + run.len) as usize;
            match run.from {
                Place::Snapshot => out.extend_from_slice(&self.snapshot[range]),
                Place::Scratch => out.extend_from_slice(&self.scratch[range]),
                Place::Zeroes => out.extend(range.map(|_| 0)),
            }
        }
        assert_eq!(next, offset + len);
        out
    }

    fn carry_out(&mut self, op: &Op) {
        let bytes = |at: u64, len: u64| (at * SECTOR_BYTES, len * SECTOR_BYTES);
        let range = |at: u64, len: u64| (at * SECTOR_BYTES) as usize..((at + len) * SECTOR_BYTES) as usize;
        match *op {
            Op::Write(at, len, byte) => {
                let (offset, count) = bytes(at, len);
                match self.overlay.ask(offset, count) {
                    Ok(room) => {
                        self.scratch[range(at, len)].fill(byte);
                        self.overlay.wrote(offset, count, room);
                        self.model[range(at, len)].fill(byte);
                        self.data[at as usize..(at + len) as usize].fill(true);
                    }
                    Err(full) => {
                        let mut after = self.data.clone();
                        after[at as usize..(at + len) as usize].fill(true);
                        let blocks = after.chunks(BLOCK_SECTORS as usize).filter(|block| block.contains(&true)).count();
                        assert!(blocks as u64 * BLOCK_BYTES > full.max, "refused although there is room");
                    }
                }
            }
            Op::Broken(at, len) => {
                let (offset, count) = bytes(at, len);
                if let Ok(room) = self.overlay.ask(offset, count) {
                    // What is its own already may be broken by it, as on a disk; what is not must not be.
                    for sector in at..at + len {
                        if !self.data[sector as usize] {
                            self.scratch[range(sector, 1)].fill(0xdd);
                        }
                    }
                    self.overlay.gave_up(room);
                }
            }
            Op::Zero(at, len) => {
                let (offset, count) = bytes(at, len);
                self.overlay.zero(offset, count);
                self.model[range(at, len)].fill(0);
                self.data[at as usize..(at + len) as usize].fill(false);
            }
            Op::Read(at, len) => {
                let (offset, count) = bytes(at, len);
                assert!(self.read(offset, count) == self.model[range(at, len)], "sectors {at} to {}", at + len);
            }
        }
        assert_eq!(self.overlay.held_bytes(), self.held());
        assert_eq!(self.overlay.promised, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_reads_like_a_disk_that_was_written_in_place(ops in prop::collection::vec(op(), 1..40)) {
        let mut world = World::new(u64::MAX);
        ops.iter().for_each(|op| world.carry_out(op));
        world.carry_out(&Op::Read(0, SECTORS));
    }

    #[test]
    fn it_never_holds_more_than_its_bound(ops in prop::collection::vec(op(), 1..40), blocks in 0..300u64) {
        let mut world = World::new(blocks * BLOCK_BYTES);
        for op in &ops {
            world.carry_out(op);
            prop_assert!(world.overlay.held_bytes() <= blocks * BLOCK_BYTES);
        }
        world.carry_out(&Op::Read(0, SECTORS));
    }
}

#[test]
fn what_is_under_way_counts() {
    let mut overlay = Overlay::new(2 * BLOCK_BYTES);
    let first = overlay.ask(0, BLOCK_BYTES).unwrap();
    let second = overlay.ask(BLOCK_BYTES, SECTOR_BYTES).unwrap();
    let full = overlay.ask(2 * BLOCK_BYTES, SECTOR_BYTES).unwrap_err();
    assert_eq!(full, Full { held: 2 * BLOCK_BYTES, max: 2 * BLOCK_BYTES });
    overlay.gave_up(first);
    overlay.wrote(BLOCK_BYTES, SECTOR_BYTES, second);
    // The block that is held already takes more sectors without more room.
    let third = overlay.ask(0, BLOCK_BYTES + 4 * SECTOR_BYTES).unwrap();
    overlay.wrote(0, BLOCK_BYTES + 4 * SECTOR_BYTES, third);
    assert_eq!(overlay.held_bytes(), 2 * BLOCK_BYTES);
    overlay.zero(0, 2 * BLOCK_BYTES);
    assert_eq!(overlay.held_bytes(), 0);
}

#[test]
fn a_whole_volume_can_be_zeroed_without_much_memory() {
    let mut overlay = Overlay::new(0);
    overlay.zero(0, 1 << 40);
    assert!(overlay.chunks.values().all(|chunk| matches!(chunk, Chunk::Zeroed)));
    assert_eq!(overlay.runs(0, 1 << 40), [Run { offset: 0, len: 1 << 40, from: Place::Zeroes }]);
}
