//! Codecs: round trips, detection of every flipped bit, and the pinned byte format.

use super::*;
use proptest::prelude::*;

const HEADER: FileHeader =
    FileHeader { file_uuid: 0x0123_4567_89ab_cdef, disk_uuid: 5, number: 3, boot: 9, bytes: 1 << 20, key: None };

fn record(kind: Kind, offset: u64, len: usize) -> RecordHeader {
    RecordHeader { kind, carried: false, group: GroupId(4), id: LogId::new(7, 1000), len: len as u32, given: 0, offset }
}

fn encoded(header: &RecordHeader, payload: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::default();
    header.append(HEADER.seed(), None, payload, &mut buf);
    buf
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13) as u8).collect()
}

/// The record, and whether its payload is valid.
fn decoded(bytes: &[u8], offset: u64) -> Option<(RecordHeader, Vec<u8>)> {
    let header = RecordHeader::decode(HEADER.seed(), bytes, offset).ok()?;
    let head_bytes = record_head_bytes(header.len as usize);
    let payload = bytes.get(head_bytes..head_bytes + header.len as usize)?;
    let good = payload
        .chunks(CHUNK_BYTES)
        .enumerate()
        .all(|(number, chunk)| header.check_chunk(HEADER.seed(), bytes, number, chunk).is_ok());
    good.then(|| (header, payload.to_vec()))
}

proptest! {
    #[test]
    fn records_come_back(kind in 1u8..=6, carried: bool, group: u64, term: u64, index in 0..u64::MAX, offset: u64, len in 0usize..70_000, given: prop::sample::Index) {
        let kind = Kind::from_byte(kind).expect("in range");
        let (id, given) = (LogId::new(term, index), given.index(len + 1) as u32);
        let header = RecordHeader { kind, carried, group: GroupId(group), id, len: len as u32, given, offset };
        let buf = encoded(&header, &payload(len));
        prop_assert_eq!(buf.len(), record_bytes(len));
        prop_assert_eq!(decoded(&buf, offset), Some((header, payload(len))));
        prop_assert_eq!(decoded(&buf, offset ^ 8), None, "misdirected");
    }

    #[test]
    fn any_bytes_decode_to_something_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..300), offset: u64) {
        let _ = decoded(&bytes, offset);
        let _ = BatchHeader::decode(HEADER.seed(), &bytes, offset, 1 << 20);
        let _ = FileHeader::decode(&bytes);
    }

    #[test]
    fn batch_headers_come_back(offset in 0u64..1000, blocks in 1u64..100, records: u32, idle: bool, synced in 0u64..1000) {
        let (offset, bytes) = (offset * 4096, blocks * 4096);
        let header = BatchHeader { offset, bytes, records, idle, synced: synced.min(offset), synced_before: synced, used: 64 + blocks };
        let mut head = [0xff; 100];
        header.encode_into(HEADER.seed(), &mut head);
        prop_assert_eq!(BatchHeader::decode(HEADER.seed(), &head, offset, offset + bytes), Some(header));
        prop_assert_eq!(BatchHeader::decode(HEADER.seed(), &head, offset, offset + bytes - 1), None, "beyond the file");
        let other = FileHeader { file_uuid: 1, ..HEADER };
        prop_assert_eq!(BatchHeader::decode(other.seed(), &head, offset, offset + bytes), None, "of a recycled file");
    }
}

#[test]
fn every_flipped_bit_of_a_record_is_noticed() {
    for len in [0, 1, 100, CHUNK_BYTES + 1] {
        let header = record(Kind::Entry, 8192, len);
        let buf = encoded(&header, &payload(len));
        let used = record_head_bytes(len) + len;
        for bit in (0..used * 8).filter(|bit| *bit < 200 * 8 || bit % 97 == 0) {
            let mut bad = buf.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decoded(&bad, 8192), None, "bit {bit} of {len} bytes");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_header_is_noticed() {
    let block = HEADER.encode();
    assert_eq!(FileHeader::decode(&block), Ok(HEADER));
    for bit in 0..block.len() * 8 {
        let mut bad = block.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(FileHeader::decode(&bad).is_err(), "bit {bit}");
    }
    assert!(FileHeader::decode(&block[..100]).is_err());
}

#[test]
fn chunks_of_two_records_cannot_stand_in_for_each_other() {
    let (one, two) =
        (encoded(&record(Kind::Entry, 0, 64), &[1; 64]), encoded(&record(Kind::Entry, 112 + 8, 64), &[1; 64]));
    let head = record_head_bytes(64);
    assert_eq!(one[head..head + 64], two[head..head + 64], "the same payload");
    assert_ne!(one[RECORD_HEADER_BYTES..head], two[RECORD_HEADER_BYTES..head], "and another checksum");
}

/// Replay counts on from an entry and a purge: an overflow would end the process at each start.
#[test]
fn a_record_with_no_index_behind_it_is_refused() {
    for kind in [Kind::Entry, Kind::Purge, Kind::Truncate] {
        let header = RecordHeader { id: LogId::new(7, u64::MAX), ..record(kind, 4096, 10) };
        let (found, _) =
            RecordHeader::decode(HEADER.seed(), &encoded(&header, &payload(10)), 4096).expect_err("refused");
        assert!(found.contains("log index"), "{found}");
    }
}

/// Changing any of these needs a new version and a reader for the old one.
#[test]
fn the_bytes_are_pinned() {
    let hash = |bytes: &[u8]| crc32c::crc32c(bytes);
    let mut batch = [0; BATCH_HEADER_BYTES];
    let header =
        BatchHeader { offset: 4096, bytes: 8192, records: 2, idle: false, synced: 4096, synced_before: 77, used: 5000 };
    header.encode_into(HEADER.seed(), &mut batch);
    let mut sealed = AlignedBuf::default();
    let key = holdfast_seal::NodeKey::from_bytes([3; 32]).file(HEADER.file_uuid);
    record(Kind::Entry, 4160, 20_000).append(HEADER.seed(), Some(&key), &payload(20_000), &mut sealed);
    let mut given = AlignedBuf::default();
    let header = RecordHeader { given: 19_900, ..record(Kind::Entry, 4160, 20_000) };
    header.append(HEADER.seed(), Some(&key), &payload(20_000), &mut given);
    let found = [
        hash(&HEADER.encode()),
        hash(&batch),
        hash(&encoded(&record(Kind::Entry, 4160, 20_000), &payload(20_000))),
        hash(&encoded(&record(Kind::Purge, 64, 0), &[])),
        hash(&sealed),
        hash(&given),
    ];
    let expected = ["524aabe0", "85f952f6", "82f267fe", "5ff6fc11", "b90d06c4", "4e7ceb39"];
    assert_eq!(found.map(|hash| format!("{hash:08x}")), expected);
}
