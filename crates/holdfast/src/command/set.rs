//! `holdfast set`.

use super::bootstrap;
use super::connect::connect;
use super::console::tell;
use super::placing::{of_new_set, placing};
use super::set_calls::{create_set, create_volume, several, space, status};
use super::text::{created_text, describe_volumes, epoch_text, lease_text, limit_text, member_text, store_text, time};
use crate::cli::{Common, SetCommand, VolumeArg};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// Runs one of `holdfast set`'s commands.
pub async fn run(common: &Common, command: SetCommand) -> Result<(), CliError> {
    match command {
        SetCommand::Create { name, stores, write_quorum, volumes, policy } => {
            let stores = several(stores, write_quorum)?;
            create(common, &name, &stores.to_string(), &volumes, of_new_set(&policy)).await
        }
        SetCommand::Place(args) => super::placing::run(common, args).await,
        SetCommand::Limit { set, limit } => super::limits::of_set(common, &set, &limit).await,
        SetCommand::List => list(common).await,
        SetCommand::Stores(command) => super::stores::run(common, command).await,
        SetCommand::Delete(args) => super::deletion::run(common, args).await,
        SetCommand::Show { set, any_view } => show(common, &set, any_view).await,
        SetCommand::Checkpoint { set } => checkpoint(common, &set).await,
        SetCommand::Scrub { set, start } => super::scrub::run(common, &set, start).await,
        SetCommand::Schedule { set, schedule } => schedule_snapshots(common, &set, &schedule).await,
        SetCommand::Clone { snapshot, name } => super::clone::run(common, &snapshot, &name).await,
    }
}

async fn create(
    common: &Common,
    name: &Name,
    store: &str,
    volumes: &[VolumeArg],
    policy: Option<v1::Policy>,
) -> Result<(), CliError> {
    for volume in volumes {
        bootstrap::check_size(volume.size)
            .map_err(|problem| CliError::usage(format!("volume {}: {problem}", volume.name)))?;
    }
    // Before anything is created: a set would remain.
    for (at, volume) in volumes.iter().enumerate() {
        if volumes[..at].iter().any(|other| other.name == volume.name) {
            return Err(CliError::usage(format!("volume {}: found twice, expected once", volume.name)));
        }
    }
    let mut api = connect(common);
    let (summary, created) = create_set(&mut api, name.as_str(), store, policy).await?;
    let mut made = vec![format!("set {name} {} in {}", created_text(created), summary.store)];
    let (mut json_volumes, mut changed) = (Vec::new(), created);
    for volume in volumes {
        let volume_made = create_volume(&mut api, name.as_str(), volume.name.as_str(), volume.size).await;
        let created =
            volume_made.map_err(|error| if changed { error.after_a_change(&made.join(", ")) } else { error })?;
        changed |= created;
        made.push(format!("volume {name}/{} {} with {}", volume.name, created_text(created), volume.size));
        json_volumes.push(serde_json::json!({ "name": volume.name, "size_bytes": volume.size.0, "created": created }));
    }
    let json = serde_json::json!({ "set": summary, "created": created, "volumes": json_volumes });
    output::show(common.output, &json, || made.join("\n"))
}

async fn schedule_snapshots(common: &Common, set: &Name, schedule: &str) -> Result<(), CliError> {
    let (name, schedule) = (set.to_string(), schedule.to_string());
    let request = v1::SetScheduleRequest { set: name, schedule, request_id: request_id() };
    let call = async |mut client: Client| client.set_schedule(request.clone()).await;
    let reply = connect(common).call(&format!("schedule snapshots of {set}"), Effect::Changes, call).await?;
    output::show(common.output, &reply, || format!("snapshot schedule of set {set}: {}", reply.schedule))
}

async fn list(common: &Common) -> Result<(), CliError> {
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let reply = connect(common).call("list the sets", Effect::Reads, call).await?;
    output::show(common.output, &reply, || {
        // The column is shown only if there is a clone.
        let rows = reply.sets.iter().map(|set| [set.name.clone(), set.id.to_string(), set.store.clone()]);
        let sets = if reply.sets.iter().all(|set| set.clone_of.is_empty()) {
            output::table(["SET", "GROUP", "STORE"], rows)
        } else {
            let rows = rows.zip(&reply.sets).map(|([name, id, store], set)| [name, id, store, set.clone_of.clone()]);
            output::table(["SET", "GROUP", "STORE", "CLONE OF"], rows)
        };
        let sets = format!("{sets}{}", changes(&reply.sets, |_| None));
        match reply.deletions.as_slice() {
            [] => sets,
            deletions => format!("{sets}\n\n{}", super::deletion::table(deletions)),
        }
    })
}

async fn show(common: &Common, set: &Name, any_view: bool) -> Result<(), CliError> {
    let mut api = connect(common);
    let status = status(&mut api, set.as_str(), any_view).await?;
    if let Some(deletion) = &status.deletion {
        return output::show(common.output, &status, || super::deletion::describe(deletion));
    }
    if any_view {
        // Only the leader knows the space in the store.
        return output::show(common.output, &status, || {
            format!("{}\n\n{}", describe(&status), describe_volumes(&status))
        });
    }
    // The rest is shown even if the space is unknown.
    let mut brief = ClusterClient::new(&common.dialer, &common.api, SPACE_LIMIT.min(common.timeout()));
    let space = space(&mut brief, set.as_str()).await.map_err(|error| tell(common, &error.message)).ok();
    let placing = placing(&mut brief, set.as_str()).await.map_err(|error| tell(common, &error.message)).ok();
    let json = With { status: &status, space: space.as_ref(), placing: placing.as_ref() };
    output::show(common.output, &json, || {
        let placed = placing.as_ref().map(|placing| format!("\n{}", super::placing::describe(placing)));
        let set = format!("{}{}", describe(&status), placed.unwrap_or_default());
        match &space {
            Some(space) => format!("{set}\n{}", super::volume::describe_space(space)),
            None => format!("{set}\n\n{}", describe_volumes(&status)),
        }
    })
}

/// A line for each set whose stores are being changed. `health` is the report of its leader, if known.
pub fn changes<'a>(sets: &[v1::SetSummary], health: impl Fn(&v1::SetSummary) -> Option<&'a v1::StoreHealth>) -> String {
    let line = |set: &v1::SetSummary| {
        super::stores::line(set, health(set)).map(|line| format!("\n{}: stores {line}", set.name))
    };
    let lines: String = sets.iter().filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Time limit for the space of a set.
const SPACE_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// Interval between queries for the progress of a checkpoint.
const CHECKPOINT_LOOK: std::time::Duration = std::time::Duration::from_millis(100);

async fn checkpoint(common: &Common, set: &Name) -> Result<(), CliError> {
    let mut api = connect(common);
    let mut at_index = 0;
    loop {
        let request = v1::CheckpointSetRequest { set: set.to_string(), at_index };
        let call = async |mut client: Client| client.checkpoint_set(request.clone()).await;
        let asked = api.call(&format!("checkpoint of set {set}"), Effect::Reads, call).await;
        let reply = match asked {
            Ok(reply) => reply,
            Err(error) if at_index > 0 && error.exit == crate::exit::Exit::Unreachable => {
                let error = CliError::unknown(format!(
                    "the checkpoint of set {set} has not reached log index {at_index} yet: {}",
                    error.message
                ));
                return Err(
                    error.next("it continues in the background: `holdfast set show` shows the progress; --timeout allows more time")
                );
            }
            Err(error) => return Err(error),
        };
        if reply.checkpoint_index >= reply.at_index {
            let moment = reply.checkpoint_unix_ms;
            return output::show(common.output, &reply, || {
                let when = if moment == 0 {
                    String::new()
                } else {
                    format!("; it contains everything that was acknowledged before {}", time(moment))
                };
                let (upto, generation) = (reply.checkpoint_index, reply.generation);
                format!("set {set} is in the store up to log index {upto} of generation {generation}{when}")
            });
        }
        at_index = reply.at_index;
        tokio::time::sleep(CHECKPOINT_LOOK).await;
    }
}

/// A set as text, without its volumes.
pub fn describe(status: &v1::SetStatus) -> String {
    let set = status.set.clone().unwrap_or_default();
    let change = super::stores::line(&set, status.store_health.as_ref());
    let mut facts = vec![
        ["set".to_string(), format!("{} (group {})", set.name, set.id)],
        ["store".to_string(), set.store],
        [
            "served by".to_string(),
            status.leader.as_ref().map_or(String::new(), |leader| format!("{} in {}", leader.name, leader.region)),
        ],
        ["owner".to_string(), status.lease.as_ref().map_or("none".to_string(), lease_text)],
        ["epoch".to_string(), epoch_text(status.epoch)],
        ["log".to_string(), format!("term {}, applied {} of {}", status.term, status.applied_index, status.last_index)],
        ["times".to_string(), times_text(status)],
        ["checkpoint".to_string(), format!("index {}", status.checkpoint_index)],
        ["not uploaded".to_string(), output::bytes(status.backlog_bytes)],
        ["store health".to_string(), status.store_health.as_ref().map_or(String::new(), store_text)],
        ["snapshot schedule".to_string(), status.snapshot_schedule.clone()],
        ["scrub".to_string(), status.scrub.as_ref().map_or(String::new(), super::scrub::line)],
        ["members".to_string(), status.voters.iter().map(|&id| member_text(id)).collect::<Vec<_>>().join(" ")],
        ["limit".to_string(), limit_text(status.limit.as_ref())],
    ];
    if let Some(set) = status.set.as_ref().filter(|set| !set.clone_of.is_empty()) {
        facts.push(["clone of".to_string(), set.clone_of.clone()]);
    }
    facts.extend(status.clones.iter().map(|clone| ["clone".to_string(), super::clone::line(clone)]));
    facts.extend(change.map(|change| ["change of stores".to_string(), change]));
    let replicas = status.store_health.iter().flat_map(|health| &health.replicas);
    for (at, replica) in replicas.enumerate() {
        facts.push([format!("store {}", at + 1), replica_text(replica)]);
    }
    if let Some(health) = status.store_health.as_ref().filter(|health| health.retired_objects > 0) {
        let full = if health.retired_objects >= health.retired_objects_max { ", the maximum" } else { "" };
        facts.push(["retired objects".to_string(), format!("{}{full}", health.retired_objects)]);
    }
    if !status.confirmed {
        facts.push(["view".to_string(), format!("of {}, may be outdated", member_text(status.answered_by))]);
    }
    let facts = facts.into_iter().map(|[fact, value]| output::fact(&fact, &value));
    facts.collect::<Vec<_>>().join("\n")
}

/// The times of the set's group.
fn times_text(status: &v1::SetStatus) -> String {
    let takeover = std::time::Duration::from_millis(status.takeover_ms.into());
    match status.rtt_ms {
        0 => String::new(),
        rtt_ms => format!("for a round trip of {rtt_ms} ms: a lost leader is replaced within {takeover:.1?}"),
    }
}

/// The set's status together with its space and the choice of its voters, for JSON.
#[derive(serde::Serialize)]
struct With<'a> {
    #[serde(flatten)]
    status: &'a v1::SetStatus,
    space: Option<&'a v1::GetSpaceReply>,
    placing: Option<&'a v1::Placing>,
}

/// One of several stores, in one line.
fn replica_text(replica: &v1::StoreReplica) -> String {
    let health = v1::StoreHealth { now: replica.now.clone(), last: replica.last.clone(), ..Default::default() };
    let lacks = match (replica.missing_objects, replica.compared) {
        (0, true) => "complete".to_string(),
        (0, false) => "not compared yet".to_string(),
        (objects, _) => format!("{objects} objects missing ({})", output::bytes(replica.missing_bytes)),
    };
    let stuck = match replica.stuck_objects {
        0 => String::new(),
        objects => format!(", {objects} of them intact in no other store"),
    };
    let head = if replica.head_behind { ", heads differ between the stores" } else { "" };
    let part = if replica.part.is_empty() { String::new() } else { format!("{}, ", replica.part) };
    format!("{}: {part}{lacks}{stuck}{head}; {}", replica.store, store_text(&health))
}
