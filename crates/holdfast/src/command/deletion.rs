//! `holdfast set delete`: asks, has the gateways delete the set, and shows how far they are.

use super::set::status;
use super::{confirm, door, tell};
use crate::cli::Common;
use crate::door::{Client, Door, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a wait looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// How long it is waited for where `--timeout` says nothing. It goes on by itself after that.
const WAIT: Duration = Duration::from_secs(600);

/// How long one look may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What `holdfast set delete` is given.
#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    /// The set
    set: Name,
    /// Also while somebody holds it or clients are connected: the lease ends, the connections are closed
    #[arg(long)]
    force: bool,
    /// Its snapshots go with it
    #[arg(long)]
    with_snapshots: bool,
    /// Do not wait until its name is free
    #[arg(long)]
    no_wait: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// The end of its help.
pub const HELP: &str = "\
The set is gone for its users from the answer on: its exports are unknown, its lease has ended. Then its key is destroyed, and with it all that may be
left of it anywhere; its objects are deleted in its store; every gateway removes what it has on its disks. Its name is free when this command ends with 0.
A gateway that is down then removes its part when it is back; `holdfast set list` names it until then. There is no way back.

Refused while somebody holds the set or is connected (--force), and while it has snapshots (--with-snapshots). With both nobody is asked who uses it: so
a set can be deleted that has no leader or runs nowhere.

Examples:
  holdfast set delete demo
  holdfast set delete demo --with-snapshots --yes --timeout 30m
  holdfast set delete demo --force --with-snapshots --no-wait
";

/// One line for each deletion under way, for `set list`.
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
    output::table_with_trouble(["DELETED SET", "GROUP", "STAGE", "NOT ENDED AT", "TROUBLE"], rows, &[4], 1)
}

fn stage(deletion: &v1::Deletion) -> &'static str {
    match deletion.stage.as_str() {
        "ending" => "deleting: its group is being ended",
        "forgotten" => "deleting: its key is destroyed, its objects go",
        "emptied" => "deleted: its name is free",
        _ => "deleting",
    }
}

/// What is known of a deletion, for `set show`.
pub(super) fn describe(deletion: &v1::Deletion) -> String {
    let fact = |fact: &str, value: String| output::fact(fact, &value);
    let kept = if deletion.store_left {
        "nothing: another cluster has recovered the set there".to_string()
    } else {
        format!("{} objects so far", deletion.objects_deleted)
    };
    [
        fact("set", format!("{} (group {})", deletion.name, deletion.id)),
        fact("store", deletion.store.clone()),
        fact("state", stage(deletion).to_string()),
        fact("deleted there", kept),
        fact("not ended at", deletion.waits_for.join(" ")),
        fact("trouble", deletion.trouble.clone()),
    ]
    .join("\n")
}

/// Runs it.
pub async fn run(common: &Common, args: DeleteArgs) -> Result<(), CliError> {
    let set = args.set.as_str();
    let mut door = door(common);
    let Some(before) = before(&mut door, &args).await? else {
        let error = CliError::refused(format!("there is no set {set}"));
        return Err(error.next("`holdfast set list` shows what there is"));
    };
    let facts = summary(&before);
    if !args.yes {
        tell(common, &facts);
        confirm(&format!("Delete set {set}, all its volumes and what they hold, for ever?"))?;
        // The question may have taken long: the time runs from the answer.
        door = super::door(common);
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
    let reply = door.call(&format!("delete set {set}"), Effect::Changes, call).await?;
    let mut last = reply.deletion;
    let mut free = last.as_ref().is_none_or(|deletion| deletion.stage == "emptied");
    if !free && !args.no_wait {
        let ends = Instant::now() + common.timeout.map_or(WAIT, |limit| limit.max(LOOK_LIMIT));
        (free, last) = wait(common, id, last, ends).await;
        if !free {
            let why = last.as_ref().map(|found| found.trouble.clone()).filter(|why| !why.is_empty());
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            let error = CliError::unknown(format!("set {set} is being deleted, and its name is not free yet{why}"));
            return Err(error.next(format!("it goes on by itself: `holdfast set show {set}` says how far it is")));
        }
    }
    let waits = last.as_ref().map(|found| found.waits_for.clone()).unwrap_or_default();
    let json = serde_json::json!({ "before": before, "name_free": free, "deletion": last });
    output::show(common.output, &json, || {
        let what = if free { "is deleted, its key is destroyed, and its name is free" } else { "is being deleted" };
        let left = match waits.as_slice() {
            [] => String::new(),
            waits => format!("\nnot ended yet at: {}; it is removed there once they are back", waits.join(", ")),
        };
        format!("{facts}\nset {set} {what}{left}")
    })
}

/// The set as it is, by its leader; where that one cannot say, and nobody is to be asked who uses it, as any gateway knows it.
async fn before(door: &mut Door, args: &DeleteArgs) -> Result<Option<v1::SetStatus>, CliError> {
    let set = args.set.as_str();
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let listed = door.call("list the sets", Effect::Reads, call).await?;
    let deleting = listed.deletions.into_iter().find(|found| found.name == set && found.stage != "emptied");
    if let Some(found) = deleting {
        let summary = v1::SetSummary {
            id: found.id,
            name: found.name.clone(),
            store: found.store.clone(),
            clone_of: String::new(),
        };
        return Ok(Some(v1::SetStatus { set: Some(summary), deletion: Some(found), ..Default::default() }));
    }
    if args.force && args.with_snapshots {
        let found = listed.sets.into_iter().find(|found| found.name == set);
        return Ok(found.map(|found| v1::SetStatus { set: Some(found), ..Default::default() }));
    }
    status(door, set, false).await.map(Some)
}

fn summary(before: &v1::SetStatus) -> String {
    let set = before.set.clone().unwrap_or_default();
    let owner = before.lease.as_ref().map_or("nobody".to_string(), |lease| lease.owner.clone());
    let bytes: u64 = before.volumes.iter().map(|volume| volume.size_bytes).sum();
    let (count, size) = match before.volumes.len() {
        0 => (String::new(), String::new()),
        count => (count.to_string(), output::bytes(bytes)),
    };
    output::table(
        ["SET", "GROUP", "STORE", "VOLUMES", "SIZE", "HELD BY"],
        [[set.name, set.id.to_string(), set.store, count, size, owner]],
    )
}

/// Waits until the name is free, and shows what changes meanwhile on standard error.
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
        let mut door = Door::new(&common.dialer, &common.api, left);
        match look(&mut door, last.as_ref().map_or("", |found| found.name.as_str()), id).await {
            Ok(Some(found)) if found.stage == "emptied" => return (true, Some(found)),
            Ok(Some(found)) => last = Some(found),
            Ok(None) => return (true, None),
            // Whoever leads group 0 may be elected just now.
            Err(_) => {}
        }
    }
}

/// How far it is; `None` once nothing of it is left.
async fn look(door: &mut Door, name: &str, id: u64) -> Result<Option<v1::Deletion>, CliError> {
    match status(door, name, false).await {
        Ok(found) if found.set.as_ref().is_some_and(|set| set.id == id) => Ok(found.deletion),
        // Somebody has given the name to another set.
        Ok(_) => Ok(None),
        Err(error) if error.code == "not-found" => listed(door, id).await,
        Err(error) => Err(error),
    }
}

async fn listed(door: &mut Door, id: u64) -> Result<Option<v1::Deletion>, CliError> {
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let listed = door.call("list the sets", Effect::Reads, call).await?;
    Ok(listed.deletions.into_iter().find(|found| found.id == id))
}
