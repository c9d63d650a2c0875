//! A group whose log on this member cannot be trusted any more. It is kept out until its leader has removed this member
//! from the group, and is then let in again as a newcomer (R9, docs/adr/0011-healing.md). Owns the note about it on
//! disk, and the checks that find the damage.
//!
//! ```text
//!   damage found ──▶ Out{record} ──▶ the leader commits a membership without us ──▶ snapshot and log dropped
//!                      │ no start, no vote, no answer                                      │
//!                      └──────────────── again at every start ◀── crash ───────────────────┤
//!                                                                                          ▼
//!                          note gone ◀── voter again ◀── started, empty, learns ◀── Rejoining{since}
//! ```
//!
//! QUARANTINE-Q1  While the note says `Out`, the group is not started here: it does not vote, acknowledge or serve.
//! QUARANTINE-Q2  The note is durable before anything is dropped: an emptied log without a note would pass for a
//!     healthy new one.
//! QUARANTINE-Q3  Log and snapshot are dropped only after a membership without this member was committed (`since`). Any
//!     quorum of the membership before it, without this member, still meets the quorum that committed it.
//! QUARANTINE-Q4  While `Rejoining`, this member gives no vote to a candidate whose log ends before `since`, and takes
//!     nothing from a leader of an earlier term. Its own log is valid but empty. A member that was left behind in a
//!     much older membership (it was away while others were replaced) could be elected with such a vote, or go on
//!     leading. A legitimate leader has `since`, because it was committed. For the same reason this member stands for
//!     no election before its own log has `since`: on the way there its newest membership is one of long ago.
//! QUARANTINE-Q5  If the journal has lost records and cannot tell whose, a group that it does not know may be among
//!     them, and is damaged. Only a group that is younger than this process is not: no earlier process of this disk can
//!     have had a vote or an entry of it, and the records were lost before this process began. The proof is group 0's
//!     order (`gateway/src/node/younger.rs`). Such a group begins with its drop in the journal, durable before the
//!     group starts: the next start finds the same loss, and sees that everything of the group is behind it. No other
//!     reason for damage is set aside, and no note.

use crate::note_file::{self, Magic};
use bytes::Bytes;
use holdfast_log::{CorruptRecord, GroupLogState};
use holdfast_types::{GroupId, LogId};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const MAGIC: &Magic = b"HFQUARA1";

/// The damage, and the stage of the healing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quarantine {
    pub(crate) record: CorruptRecord,
    pub(crate) stage: Stage,
}

/// The stage of the healing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// QUARANTINE-Q1.
    Out,
    /// QUARANTINE-Q3, QUARANTINE-Q4.
    Rejoining {
        /// The entry of the membership without this member.
        since: LogId,
    },
}

/// A group that is being healed, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Healing {
    /// The group.
    pub group: GroupId,
    /// The damage.
    pub record: CorruptRecord,
    /// The entry of the membership without this member, once there is one: the group learns again.
    pub since: Option<LogId>,
}

#[derive(Serialize, Deserialize)]
struct Image {
    group: u64,
    stage: Stage,
    file: String,
    offset: u64,
    expected: String,
    found: String,
}

fn path(dir: &Path, group: GroupId) -> PathBuf {
    dir.join(format!("group-{}.quarantine", group.0))
}

/// Makes the note durable; a crash leaves the old or the new one.
pub(crate) fn save(dir: &Path, group: GroupId, note: &Quarantine) -> io::Result<()> {
    let record = note.record.clone();
    let image = Image {
        group: group.0,
        stage: note.stage,
        file: record.file,
        offset: record.offset,
        expected: record.expected,
        found: record.found,
    };
    note_file::replace(&path(dir, group), MAGIC, &postcard::to_stdvec(&image).map_err(io::Error::other)?)
}

/// The note of `group`, if there is one. A note that cannot be read means `Out`: it was written for a reason.
///
/// # Errors
/// An error of the disk.
pub(crate) fn load(dir: &Path, group: GroupId) -> io::Result<Option<Quarantine>> {
    let path = path(dir, group);
    let Some(bytes) = note_file::read(&path)? else { return Ok(None) };
    Ok(Some(decode(group, &bytes).unwrap_or_else(|found| Quarantine {
        record: CorruptRecord {
            file: path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            offset: 0,
            expected: "a whole note of quarantine".to_string(),
            found,
        },
        stage: Stage::Out,
    })))
}

/// Reads the bytes of a note.
pub(crate) fn decode(group: GroupId, bytes: &[u8]) -> Result<Quarantine, String> {
    let body = note_file::body(bytes, MAGIC)?;
    let image: Image = postcard::from_bytes(body).map_err(|e| e.to_string())?;
    if image.group != group.0 {
        return Err(format!("the note of group {}", image.group));
    }
    let Image { stage, file, offset, expected, found, .. } = image;
    Ok(Quarantine { record: CorruptRecord { file, offset, expected, found }, stage })
}

/// Removes the note.
pub(crate) fn clear(dir: &Path, group: GroupId) -> io::Result<()> {
    note_file::remove(&path(dir, group))
}

/// Whether nothing is known of the group but that the journal has lost records of unknown groups (QUARANTINE-Q5).
pub(crate) fn only_unknown(state: &GroupLogState) -> bool {
    let empty = state.vote.is_none() && state.last.is_none() && state.purged.is_none();
    state.damaged.is_some() && state.unknown && empty
}

/// Whether journal and snapshot of a group can be complete. Recovery reports bad records; this finds what is missing
/// without a trace: a missing oldest file, or a missing snapshot whose entries were purged. `vote`: whether the vote
/// decodes; the journal does not know its meaning.
pub(crate) fn unsound(
    group: GroupId,
    state: &GroupLogState,
    snapshot: Option<LogId>,
    vote: impl FnOnce(&Bytes) -> bool,
) -> Option<CorruptRecord> {
    let bad = |expected: String, found: String| {
        Some(CorruptRecord { file: format!("(log of group {})", group.0), offset: 0, expected, found })
    };
    if let Some(record) = &state.damaged {
        holdfast_reached::reached!("quarantine: the journal reports a damaged group");
        return Some(record.clone());
    }
    if let Some(purged) = state.purged.filter(|purged| snapshot.is_none_or(|s| s.index < purged.index)) {
        let found = snapshot.map_or("none".to_string(), |s| format!("one at {s}"));
        holdfast_reached::reached!("quarantine: entries are purged and the snapshot is gone");
        return bad(format!("a snapshot that covers what was purged, {purged}"), found);
    }
    // Entry 0 is the group's first membership, at every member: a log that begins later was purged.
    if let Some(first) = state.first.filter(|first| state.purged.is_none() && first.0 > 0) {
        holdfast_reached::reached!("quarantine: a log begins late without a purge");
        return bad("entry 0, or a purge".to_string(), format!("entry {} as the first", first.0));
    }
    match &state.vote {
        // A vote is saved before the first entry or snapshot is accepted. If the whole journal is gone, only the
        // snapshot shows that there was one.
        None if state.last.max(snapshot).is_some_and(|last| last.index.0 > 0) => {
            holdfast_reached::reached!("quarantine: entries without a vote");
            bad("the vote under which the entries were taken".to_string(), "none".to_string())
        }
        Some(bytes) if !vote(bytes) => bad("a vote".to_string(), format!("{} bytes that are none", bytes.len())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testkit::golden::{Written, kept};
    use holdfast_types::LogIndex;

    fn record() -> CorruptRecord {
        CorruptRecord { file: "7".into(), offset: 4096, expected: "crc 1".into(), found: "crc 2".into() }
    }

    /// Disks have notes of earlier releases (docs/formats.md).
    #[test]
    fn notes_of_each_release_are_read() {
        let (dir, group) = (tempfile::tempdir().expect("a folder"), GroupId(7));
        let note = Quarantine { record: record(), stage: Stage::Rejoining { since: LogId::new(3, 400) } };
        save(dir.path(), group, &note).expect("saved");
        let written = std::fs::read(path(dir.path(), group)).expect("there");
        kept(env!("CARGO_MANIFEST_DIR"), "quarantine", Written::Pinned(&written), &Ok(note), |bytes| {
            decode(group, bytes)
        });
    }

    #[test]
    fn a_note_comes_back_and_a_bad_one_means_out() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let group = GroupId(5);
        assert_eq!(load(dir.path(), group)?, None);
        let note = Quarantine { record: record(), stage: Stage::Rejoining { since: LogId::new(3, 77) } };
        save(dir.path(), group, &note)?;
        assert_eq!(load(dir.path(), group)?.as_ref(), Some(&note));
        assert_eq!(load(dir.path(), GroupId(6))?, None);
        let file = path(dir.path(), group);
        let good = std::fs::read(&file)?;
        assert_eq!(good, b"HFQUARA1\x9c\xe4\xfbK\x05\x01\x03M\x017\x80\x20\x05crc 1\x05crc 2", "docs/formats.md");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&file, &bad)?;
            let back = load(dir.path(), group)?.expect("there");
            assert_eq!(back.stage, Stage::Out, "QUARANTINE-Q1: byte {at} flipped lets the group start");
        }
        std::fs::write(&file, b"")?;
        assert_eq!(load(dir.path(), group)?.map(|q| q.stage), Some(Stage::Out));
        clear(dir.path(), group)?;
        clear(dir.path(), group)?;
        assert_eq!(load(dir.path(), group)?, None);
        Ok(())
    }

    /// QUARANTINE-Q5: a bad vote, or a log of which a part is there, is damage at any age of the group.
    #[test]
    fn q5_only_a_group_that_the_journal_does_not_know_can_be_younger() {
        let unknown = GroupLogState { damaged: Some(record()), unknown: true, ..GroupLogState::default() };
        assert!(only_unknown(&unknown));
        assert!(!only_unknown(&GroupLogState::default()), "nothing is damaged");
        assert!(!only_unknown(&GroupLogState { unknown: false, ..unknown.clone() }), "the journal knows it");
        assert!(!only_unknown(&GroupLogState { last: Some(LogId::new(1, 0)), ..unknown.clone() }));
        assert!(!only_unknown(&GroupLogState { purged: Some(LogId::new(1, 4)), ..unknown.clone() }));
        assert!(!only_unknown(&GroupLogState { vote: Some(Bytes::from_static(b"v")), ..unknown }));
    }

    #[test]
    fn what_is_missing_without_a_trace_is_found() {
        let id = |index| LogId::new(2, index);
        let sound =
            |state: &GroupLogState, snapshot: Option<LogId>| unsound(GroupId(1), state, snapshot, |v| !v.is_empty());
        let new = GroupLogState::default();
        assert_eq!(sound(&new, None), None, "a new group");
        let vote = Some(Bytes::from_static(b"v"));
        let whole = GroupLogState { vote, last: Some(id(9)), first: Some(LogIndex(0)), ..GroupLogState::default() };
        assert_eq!(sound(&whole, None), None);
        let damaged = GroupLogState { damaged: Some(record()), ..whole.clone() };
        assert_eq!(sound(&damaged, None), Some(record()));
        let headless = GroupLogState { first: Some(LogIndex(4)), ..whole.clone() };
        assert!(sound(&headless, None).is_some(), "the oldest file is gone");
        let voteless = GroupLogState { vote: None, ..whole.clone() };
        assert!(sound(&voteless, None).is_some(), "the vote is gone");
        let fresh = GroupLogState { vote: None, last: Some(id(0)), ..GroupLogState::default() };
        assert_eq!(sound(&fresh, None), None, "initialised, and nothing more");
        assert!(sound(&new, Some(id(8))).is_some(), "all of the journal is gone");
        assert_eq!(sound(&new, Some(id(0))), None, "the first membership, and nothing more");
        let odd = GroupLogState { vote: Some(Bytes::new()), ..whole.clone() };
        assert!(sound(&odd, None).is_some());
        let purged = GroupLogState { purged: Some(id(5)), first: Some(LogIndex(6)), ..whole };
        assert_eq!(sound(&purged, Some(id(5))), None);
        assert_eq!(sound(&purged, Some(id(8))), None);
        assert!(sound(&purged, None).is_some(), "the snapshot is gone");
        assert!(sound(&purged, Some(id(4))).is_some(), "the snapshot is an older one");
    }
}
