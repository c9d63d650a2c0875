//! The newest snapshot of a group's replicated state, on local disk: small, since data is in the store.
//!
//! ```text
//!   magic "HFRSNAP1" | crc32c of the rest u32 LE | postcard of `Image`
//! ```
//! Written beside, synced, renamed, directory synced: openraft purges entries only after that.

use crate::wire::{
    RaftSnapshotMeta, RaftStoredMembership, id_from_raft, id_to_raft, membership_from_bytes, membership_to_bytes,
};
use bytes::Bytes;
use holdfast_types::{GroupId, LogId};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"HFRSNAP1";

#[derive(Serialize, Deserialize)]
struct Image {
    group: u64,
    last: LogId,
    membership_id: Option<LogId>,
    membership: Vec<u8>,
    data: Vec<u8>,
}

/// A snapshot with what openraft wants to know of it.
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

/// Writes `snapshot` so that a crash leaves either the old or the new one whole.
pub(crate) fn save(dir: &Path, group: GroupId, snapshot: &StoredSnapshot) -> io::Result<()> {
    let target = path(dir, group);
    let last = snapshot.last().ok_or_else(|| invalid(&target, "a snapshot without a log id"))?;
    let membership = &snapshot.meta.last_membership;
    let image = Image {
        group: group.0,
        last,
        membership_id: membership.log_id().as_ref().map(id_from_raft),
        membership: membership_to_bytes(membership.membership()).to_vec(),
        data: snapshot.data.to_vec(),
    };
    let body = postcard::to_stdvec(&image).map_err(|e| invalid(&target, e))?;
    let beside = target.with_extension("snapshot.new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(MAGIC)?;
    file.write_all(&crc32c::crc32c(&body).to_le_bytes())?;
    file.write_all(&body)?;
    file.sync_all()?;
    std::fs::rename(&beside, &target)?;
    std::fs::File::open(dir)?.sync_all()
}

/// Takes the snapshot of `group` away; durable on return.
pub(crate) fn remove(dir: &Path, group: GroupId) -> io::Result<()> {
    match std::fs::remove_file(path(dir, group)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => std::fs::File::open(dir)?.sync_all(),
    }
}

/// Reads the snapshot of `group`; `None` where there never was one.
///
/// # Errors
/// What was found and expected, where the file is not whole (R9).
pub(crate) fn load(dir: &Path, group: GroupId) -> io::Result<Option<StoredSnapshot>> {
    let path = path(dir, group);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(invalid(&path, format_args!("found {} bytes, expected at least 12", bytes.len())));
    };
    if magic != MAGIC {
        return Err(invalid(&path, format_args!("found magic {magic:02x?}, expected {MAGIC:02x?}")));
    }
    let Some((crc, body)) = rest.split_first_chunk::<4>() else {
        return Err(invalid(&path, format_args!("found {} bytes, expected at least 12", bytes.len())));
    };
    let (expected, found) = (u32::from_le_bytes(*crc), crc32c::crc32c(body));
    if expected != found {
        return Err(invalid(&path, format_args!("found checksum {found:08x}, expected {expected:08x}")));
    }
    let image: Image = postcard::from_bytes(body).map_err(|e| invalid(&path, e))?;
    if image.group != group.0 {
        return Err(invalid(&path, format_args!("found group {}, expected {}", image.group, group.0)));
    }
    let membership = membership_from_bytes(&image.membership).map_err(|e| invalid(&path, e))?;
    let stored = RaftStoredMembership::new(image.membership_id.map(id_to_raft), membership);
    Ok(Some(StoredSnapshot::new(image.last, stored, Bytes::from(image.data))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_flipped_byte_is_found() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let group = GroupId(4);
        assert!(load(dir.path(), group)?.is_none());
        let snapshot =
            StoredSnapshot::new(LogId::new(2, 30), RaftStoredMembership::default(), Bytes::from_static(b"state"));
        save(dir.path(), group, &snapshot)?;
        let back = load(dir.path(), group)?.expect("there");
        assert_eq!((back.meta, back.data), (snapshot.meta, snapshot.data));
        let file = path(dir.path(), group);
        let good = std::fs::read(&file)?;
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 1;
            std::fs::write(&file, &bad)?;
            assert!(load(dir.path(), group).is_err(), "byte {i} flipped and not found");
        }
        std::fs::write(&file, &good[..good.len() - 1])?;
        assert!(load(dir.path(), group).is_err());
        Ok(())
    }
}
