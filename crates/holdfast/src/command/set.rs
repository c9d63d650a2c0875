//! `holdfast set`, and the calls that others share with it.

use super::{bootstrap, door, epoch_text, incomplete, member_text, tell};
use crate::cli::{Common, SetCommand, VolumeArg};
use crate::door::{Client, Door, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_set::recovery::Stores;
use holdfast_types::{ByteSize, Name};

pub const CHECKPOINT: &str = "\
Examples:
  holdfast set checkpoint demo
  holdfast set checkpoint demo --timeout 10m --output json | jq .checkpoint_index

Writers go on meanwhile. What was acknowledged before the call is in the store when it returns with 0: `holdfast cluster recover` brings
that back even if every gateway is lost in the next moment.
";

pub const LIST: &str = "\
One line for each set:
  SET       its name
  GROUP     its number: of its Raft group, and in its store below PREFIX/sets/
  STORE     where it lies; of several stores all of them, behind how many must have an object (w=2);
            c=N of a set whose stores were changed. `set stores show` says what a recovery is told
  CLONE OF  the set and the snapshot that it began with; there is no such column without a clone

Below them a line for each set whose stores are being changed: how far that is. Then what is being deleted, as long as a gateway is waited for:
  STAGE         its group is being ended; its key is destroyed, its objects go; its name is free
  NOT ENDED AT  gateways that have not ended its group; one that is down does it when it is back
  TROUBLE       why it does not go on

Examples:
  holdfast set list
  holdfast set list --output json | jq -r '.sets[] | \"\\(.id) \\(.name)\"'
";

pub const SHOW: &str = "\
As its leader says it; with --any-view as any one gateway knows it, and without what the set takes up.
  served by             the gateway that leads the set, and its region
  owner                 who holds the lease, at which gateway, how much of its time to live is left
  epoch                 of the last grant of the lease; each later grant has a higher one
  log                   Raft term; index of the last entry that is applied, and of the last one
  checkpoint            everything up to this index is in the store; 0 before the first one, and
                        after a recovery until the next
  not in the store yet  bytes that only the gateways' journals have
  store answers         ok, or what is wrong, since when, and whether somebody must act
  scrub                 the reading in the background: see `holdfast set scrub`
  members               voters of its group
  has a clone           each clone, the snapshot that it began with, and that one's index
  store N               of several stores: what it lacks, and how it answers
  to be deleted         objects that nothing needs any more, and that are in the store still

What it takes up, in bytes, as of the last checkpoint:
  provisioned   sum of the volumes' sizes
  written       what volumes show, before compression; and what is in the journal since. Of a clone
                without what it shows of its origin
  in the store  segments and map pages of that checkpoint, compressed; then the same with those of
                all snapshots and of what clones show, each object once
  live          compressed, the part of that checkpoint's segments that volumes show, of all of them
  garbage       the other part: nothing shows it any more. Beside it objects that wait for their
                deletion, and former checkpoints of which it is not known yet what only they name

Snapshots (PROVISIONED, WRITTEN: the same, of the volumes as they were):
  ONLY ITS OWN  bytes in the store that nothing else names: what its deletion gives back, before
                collection; 0B while a clone shows it

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

/// The stores of one set, as they were named on the command line: each by a `--store`, or all in one text.
pub(super) fn several(named: Vec<String>, write_quorum: Option<usize>) -> Result<Stores, CliError> {
    let usage = |error: &dyn std::error::Error| CliError::usage("--store").because(error);
    let stores = match named.as_slice() {
        [one] if one.starts_with("w=") => Stores::parse(one).map_err(|error| usage(&error))?,
        _ => Stores::new(named, write_quorum).map_err(|error| {
            usage(&error).next("name each store of the set once, and --write-quorum as more than half of them")
        })?,
    };
    stores.check_new().map_err(|error| {
        usage(&error).next("name three stores with --write-quorum 2, or five with 3; or one store alone")
    })?;
    match write_quorum {
        Some(w) if w != stores.write_quorum() => Err(CliError::usage(format!(
            "--write-quorum: found {w}, expected {} as --store says",
            stores.write_quorum()
        ))),
        _ => Ok(stores),
    }
}

/// Creates the set, or finds that it is there with the same store.
pub async fn create_set(door: &mut Door, name: &str, store: &str) -> Result<(v1::SetSummary, bool), CliError> {
    let request = v1::CreateSetRequest { name: name.into(), store: store.into(), request_id: request_id() };
    let call = async |mut client: Client| client.create_set(request.clone()).await;
    // Its stores are checked before it answers.
    let reply = door.patiently().call(&format!("create set {name}"), Effect::Changes, call).await?;
    Ok((reply.set.ok_or_else(|| incomplete("the set"))?, reply.created))
}

/// Creates the volume, or finds that it is there with the same size.
pub async fn create_volume(door: &mut Door, set: &str, name: &str, size: ByteSize) -> Result<bool, CliError> {
    let request =
        v1::CreateVolumeRequest { set: set.into(), name: name.into(), size_bytes: size.0, request_id: request_id() };
    let call = async |mut client: Client| client.create_volume(request.clone()).await;
    Ok(door.call(&format!("create volume {set}/{name}"), Effect::Changes, call).await?.created)
}

/// How a set does, by its leader or (with `any_view`) by anyone.
pub async fn status(door: &mut Door, set: &str, any_view: bool) -> Result<v1::SetStatus, CliError> {
    let request = v1::GetSetRequest { set: set.into(), any_view };
    let call = async |mut client: Client| client.get_set(request.clone()).await;
    door.call(&format!("look at set {set}"), Effect::Reads, call).await
}

async fn create(common: &Common, name: &Name, store: &str, volumes: &[VolumeArg]) -> Result<(), CliError> {
    for volume in volumes {
        bootstrap::check_size(volume.size)
            .map_err(|problem| CliError::usage(format!("volume {}: {problem}", volume.name)))?;
    }
    // Before anything is created: a set stays.
    for (at, volume) in volumes.iter().enumerate() {
        if volumes[..at].iter().any(|other| other.name == volume.name) {
            return Err(CliError::usage(format!("volume {}: found twice, expected once", volume.name)));
        }
    }
    let mut door = door(common);
    let (summary, created) = create_set(&mut door, name.as_str(), store).await?;
    let mut made =
        vec![format!("set {name} {} in {}", if created { "created" } else { "is there already" }, summary.store)];
    let mut json_volumes = Vec::new();
    for volume in volumes {
        let created = create_volume(&mut door, name.as_str(), volume.name.as_str(), volume.size).await?;
        made.push(format!(
            "volume {name}/{} {} with {}",
            volume.name,
            if created { "created" } else { "is there already" },
            volume.size
        ));
        json_volumes.push(serde_json::json!({ "name": volume.name, "size_bytes": volume.size.0, "created": created }));
    }
    let json = serde_json::json!({ "set": summary, "created": created, "volumes": json_volumes });
    output::show(common.output, &json, || made.join("\n"))
}

async fn schedule_snapshots(common: &Common, set: &Name, schedule: &str) -> Result<(), CliError> {
    let (name, schedule) = (set.to_string(), schedule.to_string());
    let request = v1::SetScheduleRequest { set: name, schedule, request_id: request_id() };
    let call = async |mut client: Client| client.set_schedule(request.clone()).await;
    let reply = door(common).call(&format!("schedule snapshots of {set}"), Effect::Changes, call).await?;
    output::show(common.output, &reply, || format!("snapshot schedule of set {set}: {}", reply.schedule))
}

async fn list(common: &Common) -> Result<(), CliError> {
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let reply = door(common).call("list the sets", Effect::Reads, call).await?;
    output::show(common.output, &reply, || {
        // A column more only where it says something.
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
    let mut door = door(common);
    let status = status(&mut door, set.as_str(), any_view).await?;
    if let Some(deletion) = &status.deletion {
        return output::show(common.output, &status, || super::deletion::describe(deletion));
    }
    if any_view {
        // What it takes up only its leader knows.
        return output::show(common.output, &status, || {
            format!("{}\n\n{}", describe(&status), describe_volumes(&status))
        });
    }
    // Of a gateway that cannot say it, what is known is shown all the same.
    let mut brief = Door::new(&common.dialer, &common.api, SPACE_LIMIT.min(common.timeout()));
    let space = super::volume::space(&mut brief, set.as_str()).await.map_err(|error| tell(common, &error.message)).ok();
    let json = With { status: &status, space: space.as_ref() };
    output::show(common.output, &json, || match &space {
        Some(space) => format!("{}\n{}", describe(&status), super::volume::describe_space(space)),
        None => format!("{}\n\n{}", describe(&status), describe_volumes(&status)),
    })
}

/// A line below a table for each set whose stores are being changed; `health` is what its leader says, where that is known.
pub fn changes<'a>(sets: &[v1::SetSummary], health: impl Fn(&v1::SetSummary) -> Option<&'a v1::StoreHealth>) -> String {
    let line = |set: &v1::SetSummary| {
        super::stores::line(set, health(set)).map(|line| format!("\n{}: stores {line}", set.name))
    };
    let lines: String = sets.iter().filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// How long what a set takes up is waited for.
const SPACE_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// Between two questions how far a checkpoint is.
const CHECKPOINT_LOOK: std::time::Duration = std::time::Duration::from_millis(100);

async fn checkpoint(common: &Common, set: &Name) -> Result<(), CliError> {
    let mut door = door(common);
    let mut at_index = 0;
    loop {
        let request = v1::CheckpointSetRequest { set: set.to_string(), at_index };
        let call = async |mut client: Client| client.checkpoint_set(request.clone()).await;
        let asked = door.call(&format!("checkpoint of set {set}"), Effect::Reads, call).await;
        let reply = match asked {
            Ok(reply) => reply,
            Err(error) if at_index > 0 && error.exit == crate::exit::Exit::Unreachable => {
                let error = CliError::unknown(format!(
                    "set {set} is not in the store up to index {at_index} yet: {}",
                    error.message
                ));
                return Err(
                    error.next("it goes on by itself: `holdfast set show` says how far it is; --timeout waits longer")
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
                    format!(", acknowledged before {}", super::history::time(moment))
                };
                let (upto, generation) = (reply.checkpoint_index, reply.generation);
                format!("set {set} is in the store up to index {upto} of generation {generation}{when}")
            });
        }
        at_index = reply.at_index;
        tokio::time::sleep(CHECKPOINT_LOOK).await;
    }
}

/// A set in words, without its volumes.
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
        ["owner".to_string(), status.lease.as_ref().map_or("nobody: free".to_string(), lease_text)],
        ["epoch".to_string(), epoch_text(status.epoch)],
        ["log".to_string(), format!("term {}, applied {} of {}", status.term, status.applied_index, status.last_index)],
        ["checkpoint".to_string(), format!("up to {}", status.checkpoint_index)],
        ["not in the store yet".to_string(), output::bytes(status.backlog_bytes)],
        ["store answers".to_string(), status.store_health.as_ref().map_or(String::new(), store_text)],
        ["snapshot schedule".to_string(), status.snapshot_schedule.clone()],
        ["scrub".to_string(), status.scrub.as_ref().map_or(String::new(), super::scrub::line)],
        ["members".to_string(), status.voters.iter().map(|&id| member_text(id)).collect::<Vec<_>>().join(" ")],
    ];
    if let Some(set) = status.set.as_ref().filter(|set| !set.clone_of.is_empty()) {
        facts.push(["clone of".to_string(), set.clone_of.clone()]);
    }
    facts.extend(status.clones.iter().map(|clone| ["has a clone".to_string(), super::clone::line(clone)]));
    facts.extend(change.map(|change| ["change of stores".to_string(), change]));
    let replicas = status.store_health.iter().flat_map(|health| &health.replicas);
    for (at, replica) in replicas.enumerate() {
        facts.push([format!("store {}", at + 1), replica_text(replica)]);
    }
    if let Some(health) = status.store_health.as_ref().filter(|health| health.retired_objects > 0) {
        let full = if health.retired_objects >= health.retired_objects_max { ", as many as may be" } else { "" };
        facts.push(["to be deleted".to_string(), format!("{} objects{full}", health.retired_objects)]);
    }
    if !status.confirmed {
        facts.push(["view".to_string(), format!("{}'s own, perhaps old", member_text(status.answered_by))]);
    }
    let facts = facts.into_iter().map(|[fact, value]| output::fact(&fact, &value));
    facts.collect::<Vec<_>>().join("\n")
}

/// A set's volumes, where nothing is known of what they take up.
pub fn describe_volumes(status: &v1::SetStatus) -> String {
    let volumes = status.volumes.iter().map(|volume| [volume.name.clone(), output::bytes(volume.size_bytes)]);
    output::table(["VOLUME", "SIZE"], volumes)
}

/// The set's status as it always was, and what it takes up beside.
#[derive(serde::Serialize)]
struct With<'a> {
    #[serde(flatten)]
    status: &'a v1::SetStatus,
    space: Option<&'a v1::GetSpaceReply>,
}

/// How a store has answered, in one line.
pub fn store_text(health: &v1::StoreHealth) -> String {
    let over = |last: &v1::StoreTrouble| format!("ok; {} until {}", last.kind, since(last.ended_unix_ms));
    match (&health.now, &health.last) {
        (Some(now), _) => {
            let who = if now.needs_operator { "SOMEBODY MUST ACT" } else { "tried again" };
            let failures = now.failures;
            format!(
                "{}, first {}, {failures} failures in a row, {who}: {}",
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
        (objects, _) => format!("lacks {objects} objects, {}", output::bytes(replica.missing_bytes)),
    };
    let stuck = match replica.stuck_objects {
        0 => String::new(),
        objects => format!(", {objects} of them in no other store whole"),
    };
    let head = if replica.head_behind { ", heads differ" } else { "" };
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
        "{} at {} under {} ({kind}), since {}",
        lease.owner,
        lease.gateway_name,
        epoch_text(lease.epoch),
        since(lease.since_unix_ms)
    )
}

/// A moment for people: how long ago by this machine's clock.
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
    fn a_store_in_trouble_is_told_with_its_reason() {
        let mut health = v1::StoreHealth { set: "demo".into(), ..Default::default() };
        assert_eq!(store_text(&health), "ok");
        let full =
            v1::StoreTrouble { kind: "full".into(), error: "put: HTTP 507".into(), failures: 7, ..Default::default() };
        health.now = Some(v1::StoreTrouble { needs_operator: true, ..full.clone() });
        assert_eq!(store_text(&health), "full, first unknown, 7 failures in a row, SOMEBODY MUST ACT: put: HTTP 507");
        health.now = None;
        health.last = Some(full);
        assert_eq!(store_text(&health), "ok; full until unknown");
    }

    #[test]
    fn times_for_people() {
        let shown = [5_000, 300_000, 7_200_000, 200_000_000].map(|age| ago(1_000_000_000, 1_000_000_000 - age));
        assert_eq!(shown, ["5 s ago", "5 min ago", "2 h ago", "2 days ago"]);
        assert_eq!(ago(5, 0), "unknown");
        assert_eq!(ago(5, 9_999), "0 s ago");
    }
}
