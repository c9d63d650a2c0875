//! Reads a set from its store and reports damage. Covers every byte that a read of the set could need: the head, root,
//! pages and sealed extents, each opened and authenticated (R9). Works offline: no gateway is asked.
//!
//! Also reads data that only the snapshots listed in the head have (`snapshots`). Data that no map names any more (dead
//! extents, objects of older checkpoints) is not read; its damage is harmless.

use crate::mapping::SetKey;
use crate::recovery::Found;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use holdfast_control::set::CLONE_DEPTH_MAX;
use holdfast_store::{Disposition, ObjectStore, StoreError, keys};
use holdfast_types::{Lba, Name, ObjectId, SECTOR_BYTES, Sectors, SetId, VolumeId};
use holdfast_volume::head::Covered;
use holdfast_volume::map::{Live, Page, PageRef, Remains, Root, open_page};
use holdfast_volume::segment::{ExtentPlace, open_extent};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

mod root;
mod snapshots;

pub(crate) use root::LeavesRead;

/// Neighbouring extents are fetched in one request of up to this many bytes.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// Number of pages checked concurrently; each has one request in flight.
const PAGES: usize = 8;

/// Default limit of listed damaged places of a set; further ones are only counted. A report of this size takes a few
/// MiB.
pub const LISTED: u32 = 10_000;

/// … and the highest allowed limit: some hundreds of MiB.
pub const LISTED_MAX: u32 = 1_000_000;

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Share of the pages to check, in millionths.
    pub millionths: u32,
    /// Seed of the selection: the same seed selects the same pages.
    pub seed: u64,
}

impl Sample {
    /// All pages.
    pub const ALL: Sample = Sample { millionths: 1_000_000, seed: 0 };

    fn takes(&self, volume: VolumeId, number: u32) -> bool {
        // splitmix64: spreads evenly over seeds and places.
        let mut z = self.seed ^ (u64::from(volume.0) << 32 | u64::from(number));
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % 1_000_000 < u64::from(self.millionths)
    }

    /// Whether every page is checked.
    pub fn is_all(&self) -> bool {
        self.millionths >= 1_000_000
    }
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// `root`, `leaf` (of a root; its pages are unknown, so this stands for all that it may list), `page`, `extent`,
    /// `map`, or `base` if the origin of a clone is missing.
    pub part: &'static str,
    /// Key of the object.
    pub key: String,
    /// Bad bytes of the object; absent if the whole object is bad.
    pub object_bytes: Option<[u64; 2]>,
    /// The volume; empty if all volumes are affected.
    pub volume: String,
    /// First sector of 512 bytes that cannot be read.
    pub lba: u64,
    /// Number of sectors that cannot be read; 0 if the whole set is affected.
    pub sectors: u64,
    /// The reason.
    pub reason: String,
    /// The store of this copy, if the copies of several stores are read separately; other copies may be good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The newest snapshot that has it, if the set's current state does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// Result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The set.
    pub set: String,
    /// Its number.
    pub id: u64,
    /// Its generation.
    pub generation: u64,
    /// The store whose copies were read, if those of several stores are read separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The state covered by the store; absent before the first checkpoint.
    pub covered: Option<Covered>,
    /// Number of objects that the checkpoint names: its root, page packs and segments.
    pub objects: u64,
    /// Whether its root is divided into leaves (ADR 0034).
    pub in_leaves: bool,
    /// Number of snapshots that the head lists.
    pub snapshots: u64,
    /// Number of pages of the map, including those that only snapshots have.
    pub pages: u64,
    /// Number of pages that were checked.
    pub pages_checked: u64,
    /// Number of sealed extents that were opened.
    pub extents: u64,
    /// Bytes that were read from the store.
    pub bytes: u64,
    /// Seed of the sample; absent when everything was checked.
    pub seed: Option<u64>,
    /// The first damaged places, up to the requested limit.
    pub damaged: Vec<Damage>,
    /// Total number of damaged places.
    pub damaged_total: u64,
    /// Segments for which the root counts more sectors in use than the pages refer to. This happens after a damaged map
    /// page was given up. It is no damage, but the space stays in use: nothing that the root counts is deleted.
    pub overcounted_segments: u64,
    /// Sectors of 512 bytes that are counted too much in these segments.
    pub overcounted_sectors: u64,
    /// The comparison of the root's counts with its pages was skipped, because not all pages can be read. Absent if it
    /// was done or not wanted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sums_skipped: bool,
    /// Maximum number of listed damaged places.
    #[serde(skip)]
    listed_max: u32,
    /// Damaged leaves: key, and byte range.
    #[serde(skip)]
    leaves: BTreeSet<(String, Option<[u64; 2]>)>,
}

impl Report {
    fn note(&mut self, damage: Damage) {
        // Roots share leaves as they share pages: a damaged leaf is reported for the first root only.
        if damage.part == "leaf" && !self.leaves.insert((damage.key.clone(), damage.object_bytes)) {
            return;
        }
        self.damaged_total += 1;
        if self.damaged.len() < self.listed_max as usize {
            self.damaged.push(damage);
        }
    }
}

/// What is read: a set or one of its snapshots.
pub(crate) struct Subject {
    /// Its number.
    pub set: SetId,
    /// Its key, opened.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    /// The store's place, if it is one of several and its copies are read.
    pub copy: Option<String>,
    /// Its volumes.
    pub volumes: Vec<(VolumeId, Name)>,
    /// The snapshot's name, if it is one; damage is reported with it.
    pub snapshot: Option<Name>,
    /// Limits the reading rate.
    pub throttle: Option<Arc<dyn Throttle>>,
    /// Whether an object that the store refuses to give is reported as damage. If not, it ends the reading: for a scrub
    /// and a recovery nothing is known then.
    pub reports_refusals: bool,
}

/// Limits the reading rate: told the number of bytes read, it makes the reader wait.
pub(crate) trait Throttle: Send + Sync {
    /// Reports that this many bytes were read.
    fn spent(&self, bytes: u64) -> BoxFuture<'_, ()>;
}

impl Subject {
    /// Subject of a set that was found; with `at`, of the copies in that store of several.
    pub fn of(found: &Found, at: Option<usize>) -> Self {
        let volumes = found.head.content.volumes.iter().map(|(id, volume)| (*id, volume.name.clone())).collect();
        let (store, copy) = copy_of(&found.store, at);
        let (set, key) = (found.set, found.key.clone());
        Self { set, key, store, copy, volumes, snapshot: None, throttle: None, reports_refusals: false }
    }

    /// The same, and an object that the store refuses to give is reported.
    fn reporting_refusals(self) -> Self {
        Self { reports_refusals: true, ..self }
    }

    /// Whether an error means bad or missing bytes, as opposed to a store that does not answer.
    fn is_damage(&self, e: &StoreError) -> bool {
        let damage = matches!(e.disposition(), Disposition::NotFound | Disposition::Corrupt);
        damage || (self.reports_refusals && e.is_of_object())
    }

    fn snapshot_name(&self) -> Option<String> {
        self.snapshot.as_ref().map(Name::to_string)
    }

    fn volume_name(&self, volume: VolumeId) -> String {
        let known = self.volumes.iter().find(|(id, _)| *id == volume);
        known.map_or_else(|| volume.to_string(), |(_, name)| name.to_string())
    }

    async fn spent(&self, bytes: u64) {
        if let Some(throttle) = &self.throttle {
            throttle.spent(bytes).await;
        }
    }
}

/// The store number `at` of several, and its place; otherwise the store itself.
pub(crate) fn copy_of(store: &Arc<dyn ObjectStore>, at: Option<usize>) -> (Arc<dyn ObjectStore>, Option<String>) {
    match store.several().zip(at).and_then(|(several, at)| several.copy_at(at)) {
        Some(copy) => {
            let place = copy.place().to_owned();
            (copy, Some(place))
        }
        None => (store.clone(), None),
    }
}

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

/// Checks one set; for a clone also its origins, which are looked up in `all`, the sets of its store. `copy`: the
/// number of the store whose copies are read, if there are several; otherwise each object is read from the store that
/// answers first. `listed_max`: limit of listed damaged places, see [`LISTED`]. `progress` is called with the finished
/// and the total number of pages.
///
/// # Errors
/// The store did not answer or refused: nothing is known then. Damage is not an error but part of the report, and so is
/// an object that the store refuses to give while it gives others.
pub async fn verify(
    found: &Found,
    all: &[Found],
    sample: Sample,
    copy: Option<usize>,
    listed_max: u32,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, StoreError> {
    let subject = Subject::of(found, copy).reporting_refusals();
    let mut report = Report {
        set: found.head.name.to_string(),
        id: found.set.0,
        generation: found.head.life.generation,
        store: subject.copy.clone(),
        covered: found.head.covered,
        seed: (!sample.is_all()).then_some(sample.seed),
        listed_max,
        ..Report::default()
    };
    let mut next = found.head.content.root.map(|root| (subject, root));
    let mut current = None;
    // A clone's root, then its base's, and so on, each with the key of its own set.
    for _ in 0..=CLONE_DEPTH_MAX {
        let Some((subject, at)) = next.take() else { break };
        let opened = subject.read_root(at).await?;
        report.bytes += opened.bytes;
        opened.damaged.into_iter().for_each(|damage| report.note(damage));
        // Snapshots can still be read.
        let Some(root) = opened.root else { break };
        report.in_leaves |= subject.set == found.set && root.is_in_leaves();
        report.objects += 1 + root.object_count();
        check_pages(&subject, &root, &[], sample, progress, &mut report).await?;
        if let Some(base) = root.base() {
            match all.iter().find(|origin| origin.set == base.set && origin.url == found.url) {
                Some(origin) => next = Some((Subject::of(origin, copy).reporting_refusals(), base.root)),
                None => report.note(Damage {
                    part: "base",
                    key: keys::root(base.set, base.root.object),
                    object_bytes: None,
                    volume: String::new(),
                    lba: 0,
                    sectors: 0,
                    reason: format!(
                        "found no head of set {} in the store that opens with this key, expected that of its origin",
                        base.set
                    ),
                    store: subject.copy.clone(),
                    snapshot: None,
                }),
            }
        }
        if subject.set == found.set {
            current = Some(root);
        }
    }
    snapshots::check(found, copy, current.as_ref(), sample, progress, &mut report).await?;
    Ok(report)
}

/// Checks a root's pages as far as it opens, except pages shared with one of `others`: these were already read.
async fn check_pages(
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

fn bounds(range: &Range<u64>) -> Option<[u64; 2]> {
    Some([range.start, range.end])
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

impl Damage {
    /// The damaged byte range of the volume.
    pub fn volume_bytes(&self) -> Range<u64> {
        let start = self.lba.saturating_mul(SECTOR_BYTES);
        start..start.saturating_add(self.sectors.saturating_mul(SECTOR_BYTES))
    }
}

#[cfg(test)]
pub(crate) mod tests;
