use super::*;
use crate::device::tests::World;
use crate::head::tests::SET;
use holdfast_control::set::SetCommand;
use holdfast_types::{ObjectId, Owner, RequestId, Token, WriteSeq};
use holdfast_volume::entry::{EntryBuilder, OpKind, encode_control};
use holdfast_volume::index::Source;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const VOLUME: VolumeId = VolumeId(1);
const AT: (Lba, Sectors) = (Lba(0), Sectors(8));

/// Writes and checkpoints, one after the other: so many that some end at any given moment of a lookup.
const ROUNDS: u64 = 50_000;
/// Fewer lookups than this beside them show nothing: where other programs keep the processors busy, the writer may have
/// ended before reader and writer ran at the same time. Then there are more rounds.
const LOOKUPS_LEAST: u64 = 100_000;
/// Rounds at most.
const ROUNDS_MAX: u64 = 10 * ROUNDS;
/// Turns of a loop that wait for the next lookup, at most: so many end soon, also where no other thread can run.
const TURNS_MAX: u32 = 500;

/// What reader and writer tell each other.
#[derive(Default)]
struct Told {
    /// The last write that was applied.
    written: AtomicU64,
    /// Lookups so far.
    lookups: AtomicU64,
}

/// Applies writes to one range, each with its own checkpoint behind it: the root of checkpoint N has write N. `after`
/// is the last entry that was applied.
fn write_and_checkpoint(host: &SetHost, epoch: Epoch, after: LogId, told: &Told) {
    let term = after.term;
    let mut at = after;
    let mut apply = |payload: Bytes, expected: &dyn Fn(LogId) -> SetAnswer| {
        at.index.0 += 1;
        assert_eq!(decode_answer(&host.apply(at, payload)), Some(expected(at)));
        at
    };
    let enough = |number| number > ROUNDS && told.lookups.load(Ordering::Relaxed) >= LOOKUPS_LEAST;
    for number in (1..=ROUNDS_MAX).take_while(|number| !enough(*number)) {
        let mut entry = EntryBuilder::new(epoch, WriteSeq(number)).of(SET);
        assert!(entry.try_push(OpKind::Zero, VOLUME, AT.0, AT.1, Bytes::new()));
        apply(entry.finish(), &|_| SetAnswer::Written);
        told.written.store(number, Ordering::Release);
        let begin = encode_control(&SetCommand::CheckpointBegin { term }).unwrap();
        let begin = apply(begin, &|at| SetAnswer::CheckpointBegun { at });
        let object = ObjectId { term, member: MemberId(1), boot: 1, random: number.into() };
        let end = SetCommand::CheckpointEnd { term, begin, root: RootRef { object, bytes: 9 } };
        let end = encode_control(&end).unwrap();
        // The reader is awake. How far it is in its next lookup differs from round to round.
        let before = told.lookups.load(Ordering::Relaxed);
        for _ in 0..TURNS_MAX {
            if told.lookups.load(Ordering::Relaxed) != before {
                break;
            }
            std::hint::spin_loop();
        }
        (0..number % 64).for_each(|_| std::hint::spin_loop());
        apply(end, &|_| SetAnswer::CheckpointEnded);
    }
}

/// R3: a checkpoint may end at any moment of a lookup. If pieces and root were looked up one after the other, a read
/// would look in the root before for what is only in the one behind, and show what was there before the last write.
#[tokio::test]
async fn r3_pieces_and_root_of_a_lookup_are_of_one_moment() {
    let world = World::over(true, None).await;
    let server = &world.server;
    let (owner, ttl, request) = (Owner::new("host").unwrap(), Duration::from_secs(30), RequestId(1));
    let lease = server.acquire(owner, Token(7), ttl, request, false, false).await.expect("the lease is free");
    let (host, after, told) = (&*server.host, server.group.applied(), Told::default());
    let (mut stale, mut from_map) = (None, 0_u64);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_and_checkpoint(host, lease.epoch, after, &told));
        while stale.is_none() && !writer.is_finished() {
            let written = told.written.load(Ordering::Acquire);
            let (pieces, root) = host.lookup(VOLUME, AT.0, AT.1);
            told.lookups.fetch_add(1, Ordering::Relaxed);
            if pieces.iter().any(|piece| piece.source == Source::Map) {
                from_map += 1;
                let has = root.map_or(0, |root| root.object.random);
                stale = (has < u128::from(written)).then_some((has, written));
            }
        }
        writer.join().expect("each entry is applied");
    });
    println!("{from_map} lookups were referred to the map");
    assert_eq!(stale, None, "R3: the root that was looked in, and the last write before the lookup");
}
