//! Checks the snapshots that a set's head lists (ADR 0035): data that the set's current state no longer has.
//!
//! Snapshots are read from the newest to the oldest, so that a page shared by several is read once: snapshots that
//! share a page are neighbours. Memory holds three roots: the set's, the previous snapshot's, and its own.

use super::pages::check_pages;
use super::report::{Report, Sample};
use super::subject::Subject;
use crate::found::Found;
use holdfast_control::set::Snapshot;
use holdfast_store::StoreError;
use holdfast_types::{Name, ObjectId};
use holdfast_volume::map::Remains;
use std::collections::BTreeSet;

/// Checks what the set's current state does not have; `current` is its root, if that opens.
///
/// # Errors
/// The store did not answer or refused.
pub(super) async fn check(
    found: &Found,
    copy: Option<usize>,
    current: Option<&Remains>,
    sample: Sample,
    progress: &(dyn Fn(u64, u64) + Sync),
    report: &mut Report,
) -> Result<(), StoreError> {
    let mut all: Vec<(&Name, &Snapshot)> = found.head.links.snapshots.snapshots.iter().collect();
    // Snapshots of an earlier life have no position in this log.
    all.sort_by_key(|(name, snapshot)| std::cmp::Reverse((snapshot.upto, snapshot.at_unix_ms, *name)));
    report.snapshots = all.len() as u64;
    // Several snapshots may be of one checkpoint, and one may be of the current one.
    let mut read: BTreeSet<ObjectId> = found.head.content.root.iter().map(|root| root.object).collect();
    let mut before: Option<Remains> = None;
    for (name, snapshot) in all {
        if !read.insert(snapshot.root.object) {
            continue;
        }
        let volumes = snapshot.volumes.iter().map(|(id, volume)| (*id, volume.name.clone())).collect();
        let subject =
            Subject { volumes, snapshot: Some(name.clone()), ..Subject::of(found, copy).reporting_refusals() };
        let opened = subject.read_root(snapshot.root).await?;
        report.bytes += opened.bytes;
        opened.damaged.into_iter().for_each(|damage| report.note(damage));
        let Some(root) = opened.root else { continue };
        let others: Vec<&Remains> = current.into_iter().chain(before.as_ref()).collect();
        check_pages(&subject, &root, &others, sample, progress, report).await?;
        before = Some(root);
    }
    Ok(())
}
