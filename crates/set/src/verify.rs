//! Reads a set as its store has it, and names what is damaged: every byte that a read of the set could meet, from the head over root and
//! pages to the sealed extents, each opened and authenticated (R9). Offline: no gateway is asked.
//!
//! Of the snapshots that the head lists what they show besides is read as well (`snapshots`). What no map names any more (dead extents, objects of older
//! checkpoints) is not read, and its damage harms nobody.

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

/// Neighbouring extents are fetched together up to so many bytes.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// Pages that are checked at once; each has one request under way.
const PAGES: usize = 8;

/// Damaged places of a set that are listed where nobody asks for another number; more are counted. A report of as many takes a few MiB.
pub const LISTED: u32 = 10_000;

/// … and that may be listed at all: some hundreds of MiB.
pub const LISTED_MAX: u32 = 1_000_000;

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Pages that are checked, in millionths of all.
    pub millionths: u32,
    /// Which of them: the same seed takes the same ones.
    pub seed: u64,
}

impl Sample {
    /// All of them.
    pub const ALL: Sample = Sample { millionths: 1_000_000, seed: 0 };

    fn takes(&self, volume: VolumeId, number: u32) -> bool {
        // splitmix64: evenly spread over seeds and places.
        let mut z = self.seed ^ (u64::from(volume.0) << 32 | u64::from(number));
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % 1_000_000 < u64::from(self.millionths)
    }

    /// Whether nothing is left out.
    pub fn is_all(&self) -> bool {
        self.millionths >= 1_000_000
    }
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// `root`, `leaf` (of a root: which pages it lists is not known, so it stands for all that it may list), `page`, `extent`, `map`, or `base` where what a clone is
    /// a clone of is not there.
    pub part: &'static str,
    /// Key of the object.
    pub key: String,
    /// Bytes of the object that are bad; absent where it is the object as a whole.
    pub object_bytes: Option<[u64; 2]>,
    /// The volume; empty where it is all of them.
    pub volume: String,
    /// First sector of 512 bytes that cannot be read.
    pub lba: u64,
    /// Sectors that cannot be read; 0 where it is the whole set.
    pub sectors: u64,
    /// Why.
    pub reason: String,
    /// Whose copy it is, where the copies of several stores are read one by one; others may be whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The newest snapshot that shows it, where the set as it is does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// What was read and found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The set.
    pub set: String,
    /// Its number.
    pub id: u64,
    /// Its generation.
    pub generation: u64,
    /// Whose copies were read, where those of several stores are read one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// What the store holds; absent before the first checkpoint.
    pub covered: Option<Covered>,
    /// Objects that the checkpoint names: its root, page packs and segments.
    pub objects: u64,
    /// Its root is in leaves (ADR 0034).
    pub in_leaves: bool,
    /// Snapshots that the head lists.
    pub snapshots: u64,
    /// Pages of the map, those of snapshots included that are read for them alone.
    pub pages: u64,
    /// Pages that were checked.
    pub pages_checked: u64,
    /// Sealed extents that were opened.
    pub extents: u64,
    /// Bytes that were read from the store.
    pub bytes: u64,
    /// Seed of the sample; absent when everything was checked.
    pub seed: Option<u64>,
    /// Damaged places, the first of them: as many as were asked for.
    pub damaged: Vec<Damage>,
    /// How many there are in all.
    pub damaged_total: u64,
    /// Segments of which the root counts more as in use than the pages refer to, as a map page leaves them that was damaged and given up. No damage: space
    /// that stays taken, for nothing that the root counts is deleted.
    pub overcounted_segments: u64,
    /// Sectors of 512 bytes that are counted too much in them.
    pub overcounted_sectors: u64,
    /// What the root counts was to be compared with its pages, and was not, for not all of them can be read; absent where it was compared, or was not to be.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sums_skipped: bool,
    /// Damaged places that are listed at most.
    #[serde(skip)]
    listed_max: u32,
    /// Damaged leaves: key, and bytes of it.
    #[serde(skip)]
    leaves: BTreeSet<(String, Option<[u64; 2]>)>,
}

impl Report {
    fn note(&mut self, damage: Damage) {
        // Roots share leaves as they do pages: it is told of the first that has it.
        if damage.part == "leaf" && !self.leaves.insert((damage.key.clone(), damage.object_bytes)) {
            return;
        }
        self.damaged_total += 1;
        if self.damaged.len() < self.listed_max as usize {
            self.damaged.push(damage);
        }
    }
}

/// What is read: a set, or a snapshot of one.
pub(crate) struct Subject {
    /// Its number.
    pub set: SetId,
    /// Its key, opened.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    /// That store's place, where it is one of several and its copies are what is read.
    pub copy: Option<String>,
    /// Its volumes.
    pub volumes: Vec<(VolumeId, Name)>,
    /// Its name, where it is a snapshot and damage is told with it.
    pub snapshot: Option<Name>,
    /// Slows the reading down.
    pub throttle: Option<Arc<dyn Throttle>>,
}

/// Slows reading down: told of what was read, it lets the reader wait.
pub(crate) trait Throttle: Send + Sync {
    /// So many bytes were read.
    fn spent(&self, bytes: u64) -> BoxFuture<'_, ()>;
}

impl Subject {
    /// A set as it was found; of several stores the copies of the `at`th, where one is named.
    pub fn of(found: &Found, at: Option<usize>) -> Self {
        let volumes = found.head.content.volumes.iter().map(|(id, volume)| (*id, volume.name.clone())).collect();
        let (store, copy) = copy_of(&found.store, at);
        Self { set: found.set, key: found.key.clone(), store, copy, volumes, snapshot: None, throttle: None }
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

/// The `at`th of several stores, and its place; else the store as it is.
pub(crate) fn copy_of(store: &Arc<dyn ObjectStore>, at: Option<usize>) -> (Arc<dyn ObjectStore>, Option<String>) {
    match store.several().zip(at).and_then(|(several, at)| several.copy_at(at)) {
        Some(copy) => {
            let place = copy.place().to_owned();
            (copy, Some(place))
        }
        None => (store.clone(), None),
    }
}

/// What checking one page gave.
#[derive(Default)]
pub(crate) struct Checked {
    live: Live,
    pub extents: u64,
    pub bytes: u64,
    pub damaged: Vec<Damage>,
    /// The page itself could be read.
    whole: bool,
}

/// Whether an error means that the bytes are bad or gone, rather than that the store did not answer.
fn is_damage(e: &StoreError) -> bool {
    matches!(e.disposition(), Disposition::NotFound | Disposition::Corrupt)
}

/// Checks one set; of a clone also what it is a clone of, for which `all` are the sets of its store. `copy`: of several stores, the copies of this one; else a copy of each object, whichever store answers first. `listed_max`: damaged
/// places that are listed, see [`LISTED`]. `progress` hears of pages done and pages to do.
///
/// # Errors
/// The store did not answer or refused: nothing is known then. Damage is no error but part of the report.
pub async fn verify(
    found: &Found,
    all: &[Found],
    sample: Sample,
    copy: Option<usize>,
    listed_max: u32,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, StoreError> {
    let subject = Subject::of(found, copy);
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
    // A clone's root, then its base's, and so on: each with the key of its own set.
    for _ in 0..=CLONE_DEPTH_MAX {
        let Some((subject, at)) = next.take() else { break };
        let opened = subject.read_root(at).await?;
        report.bytes += opened.bytes;
        opened.damaged.into_iter().for_each(|damage| report.note(damage));
        // What snapshots show can be read all the same.
        let Some(root) = opened.root else { break };
        report.in_leaves |= subject.set == found.set && root.is_in_leaves();
        report.objects += 1 + root.object_count();
        check_pages(&subject, &root, &[], sample, progress, &mut report).await?;
        if let Some(base) = root.base() {
            match all.iter().find(|origin| origin.set == base.set && origin.url == found.url) {
                Some(origin) => next = Some((Subject::of(origin, copy), base.root)),
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

/// Checks a root's pages, as far as it opens, but for those that one of `others` has as well: these were read.
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
    // A small share of a small set is a page all the same: "clean" is not said of nothing.
    if chosen.is_empty() {
        chosen.extend(one);
    }
    let total = chosen.len() as u64;
    let before = report.pages_checked;
    report.pages += count;
    progress(0, total);
    let mut live = Live::new();
    // The sums are those of all pages.
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

/// The root says of each segment how much of it the pages refer to. Too little would have something deleted that is needed; too much costs space.
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
        Err(e) if is_damage(&e) => Err(e.to_string()),
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

/// A sealed extent and the sectors of the page that it is needed for.
#[derive(Clone, Debug)]
struct Needed {
    object: ObjectId,
    place: ExtentPlace,
    sealed_lba: Lba,
    parts: Vec<(Lba, Sectors)>,
}

/// The sealed extents that a page needs, each once, in runs of neighbours.
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
        // The object ends early: one by one says which are still whole.
        Err(e) if is_damage(&e) && run.len() > 1 && e.disposition() == Disposition::Corrupt => None,
        Err(e) if is_damage(&e) => {
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
            Err(e) if is_damage(&e) => Err(e.to_string()),
            Err(e) => return Err(e),
        };
        checked.extents += 1;
        if let Err(reason) = opened {
            checked.damaged.extend(damage(subject, volume, extent, &key, &reason));
        }
        // A run is up to 4 MiB of decryption: others want the thread too.
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
    /// The damaged bytes of the volume.
    pub fn volume_bytes(&self) -> Range<u64> {
        let start = self.lba.saturating_mul(SECTOR_BYTES);
        start..start.saturating_add(self.sectors.saturating_mul(SECTOR_BYTES))
    }
}

#[cfg(test)]
pub(crate) mod tests;
