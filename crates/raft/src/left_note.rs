//! The note on disk that this member has left a group, and may come back to it. See `leave`.

use crate::note_file::{self, Magic};
use holdfast_types::{GroupId, LogId, MemberId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

const MAGIC: &Magic = b"HFLEFT01";

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Snapshot and log are to be dropped; some of them may be gone.
    Going,
    /// They were dropped. What is there now is of after the return.
    Gone,
}

/// What a member knows of a group that it has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Left {
    pub(crate) group: GroupId,
    pub(crate) stage: Stage,
    /// The entry of a committed membership without this member.
    pub(crate) since: LogId,
    /// Its voters: one set, or two during a change of voters.
    pub(crate) voters: Vec<BTreeSet<MemberId>>,
}

fn path(dir: &Path, group: GroupId) -> PathBuf {
    dir.join(format!("group-{}.left", group.0))
}

/// Makes the note durable; a crash leaves the old or the new one.
pub(crate) fn save(dir: &Path, note: &Left) -> io::Result<()> {
    note_file::replace(&path(dir, note.group), MAGIC, &postcard::to_stdvec(note).map_err(io::Error::other)?)
}

/// The note of `group`, if there is one; the inner error says what was found in its place.
///
/// # Errors
/// An error of the disk.
pub(crate) fn load(dir: &Path, group: GroupId) -> io::Result<Option<Result<Left, String>>> {
    let Some(bytes) = note_file::read(&path(dir, group))? else { return Ok(None) };
    let note = note_file::body(&bytes, MAGIC)
        .and_then(|body| postcard::from_bytes::<Left>(body).map_err(|e| e.to_string()))
        .and_then(|note| if note.group == group { Ok(note) } else { Err(format!("the note of group {}", note.group)) });
    Ok(Some(note))
}

/// Removes the note.
pub(crate) fn clear(dir: &Path, group: GroupId) -> io::Result<()> {
    note_file::remove(&path(dir, group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testkit::golden::{Written, kept};

    /// Disks have notes of earlier releases (docs/formats.md).
    #[test]
    fn notes_of_each_release_are_read() {
        let (dir, group) = (tempfile::tempdir().expect("a folder"), GroupId(7));
        let voters = vec![BTreeSet::from([MemberId(1), MemberId(300)])];
        let note = Left { group, stage: Stage::Gone, since: LogId::new(3, 400), voters };
        save(dir.path(), &note).expect("saved");
        let path = path(dir.path(), group);
        let written = std::fs::read(&path).expect("there");
        kept(env!("CARGO_MANIFEST_DIR"), "left", Written::Pinned(&written), &Some(note), |bytes| {
            std::fs::write(&path, bytes).ok()?;
            load(dir.path(), group).ok()??.ok()
        });
    }

    #[test]
    fn a_note_comes_back_and_a_bad_one_is_not_taken_for_none() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let group = GroupId(5);
        assert_eq!(load(dir.path(), group)?, None);
        let voters = vec![BTreeSet::from([MemberId(1), MemberId(2)])];
        let note = Left { group, stage: Stage::Going, since: LogId::new(3, 77), voters };
        save(dir.path(), &note)?;
        assert_eq!(load(dir.path(), group)?, Some(Ok(note)));
        assert_eq!(load(dir.path(), GroupId(6))?, None);
        let good = std::fs::read(path(dir.path(), group))?;
        assert_eq!(good, b"HFLEFT01\x0c&d\x9a\x05\x00\x03M\x01\x02\x01\x02", "docs/formats.md");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(path(dir.path(), group), &bad)?;
            assert!(matches!(load(dir.path(), group)?, Some(Err(_))), "byte {at} flipped");
        }
        clear(dir.path(), group)?;
        assert_eq!(load(dir.path(), group)?, None);
        Ok(())
    }
}
