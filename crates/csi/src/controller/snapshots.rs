//! Snapshots: of a volume's set, which has this one volume.

use super::{AFTER, Controller, after, is_there, page};
use crate::capacity::signed;
use crate::names::{self, SnapshotId, VOLUME, VolumeId};
use crate::refused::Refused;
use crate::v1;
use holdfast_api::v1 as api;
use holdfast_types::Name;

impl Controller {
    /// CreateSnapshot.
    ///
    /// # Errors
    /// A field that cannot be used; a snapshot of that name of another volume; a refusal of the cluster.
    pub fn create_snapshot(&self, request: &v1::CreateSnapshotRequest) -> Result<v1::Snapshot, Refused> {
        let name = self.prefix.named(&request.name)?;
        let id = match VolumeId::read(&request.source_volume_id) {
            Ok(id) => id.ok_or_else(|| names::no_volume(&request.source_volume_id))?,
            Err(_) => return Err(Refused::invalid("source_volume_id is missing")),
        };
        let _held = self.locks.take(id.set.as_str())?;
        // Taken for the snapshot's name, which no set can have: two calls cannot make two snapshots of one name.
        let _named = self.locks.take(&format!("@{name}"))?;
        self.find(&id)?;
        let listed = self.cluster.snapshots(&id.set)?.unwrap_or_default();
        if let Some(found) = listed.iter().find(|found| found.name == name.as_str()) {
            return Ok(shown(&id, found));
        }
        // CSI's names of snapshots are unique in the whole cluster; those of ours in their set.
        for other in self.sets()?.iter().filter(|other| **other != id.set) {
            let listed = self.cluster.snapshots(other)?.unwrap_or_default();
            if listed.iter().any(|found| found.name == name.as_str()) {
                return Err(Refused::exists(format!("snapshot {} exists of another volume, {other}", request.name)));
            }
        }
        self.cluster.create_snapshot(&id.set, &name).map(|made| shown(&id, &made))
    }

    /// DeleteSnapshot. Copies that were made from it keep what they need.
    ///
    /// # Errors
    /// The driver has not made it, or a refusal of the cluster.
    pub fn delete_snapshot(&self, id: &str) -> Result<(), Refused> {
        let Some(id) = SnapshotId::read(id)? else { return Ok(()) };
        if !self.prefix.is_ours(id.snapshot.as_str()) {
            return Err(Refused::precondition(format!(
                "snapshot {id} was not made by this driver: delete it by `holdfast snapshot delete`"
            )));
        }
        let _held = self.locks.take(id.set.as_str())?;
        let listed = self.cluster.snapshots(&id.set)?.unwrap_or_default();
        match listed.iter().find(|found| found.name == id.snapshot.as_str()) {
            Some(found) => self.cluster.delete_snapshot(&id.set, found),
            None => Ok(()),
        }
    }

    /// ListSnapshots: the driver's own.
    ///
    /// # Errors
    /// A token of another driver, or the cluster does not answer.
    pub fn list_snapshots(&self, request: &v1::ListSnapshotsRequest) -> Result<v1::ListSnapshotsResponse, Refused> {
        let (max, after) = (page(request.max_entries)?, after(&request.starting_token)?);
        let mut response = v1::ListSnapshotsResponse::default();
        let (sets, one) = self.asked(request)?;
        for set in sets {
            // Ids of a set begin with its name: sets that sort before the token's are done.
            let done = after.and_then(|after| after.split_once('@')).is_some_and(|(last, _)| set.as_str() < last);
            if done {
                continue;
            }
            for found in self.ours(&set)? {
                let id = SnapshotId { set: set.clone(), snapshot: found.0 };
                let passed = after.is_some_and(|after| is_listed(after, &id));
                if passed || one.as_ref().is_some_and(|one| *one != id.snapshot) {
                    continue;
                }
                if response.entries.len() >= max {
                    let last = response.entries.last().and_then(|entry| entry.snapshot.as_ref());
                    response.next_token = format!("{AFTER}{}", last.map_or("", |last| last.snapshot_id.as_str()));
                    return Ok(response);
                }
                let snapshot = Some(shown(&source(&set, &found.1)?, &found.1));
                response.entries.push(v1::list_snapshots_response::Entry { snapshot });
            }
        }
        Ok(response)
    }

    /// The sets to look in, and the name of the only snapshot that is asked for.
    fn asked(&self, request: &v1::ListSnapshotsRequest) -> Result<(Vec<Name>, Option<Name>), Refused> {
        if !request.snapshot_id.is_empty() {
            let id = SnapshotId::read(&request.snapshot_id)?;
            return Ok(id.map_or((Vec::new(), None), |id| (vec![id.set], Some(id.snapshot))));
        }
        if !request.source_volume_id.is_empty() {
            let id = VolumeId::read(&request.source_volume_id)?;
            return Ok((id.map(|id| id.set).into_iter().collect(), None));
        }
        Ok((self.sets()?, None))
    }

    /// The driver's snapshots of a set, sorted by name.
    fn ours(&self, set: &Name) -> Result<Vec<(Name, api::Snapshot)>, Refused> {
        if !self.cluster.set(set)?.as_ref().is_some_and(is_there) {
            return Ok(Vec::new());
        }
        let listed = self.cluster.snapshots(set)?.unwrap_or_default();
        let ours = listed.into_iter().filter(|found| self.prefix.is_ours(&found.name));
        let mut named: Vec<_> = ours.filter_map(|found| Some((Name::new(found.name.clone()).ok()?, found))).collect();
        named.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(named)
    }
}

/// Whether a snapshot was on an earlier page, which ended with the id `after`.
fn is_listed(after: &str, id: &SnapshotId) -> bool {
    after.split_once('@').is_some_and(|last| (id.set.as_str(), id.snapshot.as_str()) <= last)
}

/// The volume of a snapshot.
fn source(set: &Name, snapshot: &api::Snapshot) -> Result<VolumeId, Refused> {
    let names = || snapshot.volumes.iter().map(|volume| volume.name.as_str());
    let name = names().find(|name| *name == VOLUME).or(names().next()).unwrap_or(VOLUME);
    let volume = Name::new(name).map_err(|error| Refused::failed(error.to_string()))?;
    Ok(VolumeId { set: set.clone(), volume })
}

/// A snapshot in CSI's terms.
fn shown(source: &VolumeId, snapshot: &api::Snapshot) -> v1::Snapshot {
    let size = snapshot.volumes.iter().find(|volume| volume.name == source.volume.as_str());
    let ms = i64::try_from(snapshot.created_unix_ms).unwrap_or(i64::MAX);
    let nanos = i32::try_from(ms % 1000).unwrap_or(0) * 1_000_000;
    v1::Snapshot {
        // 0: not known, while it waits for its checkpoint.
        size_bytes: size.map_or(0, |volume| signed(volume.size_bytes)),
        snapshot_id: format!("{}@{}", source.set, snapshot.name),
        source_volume_id: source.to_string(),
        creation_time: Some(prost_types::Timestamp { seconds: ms / 1000, nanos }),
        ready_to_use: !snapshot.pending,
    }
}
