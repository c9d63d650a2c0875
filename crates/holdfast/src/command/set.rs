//! `holdfast set`, and calls about sets that other commands share.

use super::{bootstrap, connect, epoch_text, incomplete, member_text, tell};
use crate::cli::{Common, SetCommand, VolumeArg};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_set::recovery::Stores;
use holdfast_types::{ByteSize, Name};

pub const CHECKPOINT: &str = "\
Examples:
  holdfast set checkpoint demo
  holdfast set checkpoint demo --timeout 10m --output json | jq .checkpoint_index

Writers are not blocked. When it ends with 0, everything that was acknowledged before the call is
in the store: `holdfast cluster recover` can restore it even if every gateway is lost.
";

pub const LIST: &str = "\
One line for each set:
  SET       its name
  GROUP     number of its Raft group, which is also its number in the store, below PREFIX/sets/
  STORE     its store; with several stores all of them, after the write quorum (w=2). c=N counts
            changes of the list. `set stores show` prints the arguments for a recovery
  CLONE OF  the set and the snapshot that it was cloned from; this column is left out if no set is
            a clone

Below: a line for each set whose stores are being changed, with the progress. Then the deletions
in progress, as long as they wait for a gateway:
  STAGE        stopping its Raft group; deleting keys and objects; name is free
  WAITING FOR  gateways that have not stopped its group; a gateway that is down does it when it is
               back
  ERROR        why the deletion does not proceed

Examples:
  holdfast set list
  holdfast set list --output json | jq -r '.sets[] | \"\\(.id) \\(.name)\"'
";

pub const SHOW: &str = "\
The view of its leader. With --any-view the view of any gateway, without the space in the store.
  served by          the gateway that leads the set, and its region
  owner              owner of the lease, its gateway, and the remaining time to live
  epoch              epoch of the last grant of the lease; it grows with each grant
  log                Raft term; index of the last applied entry, and of the last entry
  checkpoint         everything up to this log index is in the store; 0 before the first
                     checkpoint, and after a recovery until the next checkpoint
  not uploaded       bytes that are only in the journals of the gateways
  store health       ok, or the problem, since when, and whether an operator must act
  scrub              the verification in the background: see `holdfast set scrub`
  members            voters of its Raft group
  clone              each clone, with its snapshot and the log index of that
  store N            with several stores: missing objects and health of each
  retired objects    objects that are no longer needed and are still in the store

Space in bytes, as of the last checkpoint. A clone does not count what it shares with its origin:
  provisioned        sum of the volumes' sizes
  written            data of the volumes before compression; and data in the journal since then
  stored             segments and map pages of the checkpoint, compressed; then including
                     snapshots and clones, each object counted once
  live               the compressed part of the checkpoint's segments that volumes refer to, of
                     all
  garbage            the other part, which nothing refers to. Then objects that wait for deletion,
                     and old checkpoints that have not been searched for such objects yet

Snapshots (PROVISIONED and WRITTEN as above, at the time of the snapshot):
  UNIQUE  bytes in the store that only this snapshot refers to, which its deletion frees; 0B while
          a clone uses it

Volumes: see `holdfast volume list`.

Examples:
  holdfast set show demo
  holdfast set show demo --output json | jq .space
";

/// Runs one of `holdfast set`'s commands.
pub async fn run(common: &Common, command: SetCommand) -> Result<(), CliError> {
    match command {
        SetCommand::Create { name, stores, write_quorum, volumes } => {
            let stores = several(stores, write_quorum)?;
            create(common, &name, &stores.to_string(), &volumes).await
        }
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

/// The stores of one set from the command line: one per `--store`, or all in one text.
pub(super) fn several(named: Vec<String>, write_quorum: Option<usize>) -> Result<Stores, CliError> {
    let usage = |error: &dyn std::error::Error| CliError::usage("--store").because(error);
    let stores = match named.as_slice() {
        [one] if one.starts_with("w=") => Stores::parse(one).map_err(|error| usage(&error))?,
        _ => Stores::new(named, write_quorum).map_err(|error| {
            usage(&error).next("give each store of the set once, and a --write-quorum of more than half of them")
        })?,
    };
    stores.check_new().map_err(|error| {
        usage(&error).next("use one store, three stores with --write-quorum 2, or five stores with --write-quorum 3")
    })?;
    match write_quorum {
        Some(w) if w != stores.write_quorum() => {
            Err(CliError::usage(format!("--write-quorum: found {w}, expected {} as in --store", stores.write_quorum())))
        }
        _ => Ok(stores),
    }
}

/// Creates the set, or finds that it exists with the same store.
pub async fn create_set(api: &mut ClusterClient, name: &str, store: &str) -> Result<(v1::SetSummary, bool), CliError> {
    let request = v1::CreateSetRequest { name: name.into(), store: store.into(), request_id: request_id() };
    let call = async |mut client: Client| client.create_set(request.clone()).await;
    // The gateway checks the stores before it answers.
    let reply = api.patiently().call(&format!("create set {name}"), Effect::Changes, call).await?;
    Ok((reply.set.ok_or_else(|| incomplete("the set"))?, reply.created))
}

/// Creates the volume, or finds that it exists with the same size.
pub async fn create_volume(api: &mut ClusterClient, set: &str, name: &str, size: ByteSize) -> Result<bool, CliError> {
    let request =
        v1::CreateVolumeRequest { set: set.into(), name: name.into(), size_bytes: size.0, request_id: request_id() };
    let call = async |mut client: Client| client.create_volume(request.clone()).await;
    Ok(api.call(&format!("create volume {set}/{name}"), Effect::Changes, call).await?.created)
}

/// Status of a set from its leader, or (with `any_view`) from any gateway.
pub async fn status(api: &mut ClusterClient, set: &str, any_view: bool) -> Result<v1::SetStatus, CliError> {
    let request = v1::GetSetRequest { set: set.into(), any_view };
    let call = async |mut client: Client| client.get_set(request.clone()).await;
    api.call(&format!("show set {set}"), Effect::Reads, call).await
}

/// What happened to something that is to exist.
pub(super) fn created_text(created: bool) -> &'static str {
    if created { "created" } else { "exists already" }
}

async fn create(common: &Common, name: &Name, store: &str, volumes: &[VolumeArg]) -> Result<(), CliError> {
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
    let (summary, created) = create_set(&mut api, name.as_str(), store).await?;
    let mut made = vec![format!("set {name} {} in {}", created_text(created), summary.store)];
    let mut json_volumes = Vec::new();
    for volume in volumes {
        let created = create_volume(&mut api, name.as_str(), volume.name.as_str(), volume.size).await?;
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
    let space = super::volume::space(&mut brief, set.as_str()).await.map_err(|error| tell(common, &error.message)).ok();
    let json = With { status: &status, space: space.as_ref() };
    output::show(common.output, &json, || match &space {
        Some(space) => format!("{}\n{}", describe(&status), super::volume::describe_space(space)),
        None => format!("{}\n\n{}", describe(&status), describe_volumes(&status)),
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
                    format!("; it contains everything that was acknowledged before {}", super::history::time(moment))
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
        ["checkpoint".to_string(), format!("index {}", status.checkpoint_index)],
        ["not uploaded".to_string(), output::bytes(status.backlog_bytes)],
        ["store health".to_string(), status.store_health.as_ref().map_or(String::new(), store_text)],
        ["snapshot schedule".to_string(), status.snapshot_schedule.clone()],
        ["scrub".to_string(), status.scrub.as_ref().map_or(String::new(), super::scrub::line)],
        ["members".to_string(), status.voters.iter().map(|&id| member_text(id)).collect::<Vec<_>>().join(" ")],
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

/// A set's volumes without their space.
pub fn describe_volumes(status: &v1::SetStatus) -> String {
    let volumes = status.volumes.iter().map(|volume| [volume.name.clone(), output::bytes(volume.size_bytes)]);
    output::table(["VOLUME", "SIZE"], volumes)
}

/// The set's status together with its space, for JSON.
#[derive(serde::Serialize)]
struct With<'a> {
    #[serde(flatten)]
    status: &'a v1::SetStatus,
    space: Option<&'a v1::GetSpaceReply>,
}

/// A store's health in one line.
pub fn store_text(health: &v1::StoreHealth) -> String {
    let over = |last: &v1::StoreTrouble| format!("ok ({} until {})", last.kind, since(last.ended_unix_ms));
    match (&health.now, &health.last) {
        (Some(now), _) => {
            let who = if now.needs_operator { "OPERATOR MUST ACT" } else { "will be retried" };
            let failures = now.failures;
            format!(
                "{}, since {}, {failures} failures in a row, {who}: {}",
                now.kind,
                since(now.since_unix_ms),
                now.error
            )
        }
        (None, Some(last)) => over(last),
        (None, None) => "ok".to_string(),
    }
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

/// A lease in one line.
pub fn lease_text(lease: &v1::Lease) -> String {
    let kind = if lease.plain {
        "plain export".to_string()
    } else {
        format!("{} of {} ms left", lease.remaining_ms, lease.ttl_ms)
    };
    format!(
        "{} at {}, epoch {} ({kind}), since {}",
        lease.owner,
        lease.gateway_name,
        epoch_text(lease.epoch),
        since(lease.since_unix_ms)
    )
}

/// A time for people: how long ago, by this machine's clock.
pub fn since(unix_ms: u64) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    ago(now, unix_ms)
}

fn ago(now_ms: u64, then_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(then_ms) / 1000;
    match seconds {
        _ if then_ms == 0 => "unknown".to_string(),
        0..=119 => format!("{seconds} s ago"),
        120..=7199 => format!("{} min ago", seconds / 60),
        7200..=172_799 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_store_is_shown_with_its_reason() {
        let mut health = v1::StoreHealth { set: "demo".into(), ..Default::default() };
        assert_eq!(store_text(&health), "ok");
        let full =
            v1::StoreTrouble { kind: "full".into(), error: "put: HTTP 507".into(), failures: 7, ..Default::default() };
        health.now = Some(v1::StoreTrouble { needs_operator: true, ..full.clone() });
        assert_eq!(store_text(&health), "full, since unknown, 7 failures in a row, OPERATOR MUST ACT: put: HTTP 507");
        health.now = None;
        health.last = Some(full);
        assert_eq!(store_text(&health), "ok (full until unknown)");
    }

    #[test]
    fn times_for_people() {
        let shown = [5_000, 300_000, 7_200_000, 200_000_000].map(|age| ago(1_000_000_000, 1_000_000_000 - age));
        assert_eq!(shown, ["5 s ago", "5 min ago", "2 h ago", "2 days ago"]);
        assert_eq!(ago(5, 0), "unknown");
        assert_eq!(ago(5, 9_999), "0 s ago");
    }
}
