//! Applies the difference of two snapshots to images of the one, and compares them with the other (HISTORY-H4).
//!
//! Images are kept by name, like a user's: a name may belong to another volume by now, and that is tested. The ranges
//! are the admin API's, from the gateway's own maps; the content of a volume at a snapshot, in sectors, is the model's.

use super::model::{Volume, Volumes};
use super::world::World;
use holdfast_api::compared::{self, Compared};
use holdfast_api::v1;
use holdfast_control::set::Snapshot;
use holdfast_set::diff;
use holdfast_types::{Name, SECTOR_BYTES, Sectors, VolumeId};
use holdfast_volume::map::Changed;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// A store that does not answer is not waited for any longer (R8): a later step tries again.
const LIMIT: Duration = Duration::from_secs(5);

/// The snapshot's volumes, as the admin API lists them.
fn listed(snapshot: &Snapshot) -> Vec<v1::Volume> {
    let message = |(id, volume): (&VolumeId, &holdfast_control::set::Volume)| v1::Volume {
        id: id.0,
        name: volume.name.to_string(),
        size_bytes: volume.size.0 * SECTOR_BYTES,
    };
    snapshot.volumes.iter().map(message).collect()
}

fn by_name(volumes: &Volumes) -> BTreeMap<&str, &Volume> {
    volumes.values().map(|volume| (volume.name.as_str(), volume)).collect()
}

impl World {
    /// Turns images of one snapshot's volumes into those of another one, both by name. `false`: the maps could not be
    /// read now. Fails when the result differs from the other snapshot.
    pub async fn compare_snapshots(&mut self, earlier: &Name, later: &Name) -> Result<bool, String> {
        let state = self.state();
        let (Some(a), Some(b)) = (state.snapshots.get(earlier), state.snapshots.get(later)) else { return Ok(true) };
        let [before, after] = {
            let order = self.common.journal.order();
            [a, b].map(|snapshot| order.model.shown(snapshot.request, snapshot.upto.index.0))
        };
        let (images, expected) = (by_name(&before), by_name(&after));
        let told = compared::Volumes::compare(&listed(a), &listed(b));
        let mut made = BTreeMap::new();
        for one in &told.there {
            let volume = VolumeId(one.volume.id);
            let Ok(ranges) = timeout(LIMIT, self.ranges(a, b, volume)).await else { return Ok(false) };
            let Some(ranges) = ranges? else { return Ok(false) };
            let name = one.volume.name.as_str();
            let Some(content) = expected.get(name) else {
                return Err(format!("SET-S6: {later} lists {name}, which it does not show"));
            };
            made.insert(name, patched(one, &images, content, &ranges)?);
        }
        self.stats.compared += 1;
        self.say(|| format!("from {earlier} to {later}: {} volumes, {} gone", made.len(), told.gone.len()));
        let wrong = expected.iter().find(|(name, volume)| made.get(**name) != Some(**volume));
        match wrong {
            Some((name, volume)) => {
                let found = made.get(*name).map_or_else(|| "no volume".to_string(), |made| made.unlike(volume));
                Err(format!("R4: images of {earlier}, brought to {later}: {name}: found {found}"))
            }
            None => Ok(true),
        }
    }

    /// All ranges of a volume, page by page. `None`: the maps could not be read now.
    async fn ranges(&self, a: &Snapshot, b: &Snapshot, volume: VolumeId) -> Result<Option<Vec<Changed>>, String> {
        let mapping = self.gateway.server.reader.mapping();
        let (mut from, mut ranges) = (0, Vec::new());
        loop {
            let Ok(part) = diff::part(mapping, Some(a), b, volume, from).await else { return Ok(None) };
            ranges.extend(part.changed);
            match part.next_page {
                None => break,
                Some(next) if next > from => from = next,
                Some(next) => return Err(format!("a comparison of {volume} goes from page {from} on to {next}")),
            }
        }
        let ordered = ranges.windows(2).all(|pair| pair[0].lba.0 + pair[0].sectors.0 <= pair[1].lba.0);
        if ordered { Ok(Some(ranges)) } else { Err(format!("ranges of {volume} are not in order: {ranges:?}")) }
    }
}

/// An image after the changes of its volume: taken by name from the existing ones, with `content` in the listed ranges
/// only.
fn patched(
    one: &Compared,
    images: &BTreeMap<&str, &Volume>,
    content: &Volume,
    ranges: &[Changed],
) -> Result<Volume, String> {
    let size = Sectors(one.volume.size_bytes / SECTOR_BYTES);
    let mut image = match one.before() {
        Some(before) => {
            let image = images.get(before.name.as_str()).map(|image| Volume::clone(image));
            image.ok_or_else(|| format!("there is no image {}", before.name))?
        }
        None => Volume::new(content.name.clone(), 0),
    };
    image.become_like(&content.name, size.0);
    for range in ranges {
        let sectors = range.lba.0..range.lba.0 + range.sectors.0;
        if sectors.end > size.0 {
            return Err(format!("{}: a range up to sector {} of {size}", one.volume.name, sectors.end));
        }
        if range.zero { image.clear(sectors) } else { image.copy(sectors, content) }
    }
    Ok(image)
}
