//! Which snapshots come back, told before anything is changed.

use crate::cli::Common;
use crate::command::stored::of_recovery;
use crate::command::tell;
use crate::exit::CliError;
use holdfast_set::recovery::Found;
use holdfast_set::recovery::snapshots::{LeftOut, Looked, leave_out};

/// Looks for all that the set's snapshots need, as far as it is not `known`, and leaves those out of which something is gone: they keep the set from nothing.
pub(super) async fn look(common: &Common, found: &mut Found, known: &mut Looked) -> Result<Vec<LeftOut>, CliError> {
    let name = found.head.name.clone();
    if found.head.links.snapshots.is_blank() {
        // Before the first checkpoint there is nothing that a snapshot could show.
        if found.head.covered.is_some() {
            tell(common, &format!("set {name}: its head lists no snapshots"));
        }
        return Ok(Vec::new());
    }
    let left_out = leave_out(found, known).await.map_err(|error| of_recovery(&error))?;
    let listed = names(found);
    let schedule = &found.head.links.snapshots.schedule;
    tell(common, &format!("set {name}: snapshots that come back: {}; schedule: {schedule}", in_words(&listed)));
    for LeftOut { name: snapshot, reason } in &left_out {
        tell(common, &format!("set {name}: snapshot {snapshot} does not come back: {reason}"));
    }
    Ok(left_out)
}

/// Those that the head lists.
pub(super) fn names(found: &Found) -> Vec<String> {
    found.head.links.snapshots.snapshots.keys().map(ToString::to_string).collect()
}

fn in_words(names: &[String]) -> String {
    if names.is_empty() { "none".to_string() } else { format!("{} ({})", names.len(), names.join(", ")) }
}

/// What would come back and what would not, in a sentence or two, with a blank behind; nothing where there are no snapshots.
pub(super) fn planned<'a>(sets: impl Iterator<Item = (&'a Found, &'a [LeftOut])>) -> String {
    let (mut back, mut gone) = (Vec::new(), Vec::new());
    for (found, left_out) in sets {
        let set = &found.head.name;
        back.extend(names(found).into_iter().map(|name| format!("{set}@{name}")));
        gone.extend(left_out.iter().map(|one| format!("{set}@{} ({})", one.name, one.reason)));
    }
    let sentence = |what: &str, all: &[String]| match all.is_empty() {
        true => String::new(),
        false => format!("Snapshots that {what}: {}. ", in_words(all)),
    };
    sentence("come back", &back) + &sentence("do not come back", &gone)
}
