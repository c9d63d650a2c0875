//! The newest snapshot of a group's replicated state, on local disk: small, since data is in the store.
//!
//! ```text
//!   magic "HFRSNAP1" | crc32c of the rest u32 LE | postcard of `Image`
//!   magic "HFRSNAP2" | crc32c of the rest u32 LE | fingerprint of the node key u64 | file uuid u128 | tag, 16 bytes | the same, encrypted
//! ```
//! The state of a set names its lease's token, which is as good as the lease: it is sealed like the journal (R10).
//! Written beside, synced, renamed, directory synced: openraft purges entries only after that.

use crate::note_file::{self, Magic};
use crate::wire::{
    RaftSnapshotMeta, RaftStoredMembership, id_from_raft, id_to_raft, membership_from_bytes, membership_to_bytes,
};
use bytes::Bytes;
use holdfast_log::Sealing;
use holdfast_types::{GroupId, LogId};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const MAGIC: &Magic = b"HFRSNAP1";
const SEALED_MAGIC: &Magic = b"HFRSNAP2";
/// The first bytes of every version's magic.
const ANY_MAGIC: &[u8] = b"HFRSNAP";
/// Fingerprint, uuid and tag in front of a sealed image.
const SEALED_HEAD_BYTES: usize = 8 + 16 + 16;

#[derive(Serialize, Deserialize)]
struct Image {
    group: u64,
    last: LogId,
    membership_id: Option<LogId>,
    membership: Vec<u8>,
    data: Vec<u8>,
}

/// A snapshot with its metadata for openraft.
#[derive(Clone, Debug)]
pub(crate) struct StoredSnapshot {
    pub(crate) meta: RaftSnapshotMeta,
    pub(crate) data: Bytes,
}

impl StoredSnapshot {
    pub(crate) fn new(last: LogId, membership: RaftStoredMembership, data: Bytes) -> Self {
        Self { meta: RaftSnapshotMeta { last_log_id: Some(id_to_raft(last)), last_membership: membership }, data }
    }

    pub(crate) fn last(&self) -> Option<LogId> {
        self.meta.last_log_id.as_ref().map(id_from_raft)
    }
}

fn path(dir: &Path, group: GroupId) -> PathBuf {
    dir.join(format!("group-{}.snapshot", group.0))
}

fn invalid(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

/// What a file says about `snapshot`, before it is sealed. `target` is for the error's text.
pub(crate) fn encode(target: &Path, group: GroupId, snapshot: &StoredSnapshot) -> io::Result<Vec<u8>> {
    let last = snapshot.last().ok_or_else(|| invalid(target, "a snapshot without a log id"))?;
    let membership = &snapshot.meta.last_membership;
    let image = Image {
        group: group.0,
        last,
        membership_id: membership.log_id().as_ref().map(id_from_raft),
        membership: membership_to_bytes(membership.membership()).to_vec(),
        data: snapshot.data.to_vec(),
    };
    postcard::to_stdvec(&image).map_err(|e| invalid(target, e))
}

/// Writes `snapshot` so that after a crash either the old or the new one is intact.
pub(crate) fn save(dir: &Path, group: GroupId, snapshot: &StoredSnapshot, sealing: Option<&Sealing>) -> io::Result<()> {
    let target = path(dir, group);
    let body = encode(&target, group, snapshot)?;
    let (magic, body) = match sealing.filter(|sealing| sealing.new_files) {
        Some(sealing) => (SEALED_MAGIC, seal(sealing, body)),
        None => (MAGIC, body),
    };
    note_file::replace(&target, magic, &body)
}

/// Each file has a uuid of its own, so one nonce per key is enough.
fn seal(sealing: &Sealing, mut body: Vec<u8>) -> Vec<u8> {
    let uuid = rand::random::<u128>();
    let tag = sealing.key.file(uuid).seal(0, 0, SEALED_MAGIC, &mut body);
    let mut out = Vec::with_capacity(SEALED_HEAD_BYTES + body.len());
    out.extend_from_slice(&sealing.key.fingerprint().0.to_le_bytes());
    out.extend_from_slice(&uuid.to_le_bytes());
    out.extend_from_slice(&tag);
    out.extend_from_slice(&body);
    out
}

struct Unopened {
    /// `PermissionDenied` for another key, which is no damage: the group must not be taken out because of a mixed-up
    /// file.
    kind: io::ErrorKind,
    why: String,
}

fn open(sealing: Option<&Sealing>, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
    let damaged = |why| Unopened { kind: io::ErrorKind::InvalidData, why };
    let short =
        || damaged(format!("found {} bytes, expected at least {SEALED_HEAD_BYTES} of a sealed snapshot", sealed.len()));
    let (print, rest) = sealed.split_first_chunk::<8>().ok_or_else(short)?;
    let (uuid, rest) = rest.split_first_chunk::<16>().ok_or_else(short)?;
    let (tag, body) = rest.split_first_chunk::<16>().ok_or_else(short)?;
    let found = u64::from_le_bytes(*print);
    let Some(sealing) = sealing.filter(|sealing| sealing.key.fingerprint().0 == found) else {
        let expected =
            sealing.map_or("one that is not sealed".to_string(), |s| format!("node key {}", s.key.fingerprint()));
        let why =
            format!("found it sealed under node key {found:016x}, expected {expected}; give this node its node.key");
        return Err(Unopened { kind: io::ErrorKind::PermissionDenied, why });
    };
    let mut body = body.to_vec();
    let key = sealing.key.file(u128::from_le_bytes(*uuid));
    key.open(0, 0, SEALED_MAGIC, &mut body, tag).map_err(|e| {
        damaged(format!("found {} sealed bytes that are {e}, expected what this node sealed", body.len()))
    })?;
    Ok(body)
}

/// Whether there is a file of the snapshot of `group`, whatever it holds.
pub(crate) fn exists(dir: &Path, group: GroupId) -> io::Result<bool> {
    path(dir, group).try_exists()
}

/// Removes the snapshot of `group`; durable on return.
pub(crate) fn remove(dir: &Path, group: GroupId) -> io::Result<()> {
    note_file::remove(&path(dir, group))
}

/// Reads the snapshot of `group`; `None` if there never was one. Where files are sealed, one in clear that may be read
/// is written again, sealed: the next one may be far away.
///
/// # Errors
/// What was found and what was expected: `InvalidData` if the file is damaged (R9), `Unsupported` if another build
/// wrote it, `PermissionDenied` if it is sealed under another key, or in clear where files are sealed (JOURNAL-J10).
pub(crate) fn load(dir: &Path, group: GroupId, sealing: Option<&Sealing>) -> io::Result<Option<StoredSnapshot>> {
    let path = path(dir, group);
    let Some(bytes) = note_file::read(&path)? else { return Ok(None) };
    let stored = decode(&path, group, &bytes, sealing)?;
    if bytes.starts_with(MAGIC) && sealing.is_some_and(|sealing| sealing.new_files) {
        match save(dir, group, &stored, sealing) {
            Ok(()) => tracing::warn!(%group, "a state snapshot in clear was read, and is sealed now"),
            Err(error) => tracing::warn!(%group, %error, "a state snapshot in clear was read, and cannot be sealed"),
        }
    }
    Ok(Some(stored))
}

/// Reads the bytes of the file at `path`.
///
/// # Errors
/// As [`load`].
pub(crate) fn decode(
    path: &Path,
    group: GroupId,
    bytes: &[u8],
    sealing: Option<&Sealing>,
) -> io::Result<StoredSnapshot> {
    let (magic, body) = note_file::split(bytes).map_err(|why| invalid(path, why))?;
    if magic != MAGIC && magic != SEALED_MAGIC {
        if magic.starts_with(ANY_MAGIC) {
            // This is no damage: a healing of the group from its peers would discard data that another build can read.
            let (found, ours) = (magic.escape_ascii(), (MAGIC.escape_ascii(), SEALED_MAGIC.escape_ascii()));
            let why = format!(
                "{}: found a state snapshot of version {found}, expected {} or {}; another build wrote it: start that one again, or a newer one",
                path.display(),
                ours.0,
                ours.1
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let expected = format_args!("{MAGIC:02x?} or {SEALED_MAGIC:02x?}");
        return Err(invalid(path, format_args!("found magic {magic:02x?}, expected {expected}")));
    }
    let body = body.map_err(|why| invalid(path, why))?;
    if let Some(sealing) = sealing.filter(|sealing| magic == MAGIC && sealing.refuses_clear()) {
        holdfast_reached::reached!("snapshot: a file in clear where files are sealed");
        let why = format!(
            "{}: found it in clear, expected it sealed under node key {}, because journal.seal is on; if this gateway \
             has run with journal.seal = false before, set journal.read_clear = true for a start; otherwise somebody \
             has put the file there: replace this gateway by an empty one (holdfast gateway replace)",
            path.display(),
            sealing.key.fingerprint()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let opened = match magic == SEALED_MAGIC {
        true => Some(
            open(sealing, body)
                .map_err(|Unopened { kind, why }| io::Error::new(kind, format!("{}: {why}", path.display())))?,
        ),
        false => None,
    };
    let image: Image = postcard::from_bytes(opened.as_deref().unwrap_or(body)).map_err(|e| invalid(path, e))?;
    if image.group != group.0 {
        return Err(invalid(path, format_args!("found group {}, expected {}", image.group, group.0)));
    }
    let membership = membership_from_bytes(&image.membership).map_err(|e| invalid(path, e))?;
    let stored = RaftStoredMembership::new(image.membership_id.map(id_to_raft), membership);
    Ok(StoredSnapshot::new(image.last, stored, Bytes::from(image.data)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_log::NodeKey;
    use holdfast_testkit::golden::{Written, kept};

    #[test]
    fn round_trip_and_every_flipped_byte_is_found() -> anyhow::Result<()> {
        let sealing = Sealing::new(NodeKey::from_bytes([4; 32]), true);
        round_trip(None)?;
        round_trip(Some(&sealing))
    }

    /// As another implementation of postcard and CRC32C has them.
    #[test]
    fn the_bytes_of_one_in_clear_are_pinned() -> anyhow::Result<()> {
        const MEMBERSHIP: &[u8] = b"\x02\x02\x01\x02\x02\x02\x03\x03\x01\x03a:1\x02\x03b:2\x03\x03c:3";
        let (dir, group) = (tempfile::tempdir()?, GroupId(7));
        let at = Some(id_to_raft(LogId::new(2, 9)));
        let membership = RaftStoredMembership::new(at, membership_from_bytes(MEMBERSHIP)?);
        let snapshot = StoredSnapshot::new(LogId::new(2, 10), membership, Bytes::from_static(b"state"));
        let mut pinned = b"HFRSNAP1\xfbA\x89}\x07\x02\x0a\x01\x02\x09\x17".to_vec();
        pinned.extend_from_slice(MEMBERSHIP);
        pinned.extend_from_slice(b"\x05state");
        save(dir.path(), group, &snapshot, None)?;
        assert_eq!(std::fs::read(path(dir.path(), group))?, pinned);
        let expected = Some((snapshot.meta.clone(), snapshot.data.clone()));
        kept(env!("CARGO_MANIFEST_DIR"), "state-snapshot", Written::Pinned(&pinned), &expected, |bytes| {
            let back = decode(&path(dir.path(), group), group, bytes, None).ok()?;
            Some((back.meta, back.data))
        });
        let back = decode(&path(dir.path(), group), group, &pinned, None)?;
        assert_eq!((back.meta, back.data), (snapshot.meta, snapshot.data));
        Ok(())
    }

    #[test]
    fn one_of_another_build_is_no_damage() -> anyhow::Result<()> {
        let (dir, group) = (tempfile::tempdir()?, GroupId(4));
        std::fs::write(path(dir.path(), group), b"HFRSNAP9 whatever that build has behind it")?;
        let error = load(dir.path(), group, None).expect_err("not ours to read");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("HFRSNAP9") && error.to_string().contains("HFRSNAP1"), "{error}");
        Ok(())
    }

    #[test]
    fn a_sealed_one_is_not_readable_without_its_key() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let group = GroupId(4);
        let state = Bytes::from_static(b"a token that nobody should see");
        let snapshot = StoredSnapshot::new(LogId::new(2, 30), RaftStoredMembership::default(), state.clone());
        let sealing = |byte, new_files| Sealing::new(NodeKey::from_bytes([byte; 32]), new_files);
        save(dir.path(), group, &snapshot, Some(&sealing(1, true)))?;
        let bytes = std::fs::read(path(dir.path(), group))?;
        assert!(!bytes.windows(5).any(|window| state.windows(5).any(|part| part == window)), "readable");
        for other in [None, Some(sealing(2, true))] {
            let error = load(dir.path(), group, other.as_ref()).expect_err("another key");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "no damage: the group stays where it is");
            let error = error.to_string();
            assert!(error.contains("expected") && error.contains("node.key"), "{error}");
        }
        // Sealing is switched off: existing files can still be read, new ones are plain.
        assert!(load(dir.path(), group, Some(&sealing(1, false)))?.is_some());
        save(dir.path(), group, &snapshot, Some(&sealing(1, false)))?;
        assert!(load(dir.path(), group, None)?.is_some());
        Ok(())
    }

    /// JOURNAL-J10: anybody could have written it.
    #[test]
    fn j10_one_in_clear_is_refused_where_files_are_sealed() -> anyhow::Result<()> {
        let (dir, group) = (tempfile::tempdir()?, GroupId(4));
        let snapshot =
            StoredSnapshot::new(LogId::new(2, 30), RaftStoredMembership::default(), Bytes::from_static(b"state"));
        let strict = Sealing::new(NodeKey::from_bytes([1; 32]), true);
        save(dir.path(), group, &snapshot, None)?;
        let error = load(dir.path(), group, Some(&strict)).expect_err("in clear");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "no damage: the group stays where it is");
        for words in ["in clear", "journal.read_clear", "holdfast gateway replace"] {
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
        // Allowed once, it is sealed from then on.
        assert!(load(dir.path(), group, Some(&Sealing { reads_clear: true, ..strict.clone() }))?.is_some());
        let back = load(dir.path(), group, Some(&strict))?.expect("sealed by now");
        assert_eq!((back.meta, back.data), (snapshot.meta, snapshot.data));
        Ok(())
    }

    fn round_trip(sealing: Option<&Sealing>) -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let group = GroupId(4);
        assert!(load(dir.path(), group, sealing)?.is_none());
        let snapshot =
            StoredSnapshot::new(LogId::new(2, 30), RaftStoredMembership::default(), Bytes::from_static(b"state"));
        save(dir.path(), group, &snapshot, sealing)?;
        let back = load(dir.path(), group, sealing)?.expect("there");
        assert_eq!((back.meta, back.data), (snapshot.meta, snapshot.data));
        let file = path(dir.path(), group);
        let good = std::fs::read(&file)?;
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 1;
            std::fs::write(&file, &bad)?;
            assert!(load(dir.path(), group, sealing).is_err(), "byte {i} flipped and not found");
        }
        std::fs::write(&file, &good[..good.len() - 1])?;
        assert!(load(dir.path(), group, sealing).is_err());
        Ok(())
    }
}
