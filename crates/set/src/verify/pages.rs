//! Reads the pages of a root, and the sealed extents that they name.

use super::report::{Damage, Report, Sample, bounds};
use super::subject::Subject;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use holdfast_store::{Disposition, StoreError, keys};
use holdfast_types::{Lba, ObjectId, Sectors, VolumeId};
use holdfast_volume::map::{Live, Page, PageRef, Remains, Root, open_page};
use holdfast_volume::segment::{ExtentPlace, open_extent};
use std::collections::{BTreeMap, BTreeSet};

/// Neighbouring extents are fetched in one request of up to this many bytes.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// Number of pages checked concurrently; each has one request in flight.
const PAGES: usize = 8;

/// Result of checking one page.
#[derive(Default)]
pub(crate) struct Checked {
    live: Live,
    pub extents: u64,
    pub bytes: u64,
    pub damaged: Vec<Damage>,
    /// Whether the page itself could be read.
    whole: bool,
}

/// Checks a root's pages as far as it opens, except pages shared with one of `others`: these were already read.
pub(super) async fn check_pages(
    subject: &Subject,
    root: &Remains,
    others: &[&Remains],
    sample: Sample,
    progress: &(dyn Fn(u64, u64) + Sync),
    report: &mut Report,
) -> Result<(), StoreError> {
    let read = |(volume, number, place): &(VolumeId, u32, PageRef)| {
        others.iter().any(|other| other.page(*volume, *number) == Some(*place))
    };
    let mut chosen: Vec<(VolumeId, u32, PageRef)> = root.pages().filter(|page| !read(page)).collect();
    let count = chosen.len() as u64;
    let one = sample.seed.checked_rem(count).and_then(|place| chosen.get(place as usize).copied());
    chosen.retain(|(volume, number, _)| sample.takes(*volume, *number));
    // Checks at least one page: a report of no damage must not be based on nothing.
    if chosen.is_empty() {
        chosen.extend(one);
    }
    let total = chosen.len() as u64;
    let before = report.pages_checked;
    report.pages += count;
    progress(0, total);
    let mut live = Live::new();
    // The counts cover all pages.
    let compares = sample.is_all() && others.is_empty();
    let mut whole = compares;
    let checks = stream::iter(chosen).map(|(volume, number, place)| check_page(subject, volume, number, place));
    let mut checks = std::pin::pin!(checks.buffered(PAGES));
    while let Some(checked) = checks.next().await {
        let checked = checked?;
        report.pages_checked += 1;
        report.extents += checked.extents;
        report.bytes += checked.bytes;
        whole &= checked.whole;
        for (object, sectors) in checked.live {
            live.entry(object).or_default().0 += sectors.0;
        }
        checked.damaged.into_iter().for_each(|damage| report.note(damage));
        progress(report.pages_checked - before, total);
    }
    match root.whole() {
        Some(root) if whole => check_sums(subject, root, &live, report),
        _ => report.sums_skipped |= compares,
    }
    Ok(())
}

/// The root counts how much of each segment the pages refer to. Too low a count would delete needed data; too high a
/// count costs space.
fn check_sums(subject: &Subject, root: &Root, live: &Live, report: &mut Report) {
    let mut known: BTreeMap<ObjectId, Sectors> =
        root.segments().map(|(object, usage)| (object, usage.live_sectors)).collect();
    known.retain(|_, sectors| sectors.0 > 0);
    let objects: BTreeSet<_> = known.keys().chain(live.keys()).copied().collect();
    for object in objects {
        let sectors = |of: Option<&Sectors>| of.map_or(0, |s| s.0);
        let (used, counted) = (sectors(live.get(&object)), sectors(known.get(&object)));
        if counted > used {
            report.overcounted_segments += 1;
            report.overcounted_sectors += counted - used;
        }
        if counted < used {
            report.note(Damage {
                part: "map",
                key: keys::segment(subject.set, object),
                object_bytes: None,
                volume: String::new(),
                lba: 0,
                sectors: 0,
                reason: format!("the pages refer to {used} of its sectors, the root says {counted}"),
                store: subject.copy.clone(),
                snapshot: subject.snapshot_name(),
            });
        }
    }
}

pub(crate) async fn check_page(
    subject: &Subject,
    volume: VolumeId,
    number: u32,
    place: PageRef,
) -> Result<Checked, StoreError> {
    let mut checked = Checked::default();
    let key = keys::map_pack(subject.set, place.object);
    let opened = match subject.store.get_range(&key, place.range()).await {
        Ok(bytes) => {
            checked.bytes += bytes.len() as u64;
            subject.spent(bytes.len() as u64).await;
            open_page(&subject.key.opener(place.object), &place, volume, number, &bytes).map_err(|e| e.to_string())
        }
        Err(e) if subject.is_damage(&e) => Err(e.to_string()),
        Err(e) => return Err(e),
    };
    let page = match opened {
        Ok(page) => page,
        Err(reason) => {
            let covers = Page::new(volume, number);
            checked.damaged.push(Damage {
                part: "page",
                key,
                object_bytes: bounds(&place.range()),
                volume: subject.volume_name(volume),
                lba: covers.lba().0,
                sectors: covers.end().0 - covers.lba().0,
                reason,
                store: subject.copy.clone(),
                snapshot: subject.snapshot_name(),
            });
            return Ok(checked);
        }
    };
    checked.whole = true;
    checked.live = page.live();
    for run in runs(&page) {
        check_run(subject, volume, &run, &mut checked).await?;
    }
    Ok(checked)
}

/// A sealed extent and the sectors of the page that need it.
#[derive(Clone, Debug)]
struct Needed {
    object: ObjectId,
    place: ExtentPlace,
    sealed_lba: Lba,
    parts: Vec<(Lba, Sectors)>,
}

/// The sealed extents that a page needs, each once, grouped into runs of neighbours.
fn runs(page: &Page) -> Vec<Vec<Needed>> {
    let mut needed: BTreeMap<(ObjectId, u32), Needed> = BTreeMap::new();
    for extent in page.extents() {
        let entry = needed.entry((extent.object, extent.place.offset)).or_insert_with(|| Needed {
            object: extent.object,
            place: extent.place,
            sealed_lba: extent.sealed_lba(),
            parts: Vec::new(),
        });
        entry.parts.push((extent.lba, extent.sectors));
    }
    let mut runs: Vec<Vec<Needed>> = Vec::new();
    for next in needed.into_values() {
        let joins = runs.last().and_then(|run| Some((run.first()?, run.last()?))).is_some_and(|(first, last)| {
            last.object == next.object
                && last.place.range().end == next.place.range().start
                && next.place.range().end - first.place.range().start <= RUN_BYTES_MAX
        });
        match runs.last_mut() {
            Some(run) if joins => run.push(next),
            _ => runs.push(vec![next]),
        }
    }
    runs
}

async fn check_run(
    subject: &Subject,
    volume: VolumeId,
    run: &[Needed],
    checked: &mut Checked,
) -> Result<(), StoreError> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
    let key = keys::segment(subject.set, first.object);
    let range = first.place.range().start..last.place.range().end;
    let together = match subject.store.get_range(&key, range.clone()).await {
        Ok(bytes) => {
            subject.spent(bytes.len() as u64).await;
            Some(bytes)
        }
        // The object ends early: read one by one to find those that are still good.
        Err(e) if subject.is_damage(&e) && run.len() > 1 && e.disposition() == Disposition::Corrupt => None,
        Err(e) if subject.is_damage(&e) => {
            for extent in run {
                checked.damaged.extend(damage(subject, volume, extent, &key, &e.to_string()));
            }
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    for extent in run {
        let at = extent.place.range();
        let bytes: Result<Bytes, StoreError> = match &together {
            Some(all) => Ok(all.slice((at.start - range.start) as usize..(at.end - range.start) as usize)),
            None => subject.store.get_range(&key, at).await,
        };
        let opened = match bytes {
            Ok(bytes) => {
                checked.bytes += bytes.len() as u64;
                let opener = subject.key.opener(extent.object);
                open_extent(&opener, &extent.place, volume, extent.sealed_lba, &bytes).map_err(|e| e.to_string())
            }
            Err(e) if subject.is_damage(&e) => Err(e.to_string()),
            Err(e) => return Err(e),
        };
        checked.extents += 1;
        if let Err(reason) = opened {
            checked.damaged.extend(damage(subject, volume, extent, &key, &reason));
        }
        // A run is up to 4 MiB of decryption: let other tasks use the thread.
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn damage(subject: &Subject, volume: VolumeId, extent: &Needed, key: &str, reason: &str) -> Vec<Damage> {
    let name = subject.volume_name(volume);
    let part = |(lba, sectors): &(Lba, Sectors)| Damage {
        part: "extent",
        key: key.to_string(),
        object_bytes: bounds(&extent.place.range()),
        volume: name.clone(),
        lba: lba.0,
        sectors: sectors.0,
        reason: reason.to_string(),
        store: subject.copy.clone(),
        snapshot: subject.snapshot_name(),
    };
    extent.parts.iter().map(part).collect()
}
