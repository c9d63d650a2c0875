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
    let record = RecordHeader { kind: Kind::Entry, carried: false, group, id, len: 5, offset: 4096 };
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

#[test]
fn a_good_record_of_another_entry_is_corruption() {
    let header = FileHeader { file_uuid: 1, disk_uuid: 2, number: 1, boot: 1, bytes: 8192, key: None };
    let (group, id) = (GroupId(1), LogId::new(3, 9));
    let mut buf = AlignedBuf::zeroed(4096);
    let record = RecordHeader { kind: Kind::Entry, carried: false, group, id, len: 5, offset: 4096 };
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
