//! Lists the snapshots that can be recovered, before anything is changed.

use crate::cli::Common;
use crate::command::console::tell;
use crate::command::store_access::of_recovery;
use crate::exit::CliError;
use holdfast_set::recovery::Found;
use holdfast_set::recovery::snapshots::{CheckedRoots, LeftOut, leave_out};

/// Checks the objects of the set's snapshots that are not `known` yet, and leaves out snapshots with missing objects:
/// they do not prevent the recovery.
pub(super) async fn look(
    common: &Common,
    found: &mut Found,
    known: &mut CheckedRoots,
) -> Result<Vec<LeftOut>, CliError> {
    let name = found.head.name.clone();
    if found.head.links.snapshots.is_blank() {
        // There are no snapshots before the first checkpoint.
        if found.head.covered.is_some() {
            tell(common, &format!("set {name}: its head lists no snapshots"));
        }
        return Ok(Vec::new());
    }
    let left_out = leave_out(found, known).await.map_err(|error| of_recovery(&error))?;
    let listed = names(found);
    let schedule = &found.head.links.snapshots.schedule;
    tell(common, &format!("set {name}: snapshots to recover: {}; schedule: {schedule}", in_words(&listed)));
    for LeftOut { name: snapshot, reason } in &left_out {
        tell(common, &format!("set {name}: snapshot {snapshot} cannot be recovered: {reason}"));
    }
    Ok(left_out)
}

/// The snapshots in the head.
pub(super) fn names(found: &Found) -> Vec<String> {
    found.head.links.snapshots.snapshots.keys().map(ToString::to_string).collect()
}

fn in_words(names: &[String]) -> String {
    if names.is_empty() { "none".to_string() } else { format!("{} ({})", names.len(), names.join(", ")) }
}

/// The snapshots that can and cannot be recovered, as sentences with a trailing blank; "" without snapshots.
pub(super) fn planned<'a>(sets: impl Iterator<Item = (&'a Found, &'a [LeftOut])>) -> String {
    let (mut back, mut gone) = (Vec::new(), Vec::new());
    for (found, left_out) in sets {
        let set = &found.head.name;
        back.extend(names(found).into_iter().map(|name| format!("{set}@{name}")));
        gone.extend(left_out.iter().map(|one| format!("{set}@{} ({})", one.name, one.reason)));
    }
    let sentence = |what: &str, all: &[String]| match all.is_empty() {
        true => String::new(),
        false => format!("Snapshots that {what} be recovered: {}. ", in_words(all)),
    };
    sentence("can", &back) + &sentence("cannot", &gone)
}
