//! Chooses what to write again because it is under an older data key (ADR 0023), in addition to garbage collection.

use super::Spared;
use crate::map::Objects;
use holdfast_types::{ObjectId, SECTOR_BYTES};
use std::collections::BTreeSet;

/// Segments under a lower data key than `key_id` to be emptied, least used first. At most `budget_bytes` of raw data
/// together with `chosen`, but at least one segment if `chosen` is empty. `spared` segments cannot be read or moved,
/// and keep their key.
pub fn segments_to_reseal(
    root: &Objects,
    key_id: u32,
    budget_bytes: u64,
    chosen: &[ObjectId],
    spared: &Spared,
) -> Vec<ObjectId> {
    // Nothing is gone through where no key was changed.
    if root.keys_needed().into_iter().all(|key| key >= key_id) {
        return Vec::new();
    }
    let mut old: Vec<(u64, ObjectId)> = root
        .segments()
        .filter(|(object, usage)| root.key_of(*object) < key_id && !spared.has(*object, usage))
        .map(|(object, usage)| (usage.live_sectors.0 * SECTOR_BYTES, object))
        .collect();
    old.sort_unstable();
    let taken = |(bytes, object): &(u64, ObjectId)| if chosen.contains(object) { *bytes } else { 0 };
    let mut copied: u64 = old.iter().map(taken).sum();
    let mut out = Vec::new();
    for (bytes, object) in old {
        if chosen.contains(&object) {
            continue;
        }
        copied += bytes;
        if copied > budget_bytes && !(out.is_empty() && chosen.is_empty()) {
            break;
        }
        out.push(object);
    }
    out
}

/// Page packs under a lower data key than `key_id` whose pages are to be written again: whole packs, at most
/// `pages_max` pages, but at least one pack.
pub fn packs_to_reseal(root: &Objects, key_id: u32, pages_max: u64) -> BTreeSet<ObjectId> {
    if root.keys_needed().into_iter().all(|key| key >= key_id) {
        return BTreeSet::new();
    }
    let old = root.pack_uses().into_iter().filter(|(object, _)| root.key_of(*object) < key_id);
    let (mut out, mut pages) = (BTreeSet::new(), 0);
    for (object, usage) in old {
        pages += usage.live_pages;
        if pages > pages_max && !out.is_empty() {
            break;
        }
        out.insert(object);
    }
    out
}

#[cfg(test)]
mod tests;
