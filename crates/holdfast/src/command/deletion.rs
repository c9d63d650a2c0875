//! `holdfast set delete`: confirms, requests the deletion from the gateways, and shows the progress.

use super::connect::connect;
use super::console::{confirm, tell};
use super::set_calls::status;
use crate::cli::{Common, DeleteArgs};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Poll interval of the wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// Default time limit of the wait. The deletion continues after it.
const WAIT: Duration = Duration::from_secs(600);

/// Time limit of one poll.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// One line for each deletion in progress, for `set list`.
pub(super) fn table(deletions: &[v1::Deletion]) -> String {
    let rows = deletions.iter().map(|found| {
        [
            found.name.clone(),
            found.id.to_string(),
            stage(found).to_string(),
            found.waits_for.join(" "),
            found.trouble.clone(),
        ]
    });
    output::table_with_messages(["DELETED SET", "GROUP", "STAGE", "WAITING FOR", "ERROR"], rows, &[4], 1)
}

fn stage(deletion: &v1::Deletion) -> &'static str {
    match deletion.stage.as_str() {
        "ending" => "stopping its Raft group",
        "forgotten" => "keys destroyed, deleting objects",
        "emptied" => "deleted, name is free",
        _ => "deleting",
    }
}

/// A deletion, for `set show`.
pub(super) fn describe(deletion: &v1::Deletion) -> String {
    let fact = |fact: &str, value: String| output::fact(fact, &value);
    let kept = if deletion.store_left {
        "no objects, because another cluster has recovered the set in this store".to_string()
    } else {
        format!("{} objects so far", deletion.objects_deleted)
    };
    [
        fact("set", format!("{} (group {})", deletion.name, deletion.id)),
        fact("store", deletion.store.clone()),
        fact("stage", stage(deletion).to_string()),
        fact("deleted in the store", kept),
        fact("waiting for", deletion.waits_for.join(" ")),
        fact("error", deletion.trouble.clone()),
    ]
    .join("\n")
}

/// Runs it.
pub async fn run(common: &Common, args: DeleteArgs) -> Result<(), CliError> {
    let set = args.set.as_str();
    let mut api = connect(common);
    let Some(before) = before(&mut api, &args).await? else {
        let error = CliError::refused(format!("there is no set {set}"));
        return Err(error.next("`holdfast set list` shows all"));
    };
    let facts = summary(&before);
    if !args.yes {
        tell(common, &facts);
        confirm(&format!("Delete set {set} with all its volumes and data permanently?"))?;
        // The time limit starts after the answer.
        api = connect(common);
    }
    let id = before.set.as_ref().map_or(0, |found| found.id);
    let request = v1::DeleteSetRequest {
        set: set.to_string(),
        id,
        request_id: request_id(),
        force: args.force,
        with_snapshots: args.with_snapshots,
        looked: false,
    };
    let call = async |mut client: Client| client.delete_set(request.clone()).await;
    let reply = api.call(&format!("delete set {set}"), Effect::Changes, call).await?;
    let mut last = reply.deletion;
    let mut free = last.as_ref().is_none_or(|deletion| deletion.stage == "emptied");
    if !free && !args.no_wait {
        let ends = Instant::now() + common.timeout.map_or(WAIT, |limit| limit.max(LOOK_LIMIT));
        (free, last) = wait(common, id, last, ends).await;
        if !free {
            let why = last.as_ref().map(|found| found.trouble.clone()).filter(|why| !why.is_empty());
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            let error = CliError::unknown(format!("the deletion of set {set} is not complete yet{why}"));
            return Err(
                error.next(format!("it continues in the background: `holdfast set show {set}` shows the progress"))
            );
        }
    }
    let waits = last.as_ref().map(|found| found.waits_for.clone()).unwrap_or_default();
    let json = serde_json::json!({ "before": before, "name_free": free, "deletion": last });
    output::show(common.output, &json, || {
        let what = if free { "is deleted, its keys are destroyed, and its name is free" } else { "is being deleted" };
        let left = match waits.as_slice() {
            [] => String::new(),
            waits => {
                format!("\nits data on the disks of {} will be deleted when these gateways are back", waits.join(", "))
            }
        };
        format!("{facts}\nset {set} {what}{left}")
    })
}

/// The set before the deletion, from its leader. With `--force --with-snapshots` from any gateway's list, which needs
/// no leader.
async fn before(api: &mut ClusterClient, args: &DeleteArgs) -> Result<Option<v1::SetStatus>, CliError> {
    let set = args.set.as_str();
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let listed = api.call("list the sets", Effect::Reads, call).await?;
    let deleting = listed.deletions.into_iter().find(|found| found.name == set && found.stage != "emptied");
    if let Some(found) = deleting {
        let summary = v1::SetSummary {
            id: found.id,
            name: found.name.clone(),
            store: found.store.clone(),
            clone_of: String::new(),
            voters: Vec::new(),
        };
        return Ok(Some(v1::SetStatus { set: Some(summary), deletion: Some(found), ..Default::default() }));
    }
    if args.force && args.with_snapshots {
        let found = listed.sets.into_iter().find(|found| found.name == set);
        return Ok(found.map(|found| v1::SetStatus { set: Some(found), ..Default::default() }));
    }
    status(api, set, false).await.map(Some)
}

fn summary(before: &v1::SetStatus) -> String {
    let set = before.set.clone().unwrap_or_default();
    let owner = before.lease.as_ref().map_or("none".to_string(), |lease| lease.owner.clone());
    let bytes: u64 = before.volumes.iter().map(|volume| volume.size_bytes).sum();
    let (count, size) = match before.volumes.len() {
        0 => (String::new(), String::new()),
        count => (count.to_string(), output::bytes(bytes)),
    };
    output::table(
        ["SET", "GROUP", "STORE", "VOLUMES", "SIZE", "OWNER"],
        [[set.name, set.id.to_string(), set.store, count, size, owner]],
    )
}

/// Waits until the name is free, and shows progress on standard error.
async fn wait(common: &Common, id: u64, mut last: Option<v1::Deletion>, ends: Instant) -> (bool, Option<v1::Deletion>) {
    let mut shown = String::new();
    loop {
        if let Some(found) = &last {
            let now = format!(
                "{}{}",
                stage(found),
                match found.objects_deleted {
                    0 => String::new(),
                    n => format!(" ({n} deleted)"),
                }
            );
            if now != shown {
                tell(common, &now);
                shown = now;
            }
        }
        if Instant::now() >= ends {
            return (false, last);
        }
        sleep(LOOK_INTERVAL).await;
        let left = ends.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(100), LOOK_LIMIT);
        let mut api = ClusterClient::new(&common.dialer, &common.api, left);
        match look(&mut api, last.as_ref().map_or("", |found| found.name.as_str()), id).await {
            Ok(Some(found)) if found.stage == "emptied" => return (true, Some(found)),
            Ok(Some(found)) => last = Some(found),
            Ok(None) => return (true, None),
            // Group 0 may be electing a leader.
            Err(_) => {}
        }
    }
}

/// The progress; `None` when the deletion is complete.
async fn look(api: &mut ClusterClient, name: &str, id: u64) -> Result<Option<v1::Deletion>, CliError> {
    match status(api, name, false).await {
        Ok(found) if found.set.as_ref().is_some_and(|set| set.id == id) => Ok(found.deletion),
        // The name belongs to another set now.
        Ok(_) => Ok(None),
        Err(error) if error.code == "not-found" => listed(api, id).await,
        Err(error) => Err(error),
    }
}

async fn listed(api: &mut ClusterClient, id: u64) -> Result<Option<v1::Deletion>, CliError> {
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let listed = api.call("list the sets", Effect::Reads, call).await?;
    Ok(listed.deletions.into_iter().find(|found| found.id == id))
}
