//! `holdfast snapshot`.

use super::{confirm, door, incomplete, set::since, tell};
use crate::cli::{Common, with_codes};
use crate::door::{Client, Door, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use clap::Subcommand;
use holdfast_api::v1;
use holdfast_types::Name;
use std::fmt;
use std::str::FromStr;

const CREATE: &str = "\
A snapshot shows all volumes of a set at one moment, which lies between the call and its answer. What was answered before the call is in it.
It costs what changes afterwards, whatever the volumes' size. A set has 128 snapshots at most, those of its schedule and pending ones among them.

Any gateway exports it over NBD, read-only and without a lease: `holdfast snapshot token` prints where and with which token.

Examples:
  holdfast snapshot create demo@monday
  holdfast volume export demo/vol1@monday monday.img
";

const LIST: &str = "\
One line for each snapshot, as the set's leader has it:
  SNAPSHOT   its name
  STATE      pending: it waits for its checkpoint, and nothing can be read of it yet; ready;
             scheduled: ready, and taken by the set's schedule, which lets it go again
  UP TO      tTERM/INDEX: the last entry of the set's log that it shows; every write up to it, none
             after. t0/0 of one that came back with a recovery: it is of another log
  ASKED FOR  how long ago: from the gateway's clock of then to this machine's of now
  VOLUMES    the set's volumes as they were, by the names of then; none while it is pending

What each takes up: `holdfast set show`, as ONLY ITS OWN.

Examples:
  holdfast snapshot list demo
  holdfast snapshot list demo --output json | jq -r '.snapshots[] | select(.pending) | .name'
";

const TOKEN: &str = "\
Prints the NBD address of each volume as the snapshot has it, with the token that opens it. Any gateway serves it, read-only and without a lease; the address
names the one that leads the set.
Whoever knows the token can read the whole snapshot: keep it as you keep the data. It is valid until the snapshot is deleted; after a change of the set's
data key ask for a new one. `holdfast volume export` and `holdfast standby` get it by themselves.

Examples:
  holdfast snapshot token demo@monday
  nbdcopy \"$(holdfast snapshot token demo@monday --output json | jq -r '.exports[0]')\" monday.img
";

const DELETE: &str = "\
Asks first. What only this snapshot held is deleted from the store after the readers' grace (space.grace_ms), and there is no way back.
A snapshot that is not there is no error.

Examples:
  holdfast snapshot delete demo@monday
  holdfast snapshot delete demo@monday --yes
";

const DIFF: &str = "\
For incremental backups: what makes images of the volumes as LATER has them from images of them as
EARLIER has them. Reads the map only, no data. What garbage collection moved in between is listed
although it is the same.

First each volume, by its id: a name may be another volume's by now. RELATION says what its image
starts from, SIZE AFTER how long it is:
  gone  it is in EARLIER only: its image goes
  same  from its image as of EARLIER, cut or made longer with zeroes (its name was RENAMED FROM)
  new   from zeroes
  anew  from zeroes, although EARLIER has a volume of this name: that is another one, and nothing
        of its content may stay
Keep images by id, or else do this for all volumes before anything is written: two may have
exchanged their names.

Then the ranges to write into them, in bytes: `zero` reads as zeroes in LATER, `data` is to be read
from the export SET/VOLUME@LATER. What is not listed stays.

With --output json one JSON value per line: `kind` is `volume`, then `range`, and `end` once.
Without the end the list is not whole, and nothing may be made of it.

Examples:
  holdfast snapshot diff demo monday tuesday
  holdfast snapshot diff demo monday tuesday --output json > tuesday.diff
  tail -n 1 tuesday.diff | jq -e 'select(.kind == \"end\")'
  jq -r 'select(.kind == \"range\" and .id == 3) | \"\\(.offset) \\(.length) \\(.content)\"' tuesday.diff
";

const ROLLBACK: &str = "\
The set becomes what the snapshot shows: all volumes, their sizes included, at one moment. A snapshot of the set as it is now is taken first
and named in the answer: rolling back to that one undoes it. Writes since the snapshot are in the safety snapshot only.

Refused while somebody holds the set. With --force its lease ends first: whoever used it is fenced, and must attach anew and mount anew.

Examples:
  holdfast snapshot rollback demo@monday
  holdfast snapshot rollback demo@monday --force --yes --timeout 5m
";

/// `holdfast snapshot`.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep a set as it is now under a name; answers once it is in the store
    #[command(after_long_help = with_codes(CREATE))]
    Create {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
    },
    /// List the snapshots of a set, oldest first
    #[command(after_long_help = with_codes(LIST))]
    List {
        /// The set
        set: Name,
    },
    /// Print where to read a snapshot over NBD: addresses with the token that opens them
    #[command(after_long_help = with_codes(TOKEN))]
    Token {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
    },
    /// Make a set what one of its snapshots shows; takes a snapshot of it as it is first
    #[command(after_long_help = with_codes(ROLLBACK))]
    Rollback {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
        /// End the lease of whoever holds the set
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Tell what became of each volume between two snapshots, and which ranges may differ
    #[command(after_long_help = with_codes(DIFF))]
    Diff {
        /// The set
        set: Name,
        /// The earlier snapshot
        earlier: Name,
        /// The later snapshot
        later: Name,
    },
    /// Delete a snapshot
    #[command(after_long_help = with_codes(DELETE))]
    Delete {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// `SET@NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotArg {
    /// The set.
    pub set: Name,
    /// The snapshot in it.
    pub name: Name,
}

impl fmt::Display for SnapshotArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.set, self.name)
    }
}

impl FromStr for SnapshotArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (set, name) = text.split_once('@').ok_or_else(|| format!("found {text:?}, expected SET@NAME"))?;
        let read = |part: &str| Name::new(part).map_err(|error| error.to_string());
        Ok(Self { set: read(set)?, name: read(name)? })
    }
}

/// Runs one of `holdfast snapshot`'s commands.
pub async fn run(common: &Common, command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create { snapshot } => create(common, &snapshot).await,
        SnapshotCommand::List { set } => list(common, &set).await,
        SnapshotCommand::Token { snapshot } => show_token(common, &snapshot).await,
        SnapshotCommand::Rollback { snapshot, force, yes } => rollback(common, &snapshot, force, yes).await,
        SnapshotCommand::Diff { set, earlier, later } => super::diff::run(common, &set, &earlier, &later).await,
        SnapshotCommand::Delete { snapshot, yes } => delete(common, &snapshot, yes).await,
    }
}

async fn create(common: &Common, snapshot: &SnapshotArg) -> Result<(), CliError> {
    let SnapshotArg { set, name } = snapshot;
    let request = v1::CreateSnapshotRequest { set: set.to_string(), name: name.to_string(), request_id: request_id() };
    let call = async |mut client: Client| client.create_snapshot(request.clone()).await;
    let reply = door(common).call(&format!("create snapshot {set}@{name}"), Effect::Changes, call).await?;
    let made = reply.snapshot.ok_or_else(|| incomplete("the snapshot"))?;
    output::show(common.output, &made, || format!("snapshot {set}@{name} shows everything up to {}", place(&made)))
}

async fn list(common: &Common, set: &Name) -> Result<(), CliError> {
    let request = v1::ListSnapshotsRequest { set: set.to_string() };
    let call = async |mut client: Client| client.list_snapshots(request.clone()).await;
    let reply = door(common).call(&format!("list the snapshots of {set}"), Effect::Reads, call).await?;
    output::show(common.output, &reply, || {
        let rows = reply.snapshots.iter().map(|found| {
            let state = match (found.pending, found.scheduled) {
                (true, _) => "pending",
                (false, true) => "scheduled",
                (false, false) => "ready",
            };
            let volumes: Vec<&str> = found.volumes.iter().map(|volume| volume.name.as_str()).collect();
            [found.name.clone(), state.to_string(), place(found), since(found.created_unix_ms), volumes.join(" ")]
        });
        output::table(["SNAPSHOT", "STATE", "UP TO", "ASKED FOR", "VOLUMES"], rows)
    })
}

async fn delete(common: &Common, snapshot: &SnapshotArg, yes: bool) -> Result<(), CliError> {
    let SnapshotArg { set, name } = snapshot;
    let mut door = door(common);
    // By its id: however late a copy of the call arrives, it hits no snapshot that was made since.
    let reply = match find(&mut door, snapshot).await? {
        None => v1::DeleteSnapshotReply { deleted: false },
        Some(found) => {
            if !yes {
                let (of, since) = (found.volumes.len(), since(found.created_unix_ms));
                confirm(&format!("Delete snapshot {snapshot} ({of} volumes, asked for {since}) for ever?"))?;
                // The question may have taken long: the time runs from the answer.
                door = super::door(common);
            }
            let (set, name) = (set.to_string(), name.to_string());
            let request = v1::DeleteSnapshotRequest { set, name, request_id: request_id(), id: found.id };
            let call = async |mut client: Client| client.delete_snapshot(request.clone()).await;
            door.call(&format!("delete snapshot {snapshot}"), Effect::Changes, call).await?
        }
    };
    if !reply.deleted {
        tell(common, &format!("there is no snapshot {set}@{name}: it may have been deleted before"));
    }
    output::show(common.output, &reply, || {
        format!("snapshot {set}@{name} {}", if reply.deleted { "deleted" } else { "is not there" })
    })
}

async fn rollback(common: &Common, snapshot: &SnapshotArg, force: bool, yes: bool) -> Result<(), CliError> {
    let mut door = door(common);
    let Some(found) = find(&mut door, snapshot).await? else {
        let error = CliError::refused(format!("there is no snapshot {snapshot}"));
        return Err(error.next(format!("`holdfast snapshot list {}` shows them", snapshot.set)));
    };
    if !yes {
        let asked = since(found.created_unix_ms);
        confirm(&format!("Make set {} what it was at {snapshot} (asked for {asked})?", snapshot.set))?;
        door = super::door(common);
    }
    let (set, name) = (snapshot.set.to_string(), snapshot.name.to_string());
    let request = v1::RollbackSnapshotRequest { set, name, id: found.id, request_id: request_id(), force };
    let call = async |mut client: Client| client.rollback_snapshot(request.clone()).await;
    let reply = door.patient().call(&format!("roll back to {snapshot}"), Effect::Changes, call).await?;
    let safety = reply.safety.as_ref().map(|safety| safety.name.clone());
    output::show(common.output, &reply, || match safety {
        Some(safety) => format!(
            "set {set} is what {snapshot} shows; as it was before: {set}@{safety}, delete it when it is not needed",
            set = snapshot.set
        ),
        None => format!("set {} was rolled back to {snapshot} by this request before", snapshot.set),
    })
}

/// The token, and the NBD address of each volume at the gateway that leads (`?` belongs to the export's name: it is escaped).
async fn show_token(common: &Common, snapshot: &SnapshotArg) -> Result<(), CliError> {
    let mut door = door(common);
    let found = token(&mut door, snapshot).await?;
    let leader = super::set::status(&mut door, snapshot.set.as_str(), false).await?.leader;
    let nbd = leader.and_then(|leader| leader.addresses).map(|addresses| addresses.nbd).unwrap_or_default();
    let (SnapshotArg { set, name }, token) = (snapshot, &found.token);
    let export = |volume: &v1::Volume| format!("nbd://{nbd}/{set}/{}@{name}%3Ftoken={token}", volume.name);
    let exports: Vec<String> = found.volumes.iter().map(export).collect();
    output::show(common.output, &serde_json::json!({ "token": token, "exports": exports }), || exports.join("\n"))
}

/// What opens exports of a snapshot.
pub(super) async fn token(door: &mut Door, snapshot: &SnapshotArg) -> Result<v1::GetSnapshotTokenReply, CliError> {
    let (set, name) = (snapshot.set.to_string(), snapshot.name.to_string());
    let request = v1::GetSnapshotTokenRequest { set, name };
    let call = async |mut client: Client| client.get_snapshot_token(request.clone()).await;
    door.call(&format!("get the token of snapshot {snapshot}"), Effect::Reads, call).await
}

/// The snapshot as its set's leader lists it.
pub(super) async fn find(door: &mut Door, snapshot: &SnapshotArg) -> Result<Option<v1::Snapshot>, CliError> {
    let request = v1::ListSnapshotsRequest { set: snapshot.set.to_string() };
    let call = async |mut client: Client| client.list_snapshots(request.clone()).await;
    let reply = door.call(&format!("list the snapshots of {}", snapshot.set), Effect::Reads, call).await?;
    Ok(reply.snapshots.into_iter().find(|found| found.name == snapshot.name.as_str()))
}

/// `t3/1234`, or nothing while it is not known.
fn place(snapshot: &v1::Snapshot) -> String {
    if snapshot.pending { String::new() } else { format!("t{}/{}", snapshot.term, snapshot.index) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let found: SnapshotArg = "demo@monday-1".parse().unwrap();
        assert_eq!((found.set.as_str(), found.name.as_str()), ("demo", "monday-1"));
        for bad in ["demo", "demo@", "@monday", "demo@a@b", "demo/vol@a"] {
            assert!(bad.parse::<SnapshotArg>().is_err(), "{bad}");
        }
    }
}
