//! What changed of a volume between two snapshots of a set, from their maps, a part at a time.
//!
//! What a shrink or a deletion took away reads as zeroes in every map after it, up to the end of the largest volume there can be (M7 of
//! `volume::machine`). So nothing lies behind a volume's end: a volume that grew is zeroes there wherever nothing is listed, and what a shrink took is
//! listed as zeroes where the volume has grown again.

use crate::mapping::{MapError, Mapping};
use holdfast_control::set::Snapshot;
use holdfast_types::{Lba, Sectors, VolumeId};
use holdfast_volume::map::{Changed, Differing, PAGE_SECTORS, Root, changes, differing_pages};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ranges of one part, give or take those of a page (at most 32,768 of some 16 bytes).
const RANGES: usize = 8192;
/// Pages of one part at most.
const PAGES: usize = 256;
/// One part takes about so long at most: a caller's patience for one attempt is 3 s.
const TIME: Duration = Duration::from_millis(800);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// In order; what is not among them, up to the next page, is the same in both.
    pub changed: Vec<Changed>,
    /// The page that the next part begins with; `None` where that was all.
    pub next_page: Option<u32>,
}

/// Compares a volume from page `from` on. Where the earlier snapshot has no volume of this id, or where there is none, with zeroes.
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
    // What lies behind the later one's end is no part of it any more.
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
        // At least one page a part, or nothing would ever end.
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
