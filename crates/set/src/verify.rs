//! Reads a set from its store and reports damage. Covers every byte that a read of the set could need: the head, root,
//! pages and sealed extents, each opened and authenticated (R9). Works offline: no gateway is asked.
//!
//! Also reads data that only the snapshots listed in the head have (`snapshots`). Data that no map names any more (dead
//! extents, objects of older checkpoints) is not read; its damage is harmless.

use crate::found::Found;
use holdfast_control::set::CLONE_DEPTH_MAX;
use holdfast_store::{StoreError, keys};
use pages::check_pages;

mod pages;
mod report;
mod root;
mod snapshots;
mod subject;

pub(crate) use pages::{Checked, check_page};
pub use report::{Damage, LISTED, LISTED_MAX, Report, Sample};
pub(crate) use root::LeavesRead;
pub(crate) use subject::{Subject, Throttle, copy_of};

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
    let mut report = Report::of(found, subject.copy.clone(), sample, listed_max);
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

#[cfg(test)]
pub(crate) mod tests;
