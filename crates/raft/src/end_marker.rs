//! The note on disk that keeps an ended group from ever starting again. See `end_group`.

use crate::note_file::{self, Magic};
use holdfast_types::{GroupId, LogId, MemberId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const MAGIC: &Magic = b"HFENDED1";

/// What a member that has ended a group knows about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The newest membership entry in its log, and its voters: one set, or two in a joint membership. An empty set:
    /// those up to that entry are lost. `None`: there was no such entry.
    pub voters: Option<(LogId, Vec<BTreeSet<MemberId>>)>,
}

impl Ended {
    /// What a member reports that may have agreed to any voters up to entry `at`, and does not know which.
    pub(crate) fn unknown_up_to(at: LogId) -> Self {
        Self { voters: Some((at, vec![BTreeSet::new()])) }
    }

    /// Like `unknown_up_to`, up to any entry.
    pub(crate) fn unknown() -> Self {
        Self::unknown_up_to(LogId::new(u64::MAX, u64::MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    Ending,
    Ended,
}

#[derive(Serialize, Deserialize)]
struct Image {
    group: u64,
    stage: Stage,
    voters: Option<(LogId, Vec<BTreeSet<MemberId>>)>,
}

fn path(dir: &Path, group: GroupId) -> PathBuf {
    dir.join(format!("group-{}.ended", group.0))
}

/// Makes the note durable.
pub(crate) fn save(dir: &Path, group: GroupId, stage: Stage, ended: &Ended) -> io::Result<()> {
    let image = Image { group: group.0, stage, voters: ended.voters.clone() };
    note_file::replace(&path(dir, group), MAGIC, &postcard::to_stdvec(&image).map_err(io::Error::other)?)
}

/// The note of `group`. A note that cannot be read means `Ending`: it was written for a reason, and ending the group
/// again does no harm. The voters that it had are unknown: the log that named them may be gone.
pub(crate) fn load(dir: &Path, group: GroupId) -> io::Result<Option<(Stage, Ended)>> {
    let Some(bytes) = note_file::read(&path(dir, group))? else { return Ok(None) };
    Ok(Some(decode(group, &bytes)))
}

/// Reads the bytes of a note.
pub(crate) fn decode(group: GroupId, bytes: &[u8]) -> (Stage, Ended) {
    let image = note_file::body(bytes, MAGIC).ok().and_then(|body| postcard::from_bytes::<Image>(body).ok());
    let image = image.filter(|image| image.group == group.0);
    image.map_or_else(|| (Stage::Ending, Ended::unknown()), |image| (image.stage, Ended { voters: image.voters }))
}

/// Whether `group` may not be started in `dir` any more.
pub(crate) fn is_over(dir: &Path, group: GroupId) -> io::Result<bool> {
    load(dir, group).map(|note| note.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testkit::golden::{Written, kept};

    /// Disks have notes of earlier releases (docs/formats.md).
    #[test]
    fn notes_of_each_release_are_read() {
        let (dir, group) = (tempfile::tempdir().expect("a folder"), GroupId(7));
        let voters = vec![BTreeSet::from([MemberId(1), MemberId(2)]), BTreeSet::from([MemberId(300)])];
        let ended = Ended { voters: Some((LogId::new(3, 400), voters)) };
        save(dir.path(), group, Stage::Ended, &ended).expect("saved");
        let written = std::fs::read(path(dir.path(), group)).expect("there");
        let expected = (Stage::Ended, ended);
        kept(env!("CARGO_MANIFEST_DIR"), "ended", Written::Pinned(&written), &expected, |bytes| decode(group, bytes));
    }

    #[test]
    fn a_note_comes_back_and_a_bad_one_ends_the_group_all_the_same() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let group = GroupId(5);
        assert!(!is_over(dir.path(), group)?);
        let voters = vec![BTreeSet::from([MemberId(1), MemberId(2)])];
        let ended = Ended { voters: Some((LogId::new(3, 77), voters)) };
        save(dir.path(), group, Stage::Ended, &ended)?;
        assert_eq!(load(dir.path(), group)?, Some((Stage::Ended, ended)));
        assert!(is_over(dir.path(), group)? && !is_over(dir.path(), GroupId(6))?);
        let good = std::fs::read(path(dir.path(), group))?;
        assert_eq!(good, b"HFENDED1\xfbFF\xce\x05\x01\x01\x03M\x01\x02\x01\x02", "docs/formats.md");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(path(dir.path(), group), &bad)?;
            let expected = Some((Stage::Ending, Ended::unknown()));
            assert_eq!(load(dir.path(), group)?, expected, "END-E1, END-E3: byte {at} flipped");
            assert!(is_over(dir.path(), group)?);
        }
        Ok(())
    }
}
