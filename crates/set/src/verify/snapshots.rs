//! The snapshots that a set's head lists (ADR 0035): what they show besides the set as it is.
//!
//! One after the other, the newest first, so that a page which several show is read once: who has it has it as the one before has. In memory are the roots of
//! three: the set's, that of the one before, and its own.

use super::{Report, Sample, Subject, check_pages};
use crate::recovery::Found;
use holdfast_control::set::Snapshot;
use holdfast_store::StoreError;
use holdfast_types::{Name, ObjectId};
use holdfast_volume::map::Remains;
use std::collections::BTreeSet;

/// Checks what the set as it is, whose root is `current` (where it opens), does not show.
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
    // Those of an earlier life have no place in this log.
    all.sort_by_key(|(name, snapshot)| std::cmp::Reverse((snapshot.upto, snapshot.at_unix_ms, *name)));
    report.snapshots = all.len() as u64;
    // Several may be of one checkpoint, and one of the last.
    let mut read: BTreeSet<ObjectId> = found.head.content.root.iter().map(|root| root.object).collect();
    let mut before: Option<Remains> = None;
    for (name, snapshot) in all {
        if !read.insert(snapshot.root.object) {
            continue;
        }
        let volumes = snapshot.volumes.iter().map(|(id, volume)| (*id, volume.name.clone())).collect();
        let subject = Subject { volumes, snapshot: Some(name.clone()), ..Subject::of(found, copy) };
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
