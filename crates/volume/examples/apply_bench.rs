//! Cost of apply and lookup, and memory of an extent: `cargo run --release -p holdfast-volume --example apply_bench`.
#![allow(clippy::disallowed_methods, reason = "a bench measures time; the library itself has no clock")]

use bytes::Bytes;
use holdfast_control::set::{SetAnswer, SetCommand, SetState, VolumeChange};
use holdfast_types::{
    Epoch, Lba, LogId, LogIndex, MemberId, Name, Owner, RequestId, Sectors, Token, VolumeId, WriteSeq,
};
use holdfast_volume::entry::{EntryBuilder, OpKind, decode, encode_control};
use holdfast_volume::index::{JournalRef, Memtable, Source};
use holdfast_volume::machine::SetMachine;
use std::time::{Duration, Instant};

const VOLUME_SECTORS: u64 = (10 << 40) / 512;

/// Same numbers on every run (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct Bench {
    machine: SetMachine,
    index: u64,
    seq: u64,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self { machine: SetMachine::new(SetState::new(Epoch(0))), index: 0, seq: 0 };
        let change = VolumeChange::Create { name: Name::new("v").unwrap(), size: Sectors(VOLUME_SECTORS) };
        bench.command(&SetCommand::ChangeVolume { change, request: RequestId(9) });
        bench.command(&SetCommand::Acquire {
            owner: Owner::new("db").unwrap(),
            gateway: MemberId(1),
            token: Token(1),
            ttl_ms: 3000,
            request: RequestId(1),
            judged_expired: None,
            force: false,
            plain: false,
            at_unix_ms: 0,
        });
        bench
    }

    fn command(&mut self, command: &SetCommand) {
        self.index += 1;
        self.machine.apply(LogId::new(1, self.index), &encode_control(command).unwrap()).unwrap();
    }

    /// Applies `entries` entries of `ops` writes each, made in batches outside of the measured time.
    fn writes(&mut self, what: &str, entries: u64, ops: u64, op_sectors: u64, mut place: impl FnMut() -> u64) {
        let data = Bytes::from(vec![7_u8; (op_sectors * 512) as usize]);
        let (mut decoding, mut applying) = (Duration::ZERO, Duration::ZERO);
        let batch = (8 << 20) / (ops * op_sectors * 512 + 64) + 1;
        let mut left = entries;
        while left > 0 {
            let payloads: Vec<Bytes> = (0..batch.min(left))
                .map(|_| {
                    self.seq += 1;
                    let mut entry = EntryBuilder::new(self.machine.state().epoch, WriteSeq(self.seq));
                    for _ in 0..ops {
                        assert!(entry.try_push(
                            OpKind::Write,
                            VolumeId(1),
                            Lba(place()),
                            Sectors(op_sectors),
                            data.clone()
                        ));
                    }
                    entry.finish()
                })
                .collect();
            left -= payloads.len() as u64;
            let start = Instant::now();
            for payload in &payloads {
                std::hint::black_box(decode(payload).unwrap());
            }
            decoding += start.elapsed();
            let start = Instant::now();
            for payload in &payloads {
                self.index += 1;
                let applied = self.machine.apply(LogId::new(1, self.index), payload).unwrap();
                assert_eq!(applied.answer, SetAnswer::Written);
            }
            applying += start.elapsed();
        }
        let per = |time: Duration, n: u64| time.as_nanos() as f64 / n as f64;
        println!(
            "{what:<52} {:>8.0} ns/entry {:>7.0} ns/op (decode alone {:>6.0} ns/entry), {} extents",
            per(applying, entries),
            per(applying, entries * ops),
            per(decoding, entries),
            self.machine.extents()
        );
    }
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn journal(index: u64) -> Source {
    Source::Journal(JournalRef { index: LogIndex(index), header_offset: 32, op_sectors: 16, skip: 0 })
}

fn memtable(what: &str, extents: u64, mut place: impl FnMut(u64) -> u64) -> Memtable {
    let before = resident_bytes();
    let start = Instant::now();
    let mut memtable = Memtable::new();
    for n in 0..extents {
        memtable.insert(VolumeId(1), Lba(place(n)), Sectors(16), journal(n + 1));
    }
    let time = start.elapsed();
    let grown = resident_bytes().saturating_sub(before);
    println!(
        "{what:<52} {:>8.0} ns/insert, {:.1} resident bytes per extent",
        time.as_nanos() as f64 / extents as f64,
        grown as f64 / memtable.extents() as f64
    );
    memtable
}

fn main() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let million = 1_000_000;
    let older = memtable("1M extents of 8 KiB, random over 10 TiB", million, |_| dice.below(VOLUME_SECTORS / 16) * 16);
    let newer = memtable("1M extents of 8 KiB, ascending", million, |n| n * 16);
    let start = Instant::now();
    let mut merged = newer.clone();
    println!("clone of 1M extents: {:?}", start.elapsed());
    let start = Instant::now();
    merged.merge_under(&older);
    println!("merge of 1M over 1M: {:?}, {} extents", start.elapsed(), merged.extents());
    let start = Instant::now();
    let mut found = 0;
    for _ in 0..million {
        found += merged.lookup(VolumeId(1), Lba(dice.below(VOLUME_SECTORS / 16) * 16), Sectors(16)).len();
    }
    println!(
        "lookup of 8 KiB in {} extents: {:?} each ({found} pieces)",
        merged.extents(),
        start.elapsed() / million as u32
    );
    let start = Instant::now();
    merged.insert(VolumeId(1), Lba(0), Sectors(VOLUME_SECTORS), Source::Zero);
    println!("trim of 10 TiB over all of them: {:?}", start.elapsed());
    drop((merged, older, newer));

    let mut bench = Bench::new();
    let mut next = 0;
    bench.writes("4 KiB, ascending", 200_000, 1, 8, || {
        next += 8;
        next
    });
    bench.writes("4 KiB, random over 10 TiB", 500_000, 1, 8, || dice.below(VOLUME_SECTORS / 8 - 1) * 8);
    bench.writes("4 KiB, over and over in 256 MiB", 500_000, 1, 8, || dice.below(65_536) * 8);
    bench.writes("64 writes of 4 KiB, random over 10 TiB", 5_000, 64, 8, || dice.below(VOLUME_SECTORS / 8 - 1) * 8);
    bench.writes("128 KiB, random over 10 TiB", 20_000, 1, 256, || dice.below(VOLUME_SECTORS / 256 - 1) * 256);
    bench.writes("1 MiB, random over 10 TiB", 2_000, 1, 2048, || dice.below(VOLUME_SECTORS / 2048 - 1) * 2048);
}
