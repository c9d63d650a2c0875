//! Which snapshots come back, told before anything is changed.

use crate::cli::Common;
use crate::command::stored::of_recovery;
use crate::command::tell;
use crate::exit::CliError;
use holdfast_set::recovery::Found;
use holdfast_set::recovery::snapshots::{LeftOut, Looked, leave_out};

/// Said where the head is of a version that they read. The raised one is as well; those that the new cluster writes are not, and who cannot read a head takes it for no word
/// (R8).
const OLD_BUILDS: &str = "an old gateway of a build of before feature level 8 that does not see the store now cannot read what the new cluster writes there later, and goes \
     on answering: stop all of them, and wipe their data directories";

/// Looks for all that the set's snapshots need, as far as it is not `known`, and leaves those out of which something is gone: they keep the set from nothing.
pub(super) async fn look(common: &Common, found: &mut Found, known: &mut Looked) -> Result<Vec<LeftOut>, CliError> {
    let name = found.head.name.clone();
    if found.head.links.snapshots.is_blank() {
        for remark in of_blank(found.head.covered.is_some(), found.head.raised_for != 0) {
            tell(common, &format!("set {name}: {remark}"));
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

/// What is said of a set whose head lists nothing. `covered`: it has a checkpoint; before that there is nothing that a snapshot could show.
fn of_blank(covered: bool, as_raised: bool) -> Vec<String> {
    let blank = covered.then(|| format!("its head lists no snapshots, {}", blank_where(as_raised)));
    blank.into_iter().chain([OLD_BUILDS.to_string()]).collect()
}

/// Where heads that list nothing come from. `as_raised`: an earlier recovery wrote it, and nothing was noted in it since.
fn blank_where(as_raised: bool) -> &'static str {
    match as_raised {
        true => "as the recovery before left it: none came back then, and none was listed since",
        false => "as below feature level 8: if it had any, they do not come back",
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_set::recovery::SNAPSHOTS_LEVEL;

    /// Such a gateway would go on answering from a life that is over, and nothing but this remark leads to it.
    #[test]
    fn where_a_head_lists_nothing_gateways_of_older_builds_are_to_be_stopped() {
        for (covered, as_raised) in [(false, false), (false, true), (true, false), (true, true)] {
            let remarks = of_blank(covered, as_raised);
            let [blank @ .., old_builds] = &remarks[..] else { panic!("nothing is said: {covered}, {as_raised}") };
            assert!(old_builds.contains(&format!("before feature level {SNAPSHOTS_LEVEL}")), "{old_builds}");
            assert!(old_builds.ends_with("stop all of them, and wipe their data directories"), "{old_builds}");
            assert_eq!(blank.len(), usize::from(covered), "{blank:?}");
            let why = if as_raised { "as the recovery before left it" } else { "as below feature level 8" };
            assert!(blank.iter().all(|text| text.contains(why)), "{blank:?}");
        }
    }
}
