//! `holdfast volume`.

mod copy;
mod export;
mod image;
mod import;
mod link;
mod part;
mod progress;
mod state;

use super::{bootstrap, confirm, door, incomplete, set::status, tell};
use crate::cli::{Common, with_codes};
use crate::door::{Client, Door, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use clap::Subcommand;
use holdfast_api::v1::{self, change_volume_request::Change};
use holdfast_types::{ByteSize, Name};
use std::fmt;
use std::str::FromStr;

pub use copy::{ExportArgs, ImportArgs};

const CREATE: &str = "\
A volume is thin: it takes what is written, whatever its size. A running attach does not notice a new volume; start it again.

Example:
  holdfast volume create demo/vol3 --size 100GiB
";

const LIST: &str = "\
One line for each volume, as the set's leader has it:
  VOLUME                its name
  ID                    its number in the set: the same under another name, and no later volume's
  SIZE                  what clients see; it is thin, so this much is not taken
  IN THE STORE AT MOST  bytes of it that the last checkpoint can have, before compression: counted
                        in pages of its map, 32MiB each. Of a clone without what it shows of its
                        origin
  CONNECTIONS           clients at the gateway that leads the set; those of snapshots do not count

What the set takes up, compressed, garbage and snapshots included: `holdfast set show`.

Examples:
  holdfast volume list demo
  holdfast volume list demo --output json | jq -r '.volumes[] | \"\\(.volume.name) \\(.mapped_bytes)\"'
";

const SHOW: &str = "\
As the set's leader has it:
  id            its number in the set: the same under another name, and no later volume's
  size          what clients see; it is thin, so this much is not taken
  in the store  bytes of it that the last checkpoint can have, before compression: counted in pages
                of its map, 32MiB each. Of a clone without what it shows of its origin
  connections   clients at the gateway that leads the set; those of snapshots do not count

Example:
  holdfast volume show demo/vol1
";

const GROW: &str = "\
At once, also while it is used. The kernel devices of a running `holdfast attach` follow within seconds. NBD has no message for it: every other client
sees the new size when it connects anew (an nbdfuse device: detach and attach). Then grow what is on it: `zpool online -e POOL DEVICE`, `resize2fs`, `xfs_growfs`.

Example:
  holdfast volume grow demo/vol1 --size 200GiB
";

const SHRINK: &str = "\
What lies beyond the new size is gone; only snapshots that were taken before still have it. Shrink what is on the volume first.
Refused while clients are connected. With --force they stay, and get errors (ENOSPC, EINVAL) for what lies beyond the new end.
The device of a running `holdfast attach` fails then, for good: also where the volume grows again.

Example:
  holdfast volume shrink demo/vol1 --size 50GiB --discard-data
";

const RENAME: &str = "\
Refused while clients are connected: they would look for the old name when they connect anew. Snapshots keep the old name.

Example:
  holdfast volume rename demo/vol1 archive
";

const DELETE: &str = "\
Only snapshots that were taken before still have it. What nothing names any more is deleted from the store after a checkpoint and the readers' grace
(space.grace_ms). Refused while clients are connected; with --force they stay, and get errors for whatever they ask.

Examples:
  holdfast volume delete demo/vol3
  holdfast volume delete demo/vol3 --yes
";

/// `holdfast volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume; one that is there with that size already is fine
    #[command(after_long_help = with_codes(CREATE))]
    Create {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// Its size: thin, it takes what is written
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
    },
    /// List the volumes of a set, with what they take up
    #[command(after_long_help = with_codes(LIST))]
    List {
        /// The set
        set: Name,
    },
    /// Show one volume
    #[command(after_long_help = with_codes(SHOW))]
    Show {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
    },
    /// Make a volume larger, at once
    #[command(after_long_help = with_codes(GROW))]
    Grow {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// The new size
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
    },
    /// Make a volume smaller; what lies beyond is lost
    #[command(after_long_help = with_codes(SHRINK))]
    Shrink {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// The new size
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
        /// What lies beyond the new size may be lost
        #[arg(long)]
        discard_data: bool,
        /// Also while clients are connected
        #[arg(long)]
        force: bool,
    },
    /// Give a volume another name
    #[command(after_long_help = with_codes(RENAME))]
    Rename {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// The new name
        #[arg(value_name = "NAME")]
        to: Name,
    },
    /// Delete a volume and what it holds
    #[command(after_long_help = with_codes(DELETE))]
    Delete {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// Also while clients are connected
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Fill a volume from an image
    #[command(after_long_help = with_codes(copy::IMPORT))]
    Import(ImportArgs),
    /// Write a volume, or a volume of a snapshot, to an image
    #[command(after_long_help = with_codes(copy::EXPORT))]
    Export(ExportArgs),
}

/// `SET/VOLUME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The set.
    pub set: Name,
    /// The volume in it.
    pub name: Name,
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.set, self.name)
    }
}

impl FromStr for VolumePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (set, name) = text.split_once('/').ok_or_else(|| format!("found {text:?}, expected SET/VOLUME"))?;
        let read = |part: &str| Name::new(part).map_err(|error| error.to_string());
        Ok(Self { set: read(set)?, name: read(name)? })
    }
}

/// Runs one of `holdfast volume`'s commands.
pub async fn run(common: &Common, command: VolumeCommand) -> Result<(), CliError> {
    match command {
        VolumeCommand::Create { volume, size } => create(common, &volume, size).await,
        VolumeCommand::List { set } => list(common, &set).await,
        VolumeCommand::Show { volume } => show(common, &volume).await,
        VolumeCommand::Grow { volume, size } => grow(common, &volume, size).await,
        VolumeCommand::Shrink { volume, size, discard_data, force } => {
            shrink(common, &volume, size, discard_data, force).await
        }
        VolumeCommand::Rename { volume, to } => rename(common, &volume, &to).await,
        VolumeCommand::Delete { volume, force, yes } => delete(common, &volume, force, yes).await,
        VolumeCommand::Import(args) => import::import(common, &args).await,
        VolumeCommand::Export(args) => export::export(common, &args).await,
    }
}

fn check_size(volume: &VolumePath, size: ByteSize) -> Result<(), CliError> {
    bootstrap::check_size(size).map_err(|problem| CliError::usage(format!("volume {volume}: {problem}")))
}

async fn create(common: &Common, volume: &VolumePath, size: ByteSize) -> Result<(), CliError> {
    check_size(volume, size)?;
    let (set, name) = (volume.set.as_str(), volume.name.as_str());
    let created = super::set::create_volume(&mut door(common), set, name, size).await?;
    let json = serde_json::json!({ "set": set, "name": name, "size_bytes": size.0, "created": created });
    output::show(common.output, &json, || {
        format!("volume {volume} {} with {size}", if created { "created" } else { "is there already" })
    })
}

/// The volume as its set's leader has it.
async fn find(door: &mut Door, volume: &VolumePath) -> Result<v1::Volume, CliError> {
    let found = status(door, volume.set.as_str(), false).await?;
    let found = found.volumes.into_iter().find(|found| found.name == volume.name.as_str());
    found.ok_or_else(|| {
        CliError::refused(format!("there is no volume {volume}"))
            .next(format!("`holdfast volume list {}` shows what there is", volume.set))
    })
}

async fn change(
    door: &mut Door,
    volume: &VolumePath,
    id: u32,
    what: &str,
    force: bool,
    change: Change,
) -> Result<v1::ChangeVolumeReply, CliError> {
    let set = volume.set.to_string();
    let request = v1::ChangeVolumeRequest { set, request_id: request_id(), volume: id, force, change: Some(change) };
    let call = async |mut client: Client| client.change_volume(request.clone()).await;
    door.call(&format!("{what} volume {volume}"), Effect::Changes, call).await
}

async fn grow(common: &Common, volume: &VolumePath, size: ByteSize) -> Result<(), CliError> {
    check_size(volume, size)?;
    let mut door = door(common);
    let found = find(&mut door, volume).await?;
    let grow = Change::Grow(v1::GrowVolume { size_bytes: size.0 });
    let reply = change(&mut door, volume, found.id, "grow", false, grow).await.map_err(|error| {
        if size.0 < found.size_bytes { error.next("`holdfast volume shrink` makes a volume smaller") } else { error }
    })?;
    output::show(common.output, &reply, || {
        format!(
            "volume {volume} has {size}, it had {}; kernel devices of an attach follow, other clients see it when they connect anew",
            output::bytes(found.size_bytes)
        )
    })
}

async fn shrink(
    common: &Common,
    volume: &VolumePath,
    size: ByteSize,
    discard_data: bool,
    force: bool,
) -> Result<(), CliError> {
    check_size(volume, size)?;
    if !discard_data {
        let error = CliError::declined(format!("what {volume} holds beyond {size} would be lost"));
        return Err(error.next("shrink what is on it first, then add --discard-data"));
    }
    let mut door = door(common);
    let found = find(&mut door, volume).await?;
    let shrink = v1::ShrinkVolume { from_bytes: found.size_bytes, size_bytes: size.0, discard_data };
    let reply = change(&mut door, volume, found.id, "shrink", force, Change::Shrink(shrink)).await;
    let reply = reply.map_err(|error| in_use(error, true))?;
    output::show(common.output, &reply, || {
        format!("volume {volume} has {size}, it had {}", output::bytes(found.size_bytes))
    })
}

async fn rename(common: &Common, volume: &VolumePath, to: &Name) -> Result<(), CliError> {
    let mut door = door(common);
    let found = find(&mut door, volume).await?;
    let rename = v1::RenameVolume { from: volume.name.to_string(), to: to.to_string() };
    let reply = change(&mut door, volume, found.id, "rename", false, Change::Rename(rename)).await;
    let reply = reply.map_err(|error| in_use(error, false))?;
    output::show(common.output, &reply, || format!("volume {volume} is {}/{to} now", volume.set))
}

async fn delete(common: &Common, volume: &VolumePath, force: bool, yes: bool) -> Result<(), CliError> {
    let mut door = door(common);
    let found = find(&mut door, volume).await?;
    if !yes {
        confirm(&format!("Delete volume {volume} of {} and all it holds?", output::bytes(found.size_bytes)))?;
        // The question may have taken long: the time runs from the answer.
        door = super::door(common);
    }
    let delete = v1::DeleteVolume { name: volume.name.to_string() };
    let reply = change(&mut door, volume, found.id, "delete", force, Change::Delete(delete)).await;
    let reply = reply.map_err(|error| in_use(error, true))?;
    if reply.already {
        tell(common, &format!("volume {volume} had been deleted by this request before"));
    }
    output::show(common.output, &reply, || {
        format!("volume {volume} is deleted; its space comes back after a checkpoint and the readers' grace")
    })
}

/// What to do about a volume that is in use.
fn in_use(error: CliError, may_be_forced: bool) -> CliError {
    if error.code != "precondition" || error.next.is_some() {
        return error;
    }
    error.next(if may_be_forced { "disconnect its clients, or add --force" } else { "disconnect its clients" })
}

/// What a set takes up.
pub(super) async fn space(door: &mut Door, set: &str) -> Result<v1::GetSpaceReply, CliError> {
    let request = v1::GetSpaceRequest { set: set.into() };
    let call = async |mut client: Client| client.get_space(request.clone()).await;
    door.call(&format!("look at the space of set {set}"), Effect::Reads, call).await
}

async fn list(common: &Common, set: &Name) -> Result<(), CliError> {
    let reply = space(&mut door(common), set.as_str()).await?;
    output::show(common.output, &reply, || match reply.not_known.as_str() {
        "" => describe(&reply),
        why => format!("{}\nWhat is in the store is not known now: {why}", describe(&reply)),
    })
}

/// A figure of the last checkpoint's map. Without the map there are none, which is not the same as nothing.
fn mapped(reply: &v1::GetSpaceReply, figure: u64) -> String {
    if reply.not_known.is_empty() { output::bytes(figure) } else { "not known".to_string() }
}

async fn show(common: &Common, volume: &VolumePath) -> Result<(), CliError> {
    let reply = space(&mut door(common), volume.set.as_str()).await?;
    let named = |found: &&v1::VolumeSpace| found.volume.as_ref().is_some_and(|v| v.name == volume.name.as_str());
    let Some(found) = reply.volumes.iter().find(named) else {
        return Err(CliError::refused(format!("there is no volume {volume}"))
            .next(format!("`holdfast volume list {}` shows what there is", volume.set)));
    };
    let facts = found.volume.as_ref().ok_or_else(|| incomplete("the volume"))?;
    output::show(common.output, found, || {
        format!(
            "volume        {volume} (id {})\nsize          {}\nin the store  at most {}\nconnections   {}",
            facts.id,
            output::bytes(facts.size_bytes),
            mapped(&reply, found.mapped_bytes),
            found.connections
        )
    })
}

fn describe(reply: &v1::GetSpaceReply) -> String {
    let rows = reply.volumes.iter().filter_map(|found| {
        let volume = found.volume.as_ref()?;
        let (size, mapped) = (output::bytes(volume.size_bytes), mapped(reply, found.mapped_bytes));
        Some([volume.name.clone(), volume.id.to_string(), size, mapped, found.connections.to_string()])
    });
    output::table(["VOLUME", "ID", "SIZE", "IN THE STORE AT MOST", "CONNECTIONS"], rows)
}

/// Space in words and tables, below what `set show` says.
pub(super) fn describe_space(reply: &v1::GetSpaceReply) -> String {
    let fact = |name: &str, value: String| format!("{name:<22}{value}\n");
    let bytes = output::bytes;
    let mapped = |figure| mapped(reply, figure);
    let mut text = fact("provisioned", bytes(reply.provisioned_bytes))
        + &fact(
            "written",
            format!(
                "{} as of the checkpoint, {} in the journal since",
                mapped(reply.written_bytes),
                bytes(reply.journal_bytes)
            ),
        )
        + &fact(
            "in the store",
            format!(
                "{}, {} with snapshots and what clones show",
                mapped(reply.current_stored_bytes),
                mapped(reply.kept_stored_bytes)
            ),
        )
        + &fact(
            "live",
            format!(
                "{} of {} in segments",
                mapped(reply.live_stored_bytes),
                mapped(reply.live_stored_bytes.saturating_add(reply.garbage_bytes))
            ),
        )
        + &fact(
            "garbage",
            format!(
                "{} in segments in use, {} objects wait for deletion, {} checkpoints to look through",
                mapped(reply.garbage_bytes),
                reply.retired_objects,
                reply.dropped_roots
            ),
        );
    if !reply.snapshots.is_empty() {
        let rows = reply.snapshots.iter().map(|found| {
            [found.name.clone(), bytes(found.provisioned_bytes), bytes(found.written_bytes), bytes(found.unique_bytes)]
        });
        text = format!("{text}\n{}", output::table(["SNAPSHOT", "PROVISIONED", "WRITTEN", "ONLY ITS OWN"], rows));
    }
    if !reply.not_known.is_empty() {
        text += &format!("\nWhat is in the store is not known now: {}", reply.not_known);
    } else if reply.incomplete {
        text += "\nSome snapshots are left out: their maps are too large for one answer, or the store did not give them in time. Of the others, what is shown as only their own may be too much.";
    }
    format!("{text}\n{}", describe(reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not "0 B in the store", which a person would take for a loss.
    #[test]
    fn what_is_not_known_is_no_zero() {
        let volume = v1::Volume { name: "vol1".into(), id: 1, size_bytes: 1 << 30 };
        let space = v1::VolumeSpace { volume: Some(volume), ..v1::VolumeSpace::default() };
        let mut reply = v1::GetSpaceReply { volumes: vec![space], ..v1::GetSpaceReply::default() };
        assert!(!describe_space(&reply).contains("not known"));
        reply.not_known = "the store does not answer".into();
        let text = describe_space(&reply);
        assert!(text.matches("not known").count() > 5 && text.contains("the store does not answer"), "{text}");
        assert!(describe(&reply).contains("not known"));
    }

    #[test]
    fn paths() {
        let found: VolumePath = "demo/vol-1".parse().unwrap();
        assert_eq!((found.set.as_str(), found.name.as_str()), ("demo", "vol-1"));
        for bad in ["demo", "demo/", "/vol", "demo/a/b", "demo/vol@a"] {
            assert!(bad.parse::<VolumePath>().is_err(), "{bad}");
        }
    }
}
