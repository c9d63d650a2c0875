//! Computes the changes of a volume between two snapshots of a set from their maps, part by part.
//!
//! Data removed by a shrink or a deletion reads as zeroes in every later map, up to the end of the largest possible
//! volume (MACHINE-M7 of `volume::machine`). So there is no data behind a volume's end: the new part of a grown volume
//! is zeroes unless listed, and a removed part that was grown over again is listed as zeroes.

use crate::mapping::{MapError, Mapping};
use holdfast_control::set::Snapshot;
use holdfast_types::{Lba, Sectors, VolumeId};
use holdfast_volume::map::{Changed, Differing, PAGE_SECTORS, Root, changes, differing_pages};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ranges in one part, exceeded at most by those of one page (up to 32,768 of some 16 bytes).
const RANGES: usize = 8192;
/// Maximum number of pages in one part.
const PAGES: usize = 256;
/// Approximate maximum time of one part: callers wait 3 s for one attempt.
const TIME: Duration = Duration::from_millis(800);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// In order; everything between them, up to the next page, is the same in both.
    pub changed: Vec<Changed>,
    /// First page of the next part; `None` at the end.
    pub next_page: Option<u32>,
}

/// Compares a volume from page `from` on. If the earlier snapshot, or this volume in it, does not exist, compares with
/// zeroes.
///
/// # Errors
/// [`MapError`].
pub async fn part(
    mapping: &Mapping,
    earlier: Option<&Snapshot>,
    later: &Snapshot,
    volume: VolumeId,
    from: u32,
) -> Result<Part, MapError> {
    // Data behind the end of the later volume does not belong to it any more.
    let size = later.volumes.get(&volume).map_or(Sectors(0), |found| found.size);
    let earlier = earlier.filter(|earlier| earlier.volumes.contains_key(&volume));
    if let Some(earlier) = earlier {
        mapping.note_compared([earlier.root, later.root]);
    }
    let b = mapping.root(later.root).await?;
    let a = match earlier {
        Some(earlier) => mapping.root(earlier.root).await?,
        None => Arc::new(Root::new(b.upto)),
    };
    let begun = Instant::now();
    let mut changed = Vec::new();
    let mut next_page = None;
    let pages: Vec<Differing> = differing_pages(&a, &b, volume, from).take(PAGES + 1).collect();
    for (at, (number, before, after)) in pages.into_iter().enumerate() {
        // At least one page in each part; otherwise it would never end.
        if at == PAGES || at > 0 && (changed.len() >= RANGES || begun.elapsed() >= TIME) {
            next_page = Some(number);
            break;
        }
        let first = Lba(u64::from(number) * PAGE_SECTORS);
        let sectors = Sectors(size.0.saturating_sub(first.0).min(PAGE_SECTORS));
        if sectors.0 == 0 {
            break;
        }
        let before = match &before {
            Some(place) => Some(mapping.page(place, volume, number).await?),
            None => None,
        };
        let after = match &after {
            Some(place) => Some(mapping.page(place, volume, number).await?),
            None => None,
        };
        changed.extend(changes((&a, before.as_deref()), (&b, after.as_deref()), volume, first, sectors));
    }
    Ok(Part { changed, next_page })
}
