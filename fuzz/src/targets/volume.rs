//! Entries and snapshots of a set's replicated state, and segments.

use super::sealed::{self, framed, joined, parted};
use crate::target::Bound;
use bytes::Bytes;
use holdfast_control::set::{Limit, Limits, SetCommand, SetState, VolumeChange};
use holdfast_seal::{ENTRY_KEY_BYTES, EntryKey, ExtentAad, ExtentPart, Part, TAG_BYTES};
use holdfast_types::limits::EXTENT_BYTES_MAX;
use holdfast_types::{
    Epoch, GroupId, Lba, LogId, MemberId, Name, Owner, RequestId, Sectors, Term, Token, VolumeId, WriteSeq,
};
use holdfast_volume::entry::{
    CONTROL_HEADER_BYTES, ENTRY_GRID_BYTES, ENTRY_HEADER_BYTES, EntryBuilder, EntryPayload, OP_BYTES, OpKind,
    UNIT_BYTES, clear_bytes, decode, encode_control,
};
use holdfast_volume::machine::SetMachine;
use holdfast_volume::object::{OBJECT_HEADER_BYTES, ObjectKind};
use holdfast_volume::segment::{Codec, ExtentPlace, SegmentBuilder, open_extent, read_table, stretches};

/// An extent is opened to at most its own length, whatever is compressed in it.
pub(super) const EXTENT: Bound = Bound { base: 4 * EXTENT_BYTES_MAX, each: 64 };

/// Extents of a table that are opened.
const OPENED_MAX: usize = 4;

fn put(bytes: &mut [u8], at: usize, number: u32) {
    if let Some(to) = bytes.get_mut(at..at + 4) {
        to.copy_from_slice(&number.to_le_bytes());
    }
}

fn on_grid(bytes: usize) -> usize {
    bytes.next_multiple_of(ENTRY_GRID_BYTES)
}

/// Puts the right checksums into an entry, as far as it can be followed.
fn mend(entry: &mut [u8]) {
    let len = entry.len();
    match entry.first() {
        Some(1) if len >= ENTRY_HEADER_BYTES => {
            put(entry, 4, len as u32);
            let ops = usize::from(u16::from_le_bytes([entry[2], entry[3]]));
            let front = on_grid(ENTRY_HEADER_BYTES + OP_BYTES * ops);
            if front > len {
                return;
            }
            let crc = crc32c::crc32c_append(crc32c::crc32c(&entry[..64]), &entry[68..front]);
            put(entry, 64, crc);
            let mut at = front;
            for op in 0..ops {
                let op = &entry[ENTRY_HEADER_BYTES + OP_BYTES * op..][..OP_BYTES];
                let data = if op[0] == 1 { usize::from(u16::from_le_bytes([op[16], op[17]])) * 512 } else { 0 };
                if data == 0 {
                    continue;
                }
                let block = on_grid(16 + TAG_BYTES * data.div_ceil(UNIT_BYTES)) + data;
                let Some(bytes) = entry.get_mut(at..at + block) else { return };
                let crc = crc32c::crc32c(&bytes[8..]);
                put(bytes, 4, crc);
                at += block;
            }
        }
        Some(2) if len >= CONTROL_HEADER_BYTES => {
            let crc = crc32c::crc32c(&entry[CONTROL_HEADER_BYTES..]);
            put(entry, 4, crc);
        }
        _ => {}
    }
}

/// A name or owner that is written here.
fn fixed<T, E: std::fmt::Debug>(made: Result<T, E>) -> T {
    made.expect("a name of letters")
}

/// Somebody takes the lease, which gives epoch 1, and makes a volume.
fn first_commands() -> [SetCommand; 2] {
    let take = SetCommand::Acquire {
        owner: fixed(Owner::new("db1")),
        gateway: MemberId(1),
        token: Token(9),
        ttl_ms: 3000,
        request: RequestId(1),
        judged_expired: None,
        force: false,
        plain: false,
        at_unix_ms: 0,
    };
    let change = VolumeChange::Create { name: fixed(Name::new("a")), size: Sectors(1 << 20) };
    [take, SetCommand::ChangeVolume { change, request: RequestId(2) }]
}

fn machine() -> SetMachine {
    let mut machine = SetMachine::new(SetState::new(Epoch(0)));
    for (index, command) in (1..).zip(first_commands()) {
        let applied = encode_control(&command).and_then(|payload| machine.apply(LogId::new(1, index), &payload));
        assert!(applied.is_ok(), "{:?}", applied.err());
    }
    machine
}

pub(super) fn entries(data: &[u8]) -> bool {
    let mut mended = data.to_vec();
    mend(&mut mended);
    let payload = Bytes::from(mended);
    let Ok(entry) = decode(&payload) else { return false };
    match &entry {
        EntryPayload::Writes(writes) => {
            let mut again = EntryBuilder::new(writes.epoch, writes.seq).of(writes.set);
            // Bytes that were changed do not open if they are sealed.
            for op in writes.ops().into_iter().flatten() {
                assert!(again.try_push(op.kind, op.volume, op.lba, op.sectors, op.data), "it was taken before");
            }
            if payload[32..64] == [0; ENTRY_KEY_BYTES] {
                assert_eq!(clear_bytes(&payload), payload.len(), "all of it is in clear");
                assert_eq!(again.finish(), payload, "encoded again, it is another");
            } else {
                assert!(clear_bytes(&payload) <= payload.len(), "the front ends behind the entry");
            }
        }
        EntryPayload::Control(command) => {
            let again = encode_control(command).and_then(|payload| decode(&payload));
            assert!(matches!(&again, Ok(EntryPayload::Control(found)) if found == command), "{command:?}: {again:?}");
        }
    }
    // A replica applies what a leader has sent: it may refuse, and never panics.
    let _ = machine().apply_decoded(LogId::new(1, 3), &entry);
    true
}

pub(super) fn all_entries() -> Vec<Vec<u8>> {
    let writes = || {
        let mut writes = EntryBuilder::new(Epoch(1), WriteSeq(1)).of(GroupId(1));
        let volume = VolumeId(1);
        writes.try_push(OpKind::Write, volume, Lba(8), Sectors(2), Bytes::from_static(&[7; 1024]));
        writes.try_push(OpKind::Trim, volume, Lba(64), Sectors(128), Bytes::new());
        writes.try_push(OpKind::Zero, volume, Lba(0), Sectors(8), Bytes::new());
        writes
    };
    let begin = SetCommand::CheckpointBegin { term: Term(1) };
    let commands = first_commands().into_iter().chain([begin]);
    let mut all: Vec<Vec<u8>> = commands.filter_map(|command| Some(encode_control(&command).ok()?.to_vec())).collect();
    all.push(writes().finish().to_vec());
    all.push(writes().finish_sealed(EntryKey::new([7; ENTRY_KEY_BYTES])).to_vec());
    all
}

/// Where the snapshots stand in the log.
const UPTO: LogId = LogId { term: Term(2), index: holdfast_types::LogIndex(30) };

/// A snapshot with this body: the header of `volume/src/machine/snapshot.rs`.
fn snapshot(body: &[u8]) -> Vec<u8> {
    let place = [UPTO.term.0.to_le_bytes(), UPTO.index.0.to_le_bytes()].concat();
    let checked = [&place[..], body].concat();
    let crc = crc32c::crc32c(&checked);
    [&b"HFSETST1"[..], &crc.to_le_bytes(), &(body.len() as u32).to_le_bytes(), &checked].concat()
}

fn body_of(state: &SetState) -> Vec<u8> {
    let mut body = postcard::to_stdvec(state).expect("R4: a state can be written");
    let limits = !state.limits.is_empty() || state.rtt_ms.is_some();
    match &state.owner_at {
        Some(at) => body = postcard::to_extend(at, body).expect("R4: a place can be written"),
        None if limits => body.push(0),
        None => {}
    }
    if limits {
        body = postcard::to_extend(&state.limits, body).expect("R4: limits can be written");
    }
    if let Some(rtt_ms) = state.rtt_ms {
        body = postcard::to_extend(&rtt_ms, body).expect("R4: a number can be written");
    }
    body
}

pub(super) fn states(data: &[u8]) -> bool {
    let Ok(machine) = SetMachine::from_snapshot(UPTO, &snapshot(data)) else { return false };
    let again = SetMachine::from_snapshot(UPTO, &snapshot(&body_of(machine.state())));
    assert_eq!(again.as_ref().ok().map(SetMachine::state), Some(machine.state()), "encoded again, it is another");
    true
}

pub(super) fn all_states() -> Vec<Vec<u8>> {
    let at = "region=eu,zone=a".parse().ok();
    let located = SetState { owner_at: at, ..SetState::new(Epoch(3)) };
    let limit = Limit { iops: 300, bytes_per_s: 1 << 20, burst_ms: 1000 };
    let limits = Limits { set: limit, ..Limits::default() };
    let limited = SetState { limits, ..SetState::new(Epoch(3)) };
    let timed = SetState { rtt_ms: Some(80), ..SetState::new(Epoch(3)) };
    let all = SetState { limits: limited.limits.clone(), rtt_ms: Some(300), ..located.clone() };
    let placed_and_limited = SetState { rtt_ms: None, ..all.clone() };
    let (empty, machine) = (SetState::new(Epoch(3)), machine());
    let states = [&empty, machine.state(), &located, &limited, &placed_and_limited, &timed, &all];
    states.into_iter().map(body_of).collect()
}

/// By the first byte: a segment, or one block of an extent as it is before decompression.
pub(super) fn segments(data: &[u8]) -> bool {
    match data {
        [0, data @ ..] => segment(data),
        [selector, sectors, plain @ ..] => block(*selector, *sectors, plain),
        _ => false,
    }
}

fn segment(data: &[u8]) -> bool {
    let Some((content, table)) = parted(data) else { return false };
    let object = framed(ObjectKind::Segment, content, Part::Header, table);
    let opener = sealed::opener();
    let Ok(entries) = read_table(&opener, &object) else { return false };
    for entry in entries.iter().take(OPENED_MAX) {
        let range = entry.place.range();
        let Some(extent) = object.get(range.start as usize..range.end as usize) else {
            panic!("the table ends where the extents end, and one is outside: {entry:?}")
        };
        if let Ok(raw) = open_extent(&opener, &entry.place, entry.volume, entry.lba, extent) {
            assert_eq!(raw.len(), entry.place.raw_len as usize, "opened to another length");
        }
        let _ = stretches(&opener, entry, extent);
    }
    true
}

fn block(selector: u8, sectors: u8, plain: &[u8]) -> bool {
    let codec = if selector & 1 == 0 { Codec::Lz4 } else { Codec::Zstd };
    let (volume, lba) = (VolumeId(1), Lba(8));
    let raw_len = (1 + u32::from(sectors % 8)) * 512;
    let aad = ExtentAad { volume, lba, raw_len, codec: codec.number() };
    let extent = sealed::sealer().seal_extent(0, ExtentPart::Block(0), aad, plain);
    let sealed_len = (plain.len() + TAG_BYTES) as u32;
    let place = ExtentPlace { number: 0, offset: OBJECT_HEADER_BYTES as u32, sealed_len, raw_len, codec };
    open_extent(&sealed::opener(), &place, volume, lba, &extent).is_ok_and(|raw| raw.len() == raw_len as usize)
}

pub(super) fn all_segments() -> Vec<Vec<u8>> {
    let seed = |codec| {
        let mut segment = SegmentBuilder::new(sealed::sealer(), codec);
        segment.push(VolumeId(1), Lba(8), &[7; 4096]);
        segment.push(VolumeId(1), Lba(64), &[[7_u8; 256], [8; 256]].concat());
        [&[0][..], &joined(&segment.finish(), Part::Header)].concat()
    };
    vec![seed(Codec::None), seed(Codec::Lz4), seed(Codec::Zstd), [&[2, 0][..], &[7; 512]].concat()]
}
