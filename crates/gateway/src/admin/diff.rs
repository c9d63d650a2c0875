//! What changed between two snapshots of a set, a part at a time.

use super::AdminDoor;
use super::snapshot::snapshot_id;
use crate::set::mapping::MapError;
use crate::set::server::SetServer;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::set::{RootRef, SnapshotId, Volume};
use holdfast_types::{Lba, Sectors, VolumeId};
use holdfast_volume::map::{Changed, Differing, PAGE_SECTORS, Root, changes, differing_pages};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ranges of one answer, give or take those of a page (at most 32,768 of some 16 bytes).
const RANGES: usize = 8192;
/// Pages of one answer at most.
const PAGES: usize = 256;
/// One answer takes about so long at most: the caller's patience for one attempt is 3 s.
const TIME: Duration = Duration::from_millis(800);

impl AdminDoor {
    pub(super) async fn diff_snapshots(
        &self,
        request: v1::DiffSnapshotsRequest,
    ) -> Result<v1::DiffSnapshotsReply, Refusal> {
        let set = self.set(&request.set)?;
        let earlier = self.shown(&set, &request.earlier, &request.earlier_id, request.volume)?;
        let later = self.shown(&set, &request.later, &request.later_id, request.volume)?;
        let failed = |e: &MapError| Refusal::new(RefusalCode::Failed, e.to_string());
        let Some((later_root, Some(volume))) = later else {
            let text = format!("{}@{} has no volume {}", set.name, request.later, request.volume);
            return Err(Refusal::new(RefusalCode::NotFound, text));
        };
        let mapping = set.reader.mapping();
        let id = VolumeId(request.volume);
        let b = mapping.root(later_root).await.map_err(|e| failed(&e))?;
        // A volume that the earlier one has not got was all zeroes then.
        let earlier = earlier.and_then(|(root, volume)| volume.map(|volume| (root, volume)));
        let (a, size_before) = match &earlier {
            Some((root, volume)) => (mapping.root(*root).await.map_err(|e| failed(&e))?, volume.size),
            None => (Arc::new(Root::new(b.upto)), Sectors(0)),
        };
        let begun = Instant::now();
        let from = u32::try_from(request.from_page)
            .map_err(|_| Refusal::new(RefusalCode::Invalid, "from_page: found more than 32 bits"))?;
        let mut ranges = Vec::new();
        let mut next_page = 0;
        let pages: Vec<Differing> = differing_pages(&a, &b, id, from).take(PAGES + 1).collect();
        for (at, (number, before, after)) in pages.into_iter().enumerate() {
            // At least one page an answer, or nothing would ever end.
            if at == PAGES || at > 0 && (ranges.len() >= RANGES || begun.elapsed() >= TIME) {
                next_page = u64::from(number);
                break;
            }
            let first = Lba(u64::from(number) * PAGE_SECTORS);
            // What lies behind the later one's end is no part of it any more.
            let sectors = Sectors(volume.size.0.saturating_sub(first.0).min(PAGE_SECTORS));
            if sectors.0 == 0 {
                break;
            }
            let before = match &before {
                Some(place) => Some(mapping.page(place, id, number).await.map_err(|e| failed(&e))?),
                None => None,
            };
            let after = match &after {
                Some(place) => Some(mapping.page(place, id, number).await.map_err(|e| failed(&e))?),
                None => None,
            };
            let found = changes((&a, before.as_deref()), (&b, after.as_deref()), id, first, sectors);
            ranges.extend(found.iter().map(range));
        }
        Ok(v1::DiffSnapshotsReply {
            ranges,
            next_page,
            size_before: size_before.to_bytes().unwrap_or(0),
            size_after: volume.size.to_bytes().unwrap_or(0),
        })
    }

    /// Root of the snapshot, and the volume as it has it. `None` for no snapshot (name "").
    fn shown(
        &self,
        set: &SetServer,
        name: &str,
        id: &str,
        volume: u32,
    ) -> Result<Option<(RootRef, Option<Volume>)>, Refusal> {
        if name.is_empty() {
            return Ok(None);
        }
        let asked = SnapshotId { name: holdfast_api::name("snapshot", name)?, made_by: snapshot_id(id)? };
        set.host.with(|m| match m.state().finished(&asked) {
            Ok(found) => Ok(Some((found.root, found.volumes.get(&VolumeId(volume)).cloned()))),
            Err(refusal) => Err(Refusal::new(RefusalCode::NotFound, refusal.to_string())),
        })
    }
}

fn range(changed: &Changed) -> v1::ChangedRange {
    v1::ChangedRange {
        offset: changed.lba.to_bytes().map_or(0, |offset| offset.0),
        length: changed.sectors.to_bytes().unwrap_or(0),
        zero: changed.zero,
    }
}
