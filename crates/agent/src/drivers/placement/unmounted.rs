//! Datasets that are not mounted, by the places of PostgreSQL's files.
//!
//! A file system looks whole without them: in the place of each is a directory of the dataset above, perhaps with an
//! older copy of what belongs there.

use super::place::{OWN, OffSet, What};
use super::scratch;
use crate::drivers::zfs::datasets::Unmounted;
use holdfast_host::mounts::Mount;
use std::path::Path;

/// Directories of the write-ahead log in the data directory.
const WAL: [&str; 2] = ["pg_wal", "pg_xlog"];

/// Directories of PostgreSQL's in those.
const IN_WAL: [&str; 2] = ["archive_status", "summaries"];

/// How the name of each version's directory in a tablespace begins.
const OF_VERSION: &str = "PG_";

/// Text about those of `unmounted` without which PostgreSQL must not be started, "" for none (ONSET-L4). `on`: places
/// on the set. Pure.
pub(super) fn told(on: &[OffSet], unmounted: &[Unmounted], mounts: &[Mount]) -> String {
    // Another dataset may be mounted in its place, as a clone that took it.
    let is_free = |at: &Path| !mounts.iter().any(|mount| mount.at == at);
    let needed = unmounted.iter().filter(|missing| is_free(&missing.at));
    let told = needed.filter_map(|missing| {
        let place = on.iter().find(|place| belongs(place, &missing.at))?;
        let (path, at, Unmounted { name, advice, .. }) = (place.path.display(), missing.at.display(), missing);
        Some(format!(
            "{path}: found nothing mounted on {at}, expected dataset {name}: {advice}. First look into {at}: what lies \
             there now, also what PostgreSQL wrote there, is hidden by it. If PostgreSQL is to run without it: `zfs set canmount=off {name}`"
        ))
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Whether a dataset that belongs at `at` would hide this place, or holds some of its files.
fn belongs(place: &OffSet, at: &Path) -> bool {
    let Some((real, Some(mount))) = &place.real else { return false };
    // One further up, or at the same place as what is mounted, would not be seen there.
    let hides = real.starts_with(at) && at.starts_with(&mount.at) && at != mount.at;
    hides || holds(place.what, real, at)
}

/// Whether it is for a directory of PostgreSQL's in `real`. Any other one may be a person's, such as a clone.
fn holds(what: What, real: &Path, at: &Path) -> bool {
    let Ok(rest) = at.strip_prefix(real) else { return false };
    let mut names = rest.components().map(|name| name.as_os_str().to_string_lossy());
    let Some(first) = names.next() else { return false };
    let first: &str = &first;
    let is_wals = |name: &str| IN_WAL.contains(&name);
    let is_own = match what {
        What::Data if WAL.contains(&first) => names.next().is_none_or(|name| is_wals(&name)),
        What::Data => OWN.contains(&first),
        What::Tablespace => first.starts_with(OF_VERSION),
        What::Wal => is_wals(first),
        What::Own => true,
        What::Other => false,
    };
    is_own && !scratch::is_below(real, at)
}
