use super::fetched::ReadOp;
use super::*;
use holdfast_seal::{ENTRY_KEY_BYTES, EntryKey};
use holdfast_types::{Epoch, GroupId, SECTOR_BYTES, WriteSeq};
use holdfast_volume::entry::{EntryBuilder, EntryPayload, OpHeader, OpKind, decode};

const VOLUME: VolumeId = VolumeId(1);

/// What is written at this sector.
fn data(lba: u64, sectors: u64) -> Bytes {
    (0..sectors * SECTOR_BYTES).map(|n| (lba as u8).wrapping_mul(31).wrapping_add((n / 5) as u8)).collect()
}

type Placed = (Lba, Sectors, JournalRef);

/// An entry with writes of so many sectors, one behind the other from `lba` on, and where they are in it.
fn entry(index: u64, mut lba: u64, writes: &[u64], sealed: bool) -> (Bytes, Vec<Placed>) {
    let mut builder = EntryBuilder::new(Epoch(1), WriteSeq(index)).of(GroupId(3));
    for sectors in writes {
        assert!(builder.try_push(OpKind::Write, VOLUME, Lba(lba), Sectors(*sectors), data(lba, *sectors)));
        lba += sectors;
    }
    let key = [index as u8; ENTRY_KEY_BYTES];
    let payload = if sealed { builder.finish_sealed(EntryKey::new(key)) } else { builder.finish() };
    let Ok(EntryPayload::Writes(view)) = decode(&payload) else { panic!("no entry of writes") };
    let placed = |(header_offset, op): (u32, OpHeader)| {
        let place = JournalRef { index: LogIndex(index), header_offset, op_sectors: op.sectors.0 as u32, skip: 0 };
        (op.lba, op.sectors, place)
    };
    let places = view.headers().map(placed).collect();
    (payload, places)
}

/// ENTRY-E1: an operation is opened with the header of its own entry, wherever it is in its entry and in the call.
#[test]
fn each_operation_is_read_with_the_header_of_its_entry() {
    for sealed in [true, false] {
        // Near to the header and far from it; of the second entry only what is far; the third takes several calls.
        let entries = [
            entry(1, 0, &[8, 1, 64, 8], sealed),
            entry(2, 100, &[64, 8, 8], sealed),
            entry(3, 300, &[300, 300, 8], sealed),
        ];
        let mut wanted = Wanted::new();
        let all = entries.iter().flat_map(|(_, places)| places).filter(|(lba, ..)| *lba != Lba(100));
        for (part, (lba, sectors, place)) in all.enumerate() {
            let (offset, len) = place.byte_range();
            let of_one = wanted.entry((place.index, offset, len)).or_default();
            of_one.push(Use { extent: 0, part, lba: *lba, sectors: *sectors, place: *place });
        }
        let (calls, mut read) = (in_reads(wanted, FOR_CLIENT), 0);
        assert!(calls.len() > 1, "the last entry is read by several calls");
        for Reads { places, wants } in calls {
            let part = |at: &ReadPlace| {
                let (payload, _) = &entries[at.index.0 as usize - 1];
                payload.slice(at.offset as usize..at.offset as usize + at.len)
            };
            let bytes: Vec<Bytes> = places.iter().map(part).collect();
            for Wants { head, block, skip, uses } in wants {
                for Use { lba, sectors, place, .. } in uses {
                    let found = read_piece(VOLUME, lba, sectors, &place, &bytes[head], &bytes[block].slice(skip..));
                    assert_eq!(found, Ok(data(lba.0, sectors.0)), "sealed: {sealed}, {place:?}");
                    read += 1;
                }
            }
        }
        assert_eq!(read, 9);
    }
}

/// Extents of a checkpoint, and the operations of the one entry that they are in.
fn fetched(payload: &Bytes, places: &[Placed], extents: &[PlannedExtent]) -> Fetched {
    let read = |(.., place): &Placed| {
        let (offset, len) = place.byte_range();
        let read = payload.slice(..(offset as usize + len).min(payload.len()));
        (*place, ReadOp { head: read.clone(), read, skip: offset as usize })
    };
    let mut fetched = Fetched::new(extents.to_vec());
    fetched.operations = places.iter().map(read).collect();
    fetched
}

/// R4: what a checkpoint seals is what was written, in whatever pieces, and nothing of the extent before it.
#[test]
fn extents_of_a_checkpoint_are_opened_one_after_the_other() {
    for sealed in [true, false] {
        let (payload, places) = entry(1, 0, &[8, 1, 64, 8], sealed);
        let whole =
            |(lba, sectors, place): Placed| PlannedExtent { volume: VOLUME, lba, parts: vec![(sectors, place)] };
        let all = places.iter().map(|(_, sectors, place)| (*sectors, *place)).collect();
        let within = |skip: u64, sectors| {
            let (lba, _, place) = places[2];
            whole((Lba(lba.0 + skip), Sectors(sectors), JournalRef { skip: skip as u32, ..place }))
        };
        let extents = [
            PlannedExtent { volume: VOLUME, lba: Lba(0), parts: all },
            whole(places[2]),
            whole(places[1]),
            within(30, 34),
            within(40, 2),
        ];
        let content =
            |of: &[usize]| -> Vec<u8> { of.iter().flat_map(|n| data(places[*n].0.0, places[*n].1.0)).collect() };
        let large = content(&[2]);
        let expected = [
            content(&[0, 1, 2, 3]),
            large.clone(),
            content(&[1]),
            large[30 * 512..].to_vec(),
            large[40 * 512..42 * 512].to_vec(),
        ];
        let checked = fetched(&payload, &places, &extents).check().expect("good");
        let mut room = Vec::new();
        for (number, expected) in expected.into_iter().enumerate() {
            let found = checked.with(number, &mut room, <[u8]>::to_vec).expect("good");
            assert!(found == expected, "sealed: {sealed}, {:?}", extents[number]);
        }
    }
}

/// R9: neither damage nor another operation gets into a segment, and the place is named.
#[test]
fn what_is_not_as_the_index_says_goes_into_no_segment() {
    for sealed in [true, false] {
        let (payload, places) = entry(1, 0, &[8, 64], sealed);
        let whole =
            |volume, (lba, sectors, place): Placed| PlannedExtent { volume, lba, parts: vec![(sectors, place)] };
        let extents = [whole(VOLUME, places[0]), whole(VolumeId(2), places[1])];
        let checked = fetched(&payload, &places, &extents).check().expect("good");
        let mut room = Vec::new();
        assert_eq!(checked.with(0, &mut room, <[u8]>::len).expect("good"), 8 * 512);
        let odd = checked.with(1, &mut room, <[u8]>::len).expect_err("another volume");
        assert_eq!(odd.place, places[1].2);
        let mut damaged = payload.to_vec();
        *damaged.last_mut().expect("bytes") ^= 1;
        let odd = fetched(&Bytes::from(damaged), &places, &extents[..1]).check().expect_err("damaged");
        assert_eq!(odd.place, places[1].2);
    }
}

/// What the only call for these extents of an entry has read.
fn call(payload: &Bytes, extents: &[PlannedExtent]) -> Call {
    let mut calls = in_reads(wanted(extents), FOR_UPLOAD);
    let Some(Reads { places, wants }) = calls.pop() else { panic!("no call") };
    assert!(calls.is_empty(), "several calls");
    let part = |at: &ReadPlace| payload.slice(at.offset as usize..at.offset as usize + at.len);
    let bytes: Vec<Bytes> = places.iter().map(part).collect();
    Call::new(&bytes, wants)
}

/// A few sectors may be left of each of very many large operations: a read of a client, or a batch of a checkpoint,
/// would else take thousands of times its size of memory.
#[test]
fn of_operations_that_are_hardly_used_no_more_is_kept_than_that() {
    for sealed in [true, false] {
        let (payload, places) = entry(1, 0, &[600, 8], sealed);
        let of = |sectors, (lba, _, place): Placed, skip: u32| PlannedExtent {
            volume: VOLUME,
            lba: Lba(lba.0 + u64::from(skip)),
            parts: vec![(Sectors(sectors), JournalRef { skip, ..place })],
        };
        let sparse = [of(8, places[0], 40), of(8, places[1], 0)];
        let expected = [data(0, 600).slice(40 * 512..48 * 512), data(600, 8)];
        let read = call(&payload, &sparse);
        for (at, piece) in read.pieces(&sparse).expect("good") {
            assert_eq!(piece, expected[at.extent], "sealed: {sealed}");
            assert!(!payload.as_ptr_range().contains(&piece.as_ptr()), "in memory of its own");
        }
        let mut fetched = Fetched::new(sparse.to_vec());
        fetched.add(read).expect("good");
        assert_eq!((fetched.operations.len(), fetched.cut.len()), (0, 2), "sealed: {sealed}");
        let (checked, mut room) = (fetched.check().expect("good"), Vec::new());
        for (number, expected) in expected.iter().enumerate() {
            assert!(checked.with(number, &mut room, <[u8]>::to_vec).expect("good") == *expected, "extent {number}");
        }
        // What is used as a whole is opened later, and where it was read.
        let dense = [of(256, places[0], 0), of(344, places[0], 256), of(8, places[1], 0)];
        let mut fetched = Fetched::new(dense.to_vec());
        fetched.add(call(&payload, &dense)).expect("good");
        assert_eq!((fetched.operations.len(), fetched.cut.len()), (2, 0), "sealed: {sealed}");
    }
}

/// One access where one is enough: a read of the journal reads whole chunks anyway.
#[test]
fn an_operation_near_its_header_is_one_place() {
    for (offset, places) in [(96, 1), (NEAR_BYTES, 1), (NEAR_BYTES + 32, 2)] {
        let mut reads = Reads::default();
        reads.add(LogIndex(1), offset, 544, Vec::new());
        assert_eq!(reads.places.len(), places, "at {offset}");
        reads.add(LogIndex(1), offset + 544, 544, Vec::new());
        assert_eq!(reads.places.len(), places + 1, "the header is there already");
    }
}

/// Data in clear is not copied by itself, and what was read for it may be nine times as long.
#[test]
fn a_small_piece_keeps_no_large_buffer() {
    let (payload, places) = entry(1, 0, &[1, 1, 1, 1, 1, 1, 1], false);
    let (lba, sectors, place) = places[6];
    let (offset, len) = place.byte_range();
    assert!(offset <= NEAR_BYTES, "read together with the header");
    let read = payload.slice(..offset as usize + len);
    let piece = read_piece(VOLUME, lba, sectors, &place, &read, &read.slice(offset as usize..)).expect("good");
    let within = |piece: &Bytes| read.as_ptr_range().contains(&piece.as_ptr());
    assert!(within(&piece), "a part of what was read");
    let own = alone(piece.clone(), &read);
    assert!(!within(&own) && own == piece, "in memory of its own");
    let whole = read.slice(100..);
    assert!(within(&alone(whole, &read)), "the greater part is not copied");
}

/// R9: of a failed call all places are read again, so that the bad one is found: they must all be remembered. And what
/// is read beside the operations counts.
#[test]
fn a_call_is_bounded_in_places_and_in_bytes() {
    // The smallest operations, each in an entry of its own: far from the header, and as far as is still near.
    for (offset, size) in [2 * NEAR_BYTES, NEAR_BYTES].into_iter().flat_map(|at| [(at, FOR_CLIENT), (at, FOR_UPLOAD)]) {
        let len = 544;
        let wanted: Wanted = (1..=600).map(|index| ((LogIndex(index), offset, len), Vec::new())).collect();
        let calls = in_reads(wanted, size);
        assert_eq!(calls.iter().map(|call| call.wants.len()).sum::<usize>(), 600);
        for Reads { places, .. } in calls {
            assert!(places.len() <= size.places, "{} places from {offset}", places.len());
            let bytes: usize = places.iter().map(|at| at.len).sum();
            assert!(bytes <= size.bytes + NEAR_BYTES as usize + len, "{bytes} bytes from {offset}");
        }
    }
}

/// Four writes of 128 KiB are one call of a checkpoint; a client's read of them is four, which run at once.
#[test]
fn large_operations_share_a_call_of_a_checkpoint() {
    for (size, calls) in [(FOR_UPLOAD, 2), (FOR_CLIENT, 8)] {
        let wanted: Wanted = (1..=8).map(|index| ((LogIndex(index), 96, (128 << 10) + 160), Vec::new())).collect();
        assert_eq!(in_reads(wanted, size).len(), calls);
    }
}
