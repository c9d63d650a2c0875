//! JOURNAL-J7: a place with another record, however valid, is not served.

use super::*;
use crate::format::FileHeader;
use crate::{AlignedBuf, DiskFile};
use std::io;

struct Fixed(Vec<u8>);

impl DiskFile for Fixed {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset as usize..offset as usize + buf.len();
        buf.copy_from_slice(self.0.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn write_at(&self, _data: &AlignedBuf, _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

#[test]
fn a_whole_chunk_that_was_not_sealed_here_is_corruption() {
    let (group, id) = (GroupId(1), LogId::new(3, 9));
    let key = |byte| holdfast_seal::NodeKey::from_bytes([byte; 32]);
    let header =
        FileHeader { file_uuid: 1, disk_uuid: 2, number: 1, boot: 1, bytes: 8192, key: Some(key(1).fingerprint()) };
    let mut buf = AlignedBuf::zeroed(4096);
    let record = RecordHeader { kind: Kind::Entry, carried: false, group, id, len: 5, given: 0, offset: 4096 };
    record.append(header.seed(), Some(&key(1).file(1)), b"hello", &mut buf);
    buf.pad_to(BLOCK_BYTES);
    assert!(!buf.windows(5).any(|window| window == b"hello"), "readable");
    let place = Place { file: 1, offset: 4096 };
    let read = |key| {
        let file = Fixed(buf.to_vec());
        let file = JournalFile {
            number: 1,
            name: "f".to_string(),
            seed: header.seed(),
            key,
            bytes: 8192,
            file: Box::new(file),
        };
        read_record(&file, place, Kind::Entry, group, id, 5)
    };
    assert_eq!(read(Some(key(1).file(1))).expect("good"), "hello");
    for other in [key(2).file(1), key(1).file(2)] {
        let served = read(Some(other));
        assert!(matches!(&served, Err(ReadError::Corrupt(bad)) if bad.found.contains("not authentic")), "{served:?}");
    }
}

/// JOURNAL-J9: what came sealed is stored as it came, and nobody without the key can say that more of it did. Else a
/// forger could put data in clear there, and it would be served.
#[test]
fn what_came_sealed_is_kept_and_where_it_begins_is_vouched_for() {
    let (group, id, key) = (GroupId(1), LogId::new(3, 9), holdfast_seal::NodeKey::from_bytes([1; 32]).file(1));
    let seed = FileHeader { file_uuid: 1, disk_uuid: 2, number: 1, boot: 1, bytes: 1 << 20, key: None }.seed();
    let (len, front) = (40_000, 96);
    let payload: Vec<u8> = (0..len).map(|at| (at * 13) as u8).collect();
    let record = |given| {
        let header =
            RecordHeader { kind: Kind::Entry, carried: false, group, id, len: len as u32, given, offset: 4096 };
        let mut buf = AlignedBuf::zeroed(4096);
        header.append(seed, Some(&key), &payload, &mut buf);
        buf.pad_to(BLOCK_BYTES);
        buf.to_vec()
    };
    let read = |bytes: &[u8], range| {
        let file = JournalFile {
            number: 1,
            name: "f".to_string(),
            seed,
            key: Some(key.clone()),
            bytes: 1 << 20,
            file: Box::new(Fixed(bytes.to_vec())),
        };
        read_range(&file, Place { file: 1, offset: 4096 }, Kind::Entry, group, id, len as u32, range)
    };
    let at = 4096 + record_head_bytes(len);
    let ranges = [0..len, 0..72, 96..400, 16_000..17_000, 33_000..33_100, 39_999..len];
    // No front, less than a chunk, a whole one, more, all.
    for front in [0, front, CHUNK_BYTES, 20_000, len] {
        let good = record((len - front) as u32);
        assert!(front == 0 || good[at..at + front] != payload[..front], "the front of {front} bytes is sealed");
        assert_eq!(good[at + front..at + len], payload[front..], "what is behind {front} bytes is as it came");
        for range in ranges.clone() {
            assert_eq!(read(&good, range.clone()).expect("good"), payload[range]);
        }
    }
    let good = record((len - front) as u32);
    // Another word for what came sealed, with checksums that fit: the tags of a record that was sealed as a whole, or
    // of this one, do not go with it.
    for (mut forged, given) in [(good.clone(), len), (good.clone(), 0), (record(0), len), (record(0), len - front)] {
        let head_bytes = record_head_bytes(len);
        forged[4096 + 36..4096 + 40].copy_from_slice(&(given as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&1_u128.to_le_bytes()), &forged[4100..4096 + head_bytes]);
        forged[4096..4100].copy_from_slice(&crc.to_le_bytes());
        for range in ranges.clone() {
            let served = read(&forged, range.clone());
            let refused = matches!(&served, Err(ReadError::Corrupt(bad)) if bad.found.contains("not authentic"));
            assert!(refused, "{range:?} of {given} given: {served:?}");
        }
    }
}

/// A read is charged by its length. A large one is not copied, and a small one keeps no large buffer.
#[test]
fn what_is_cut_from_a_buffer_keeps_little_more_than_its_length() {
    let shared = |range: Range<usize>| {
        let skip = 100;
        let mut buf = POOL.take(4 * BLOCK_BYTES);
        buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + at / 256) as u8);
        let expected = buf[skip + range.start..skip + range.end].to_vec();
        let memory = buf.as_ptr_range();
        let bytes = Span { buf, skip, len: 4 * BLOCK_BYTES - skip }.cut(range);
        assert_eq!(bytes, expected);
        memory.contains(&bytes.as_ptr())
    };
    assert!(shared(0..3 * BLOCK_BYTES) && shared(BLOCK_BYTES - 100..4 * BLOCK_BYTES - 100));
    assert!(!shared(0..3 * BLOCK_BYTES - 1) && !shared(5..6));
}

#[test]
fn a_good_record_of_another_entry_is_corruption() {
    let header = FileHeader { file_uuid: 1, disk_uuid: 2, number: 1, boot: 1, bytes: 8192, key: None };
    let (group, id) = (GroupId(1), LogId::new(3, 9));
    let mut buf = AlignedBuf::zeroed(4096);
    let record = RecordHeader { kind: Kind::Entry, carried: false, group, id, len: 5, given: 0, offset: 4096 };
    record.append(header.seed(), None, b"hello", &mut buf);
    buf.pad_to(BLOCK_BYTES);
    let file = Fixed(buf.to_vec());
    let file = JournalFile {
        number: 1,
        name: "f".to_string(),
        seed: header.seed(),
        key: None,
        bytes: 8192,
        file: Box::new(file),
    };
    let place = Place { file: 1, offset: 4096 };
    let read = |kind, group, id, len| read_record(&file, place, kind, group, id, len);
    assert_eq!(read(Kind::Entry, group, id, 5).expect("good"), "hello");
    for (kind, group, id, len) in [
        (Kind::Vote, group, id, 5),
        (Kind::Entry, GroupId(2), id, 5),
        (Kind::Entry, group, LogId::new(4, 9), 5),
        (Kind::Entry, group, LogId::new(3, 8), 5),
        (Kind::Entry, group, id, 4),
        (Kind::Entry, group, id, 4000),
    ] {
        let served = read(kind, group, id, len);
        assert!(matches!(served, Err(ReadError::Corrupt(_))), "{kind:?} {group} {id} {len}: {served:?}");
    }
}

/// JOURNAL-J5 promises that it never happens: who asks must get an answer all the same.
#[test]
fn an_entry_whose_file_is_gone_is_corruption() {
    let (catalog, group, mut ledger) = (Catalog::default(), GroupId(1), crate::index::Ledger::default());
    let index = catalog.index(group);
    let entry = crate::index::Change::Entry { id: LogId::new(3, 9), len: 5 };
    let place = Place { file: 7, offset: 4096 };
    index.locked().apply(group, &entry, place, &mut ledger).expect("applies");
    let name = crate::catalog::file_name(7);
    let gone = |read: Result<(), ReadError>| match read {
        Err(ReadError::Corrupt(bad)) => (bad.file, bad.offset),
        other => panic!("{other:?}"),
    };
    assert_eq!(gone(read_entry(&catalog, group, &index, 9).map(drop)), (name.clone(), 4096));
    assert_eq!(gone(read_part(&catalog, group, &index, 9, 0, 1).map(drop)), (name.clone(), 4096));
    assert_eq!(gone(read_entries(&catalog, group, &index, 9..10, 100).map(drop)), (name, 4096));
}
