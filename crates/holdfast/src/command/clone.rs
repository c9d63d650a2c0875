//! `holdfast set clone`, and how clones are shown.
//!
//! 1. The origin's leader pins the snapshot's root for a set number, and the head in the store comes to say so.
//! 2. Group 0's leader makes the set of that number, unless another one took it: then from the begin, under the next, by the same request.
//!
//! Run again after an end in the middle, it is another request, which makes the clone or finds it; what the first one pinned is let go by itself.

use super::snapshot::{SnapshotArg, find};
use super::{door, incomplete, set};
use crate::cli::Common;
use crate::door::{Client, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// How often another set may take the number that was pinned for.
const TRIES_MAX: u32 = 16;

pub const CLONE: &str = "\
Examples:
  holdfast snapshot create demo@monday
  holdfast set clone demo@monday try
  nbdcopy nbd://gateway-1:10809/try/vol1 -

The new set has the volumes of the snapshot, in the store of the set that it was taken of. Nothing is copied: what the clone does not write itself it
reads from what the snapshot kept, which stays for it, also when the snapshot is deleted. `holdfast set show` shows both sides.
";

/// `holdfast set clone`.
pub async fn run(common: &Common, snapshot: &SnapshotArg, name: &Name) -> Result<(), CliError> {
    let mut door = door(common);
    let Some(found) = find(&mut door, snapshot).await? else {
        let error = CliError::refused(format!("there is no snapshot {snapshot}"));
        return Err(error.next(format!("`holdfast snapshot list {}` shows them", snapshot.set)));
    };
    if found.pending {
        let error =
            CliError::refused(format!("snapshot {snapshot} waits for its checkpoint: there is nothing to clone yet"));
        return Err(error.next("try again when `holdfast snapshot list` does not call it pending any more"));
    }
    let (of, snapshot_name, clone_name) = (snapshot.set.to_string(), snapshot.name.to_string(), name.to_string());
    let request_id = request_id();
    let what = format!("clone {snapshot}");
    for _ in 0..TRIES_MAX {
        let pin = v1::PinSnapshotRequest {
            set: of.clone(),
            snapshot: snapshot_name.clone(),
            snapshot_id: found.id.clone(),
            clone_name: clone_name.clone(),
            request_id: request_id.clone(),
        };
        let call = async |mut client: Client| client.pin_snapshot(pin.clone()).await;
        let pinned = door.call(&what, Effect::Changes, call).await?;
        let make = v1::CloneSetRequest {
            set: of.clone(),
            snapshot: snapshot_name.clone(),
            snapshot_id: found.id.clone(),
            clone_name: clone_name.clone(),
            request_id: request_id.clone(),
            clone: pinned.clone,
        };
        let call = async |mut client: Client| client.clone_set(make.clone()).await;
        let made = door.call(&what, Effect::Changes, call).await?;
        if made.passed {
            continue;
        }
        let summary = made.set.ok_or_else(|| incomplete("the clone"))?;
        // It is made; that somebody leads it makes it of use.
        let status = set::status(&mut door, name.as_str(), false).await?;
        let created = made.created;
        let json = serde_json::json!({ "set": summary, "created": created, "volumes": status.volumes });
        return output::show(common.output, &json, || {
            let done = if created { "created" } else { "is there already" };
            format!(
                "set {name} {done}, a clone of {snapshot} in {}\n\n{}",
                summary.store,
                set::describe_volumes(&status)
            )
        });
    }
    let error = CliError::unknown(format!("{what}: other sets were made in between, {TRIES_MAX} times"));
    Err(error.next("run it again"))
}

/// A clone of a set, in one line.
pub fn line(clone: &v1::Clone) -> String {
    let name = match (clone.name.as_str(), clone.inherited) {
        ("", true) => format!("group {}, which was not recovered with this set", clone.id),
        ("", false) => format!("group {}, which is being made or is gone", clone.id),
        (name, _) => name.to_string(),
    };
    format!("{name}, of {} (up to {})", clone.snapshot, clone.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_told_apart() {
        let clone = |name: &str, inherited| v1::Clone {
            id: 7,
            name: name.into(),
            snapshot: "monday".into(),
            index: 40,
            inherited,
        };
        assert_eq!(line(&clone("try", false)), "try, of monday (up to 40)");
        assert_eq!(line(&clone("", true)), "group 7, which was not recovered with this set, of monday (up to 40)");
    }
}
