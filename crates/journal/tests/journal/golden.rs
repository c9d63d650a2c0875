//! Journal files as releases have written them, in clear and sealed.

use crate::common::{Model, PARAMS, open_with, sealing, write};
use bytes::Bytes;
use holdfast_journal::{Disk as _, Op};
use holdfast_testkit::golden::{Written, kept};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId};

/// The first file of a journal.
const FILE: &str = "journal-0000000000000001";

/// Each kind of record.
fn ops() -> Vec<Op> {
    let (one, two) = (GroupId(1), GroupId(2));
    let entry = |group, term, index, len: usize| {
        let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
        Op::Entry { group, id: LogId::new(term, index), payload: payload.into() }
    };
    vec![
        entry(one, 1, 1, 0),
        entry(one, 1, 2, 300),
        entry(one, 1, 3, 9_000),
        Op::Vote { group: one, payload: Bytes::from_static(b"a vote") },
        Op::Truncate { group: one, from: 3 },
        entry(one, 2, 3, 40),
        Op::Committed { group: one, id: LogId::new(1, 2) },
        Op::Purge { group: one, upto: LogId::new(1, 1) },
        entry(two, 1, 1, 10),
        Op::DropGroup { group: two },
        entry(two, 3, 7, 10),
    ]
}

/// The used part of the first file, once all of it is known to be synced.
fn written(sealed: bool) -> Vec<u8> {
    let disk = SimDisk::new();
    let (mut journal, _) = open_with(&disk, 1, Some(sealing(9, sealed))).unwrap();
    assert!(write(&mut journal, &mut ops().into()));
    journal.finish().unwrap();
    let mut bytes = disk.crashed(Survives::Everything).contents(FILE).expect("the first file");
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bytes
}

/// What a journal of this file has. `Err`: not all of it reads.
fn read(bytes: &[u8]) -> Result<Model, String> {
    let disk = SimDisk::new();
    disk.create(FILE, PARAMS.file_bytes).map_err(|error| error.to_string())?;
    disk.damage(FILE, |file| file[..bytes.len()].copy_from_slice(bytes));
    let (journal, report) = open_with(&disk, 2, Some(sealing(9, true))).map_err(|error| error.to_string())?;
    if !(report.damaged.is_empty() && report.corrupt.is_empty() && report.cuts.is_empty()) {
        return Err(format!("{report:?}"));
    }
    Model::of(&journal)
}

#[test]
fn files_of_each_release_are_read() {
    let mut model = Model::default();
    ops().iter().for_each(|op| model.apply(op));
    let expected = Ok(model);
    for (name, sealed) in [("journal-clear", false), ("journal-sealed", true)] {
        let written = written(sealed);
        assert_eq!(read(&written), expected, "{name}: as it is written now");
        kept(env!("CARGO_MANIFEST_DIR"), name, Written::Pinned(&written), &expected, read);
    }
}
