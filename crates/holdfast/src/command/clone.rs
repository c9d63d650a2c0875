//! `holdfast set clone`, and the text for clones.
//!
//! 1. The origin's leader pins the snapshot's root for the next set number, and records that in the head in the store.
//! 2. Group 0's leader creates the set with that number. If another set took the number meanwhile, both steps are
//!    repeated with the next one.
//!
//! After an interruption, a new run is a new request, which creates or finds the clone. The pin of the first run is
//! released by itself.

use super::connect::{connect, incomplete};
use super::set_calls::status;
use super::snapshot_calls::{find, no_snapshot};
use super::text::{created_text, describe_volumes};
use crate::cli::{Common, SnapshotArg};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// How often another set may take the pinned number.
const TRIES_MAX: u32 = 16;

/// `holdfast set clone`.
pub async fn run(common: &Common, snapshot: &SnapshotArg, name: &Name) -> Result<(), CliError> {
    let mut api = connect(common);
    let found = find(&mut api, snapshot).await?.ok_or_else(|| no_snapshot(snapshot))?;
    if found.pending {
        let error = CliError::refused(format!("snapshot {snapshot} is still pending: it waits for its checkpoint"));
        return Err(error.next("try again when `holdfast snapshot list` shows it as ready"));
    }
    let (summary, created) = make(&mut api, snapshot, &found.id, name).await?;
    // Waits until the new set has a leader.
    let status = status(&mut api, name.as_str(), false).await;
    let made = |error: CliError| error.after_a_change(&format!("set {name} was created"));
    let status = status.map_err(|error| if created { made(error) } else { error })?;
    let json = serde_json::json!({ "set": summary, "created": created, "volumes": status.volumes });
    output::show(common.output, &json, || {
        let (done, volumes) = (created_text(created), describe_volumes(&status));
        format!("set {name} {done}, a clone of {snapshot} in {}\n\n{volumes}", summary.store)
    })
}

/// Makes the clone of a snapshot, whose id is `id`, or finds it. Returns whether it was made.
pub async fn make(
    api: &mut ClusterClient,
    snapshot: &SnapshotArg,
    id: &str,
    name: &Name,
) -> Result<(v1::SetSummary, bool), CliError> {
    let (of, snapshot_name, clone_name) = (snapshot.set.to_string(), snapshot.name.to_string(), name.to_string());
    let request_id = request_id();
    let what = format!("clone {snapshot}");
    for _ in 0..TRIES_MAX {
        let pin = v1::PinSnapshotRequest {
            set: of.clone(),
            snapshot: snapshot_name.clone(),
            snapshot_id: id.to_string(),
            clone_name: clone_name.clone(),
            request_id: request_id.clone(),
        };
        let call = async |mut client: Client| client.pin_snapshot(pin.clone()).await;
        let pinned = api.call(&what, Effect::Changes, call).await?;
        let make = v1::CloneSetRequest {
            set: of.clone(),
            snapshot: snapshot_name.clone(),
            snapshot_id: id.to_string(),
            clone_name: clone_name.clone(),
            request_id: request_id.clone(),
            clone: pinned.clone,
        };
        let call = async |mut client: Client| client.clone_set(make.clone()).await;
        let made = api.call(&what, Effect::Changes, call).await?;
        if made.passed {
            continue;
        }
        return Ok((made.set.ok_or_else(|| incomplete("the clone"))?, made.created));
    }
    let error =
        CliError::unknown(format!("{what}: other sets were created at the same time, {TRIES_MAX} times in a row"));
    Err(error.next("run it again"))
}

/// A clone of a set, in one line.
pub fn line(clone: &v1::Clone) -> String {
    let name = match (clone.name.as_str(), clone.inherited) {
        ("", true) => format!("group {}, which was not recovered with this set", clone.id),
        ("", false) => format!("group {}, which is being created or was deleted", clone.id),
        (name, _) => name.to_string(),
    };
    format!("{name}, of {} (index {})", clone.snapshot, clone.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_shown_with_their_snapshot() {
        let clone = |name: &str, inherited| v1::Clone {
            id: 7,
            name: name.into(),
            snapshot: "monday".into(),
            index: 40,
            inherited,
        };
        assert_eq!(line(&clone("try", false)), "try, of monday (index 40)");
        assert_eq!(line(&clone("", true)), "group 7, which was not recovered with this set, of monday (index 40)");
    }
}
