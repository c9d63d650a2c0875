//! What changed between two snapshots of a set, a part at a time.

use super::AdminDoor;
use super::snapshot::{snapshot_id, volumes};
use holdfast_api::compared::Volumes;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::set::{Snapshot, SnapshotId};
use holdfast_set::diff;
use holdfast_set::server::SetServer;
use holdfast_types::VolumeId;
use holdfast_volume::map::Changed;

impl AdminDoor {
    pub(super) async fn diff_snapshots(
        &self,
        request: v1::DiffSnapshotsRequest,
    ) -> Result<v1::DiffSnapshotsReply, Refusal> {
        let set = self.set(&request.set)?;
        let earlier = shown(&set, &request.earlier, &request.earlier_id)?;
        let later = shown(&set, &request.later, &request.later_id)?;
        let id = VolumeId(request.volume);
        let Some((later, size_after)) =
            later.and_then(|later| later.volumes.get(&id).map(|found| found.size).map(|size| (later, size)))
        else {
            let text = format!("{}@{} has no volume {}", set.name, request.later, request.volume);
            return Err(Refusal::new(RefusalCode::NotFound, text));
        };
        if let Some(earlier) = earlier.as_ref().filter(|_| !request.compares_volumes) {
            by_ranges_alone(&listed(earlier), &listed(&later))?;
        }
        let from = u32::try_from(request.from_page)
            .map_err(|_| Refusal::new(RefusalCode::Invalid, "from_page: found more than 32 bits"))?;
        let size_before = earlier.as_ref().and_then(|earlier| earlier.volumes.get(&id)).map(|found| found.size);
        let part = diff::part(set.reader.mapping(), earlier.as_ref(), &later, id, from).await;
        let part = part.map_err(|e| Refusal::new(RefusalCode::Failed, e.to_string()))?;
        Ok(v1::DiffSnapshotsReply {
            ranges: part.changed.iter().map(range).collect(),
            next_page: part.next_page.map_or(0, u64::from),
            size_before: size_before.and_then(|size| size.to_bytes()).unwrap_or(0),
            size_after: size_after.to_bytes().unwrap_or(0),
        })
    }
}

/// The snapshot. `None` for no snapshot (name "").
fn shown(set: &SetServer, name: &str, id: &str) -> Result<Option<Snapshot>, Refusal> {
    if name.is_empty() {
        return Ok(None);
    }
    let asked = SnapshotId { name: holdfast_api::name("snapshot", name)?, made_by: snapshot_id(id)? };
    set.host.with(|m| match m.state().finished(&asked) {
        Ok(found) => Ok(Some(found.clone())),
        Err(refusal) => Err(Refusal::new(RefusalCode::NotFound, refusal.to_string())),
    })
}

fn listed(snapshot: &Snapshot) -> Vec<v1::Volume> {
    volumes(snapshot.volumes.iter())
}

/// A caller that does not compare the volumes by itself shows ranges under the later one's names, and nothing else. That is true only where the volumes
/// are the same in both; else an image of another volume would be patched, and what was not listed kept.
fn by_ranges_alone(earlier: &[v1::Volume], later: &[v1::Volume]) -> Result<(), Refusal> {
    let Some(unlike) = Volumes::compare(earlier, later).unlike() else { return Ok(()) };
    let text = format!(
        "the volumes are not the same in both: {unlike}; a newer `holdfast snapshot diff` tells what to do about it"
    );
    Err(Refusal::new(RefusalCode::Precondition, text))
}

fn range(changed: &Changed) -> v1::ChangedRange {
    v1::ChangedRange {
        offset: changed.lba.to_bytes().map_or(0, |offset| offset.0),
        length: changed.sectors.to_bytes().unwrap_or(0),
        zero: changed.zero,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: u32, name: &str) -> v1::Volume {
        v1::Volume { id, name: name.to_string(), size_bytes: 1 << 20 }
    }

    #[test]
    fn a_program_that_tells_nothing_of_volumes_is_answered_only_where_there_is_nothing_to_tell() {
        let then = [volume(1, "vol1"), volume(2, "vol2")];
        assert!(by_ranges_alone(&then, &then).is_ok());
        let refused = by_ranges_alone(&then, &[volume(1, "vol1"), volume(3, "vol2")]).unwrap_err();
        assert_eq!(refused.code, RefusalCode::Precondition);
        assert!(refused.message.contains("vol2 is another volume of that name"), "{}", refused.message);
    }
}
