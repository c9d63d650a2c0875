//! `holdfast volume`.

#[cfg(feature = "whole")]
mod connection;
#[cfg(feature = "whole")]
mod copy;
#[cfg(feature = "whole")]
mod export;
#[cfg(feature = "whole")]
mod image;
#[cfg(feature = "whole")]
mod import;
#[cfg(feature = "whole")]
mod part_file;
mod path;
#[cfg(feature = "whole")]
mod progress;
#[cfg(feature = "whole")]
mod state;

use super::bootstrap;
use super::connect::{connect, incomplete};
use super::console::{confirm, tell};
use super::set_calls::{create_volume, no_volume, space};
use super::text::{created_text, limit_text};
use crate::cli::{Common, VolumeCommand, VolumePath};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::{CliError, Exit};
use crate::output;
use holdfast_api::v1::{self, change_volume_request::Change};
use holdfast_types::{ByteSize, Name};
use path::find;

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
        VolumeCommand::Limit { volume, limit } => super::limits::of_volume(common, &volume, &limit).await,
        VolumeCommand::Rename { volume, to } => rename(common, &volume, &to).await,
        VolumeCommand::Delete { volume, force, yes } => delete(common, &volume, force, yes).await,
        #[cfg(feature = "whole")]
        VolumeCommand::Import(args) => import::import(common, &args).await,
        #[cfg(feature = "whole")]
        VolumeCommand::Export(args) => export::export(common, &args).await,
    }
}

fn check_size(volume: &VolumePath, size: ByteSize) -> Result<(), CliError> {
    bootstrap::check_size(size).map_err(|problem| CliError::usage(format!("volume {volume}: {problem}")))
}

async fn create(common: &Common, volume: &VolumePath, size: ByteSize) -> Result<(), CliError> {
    check_size(volume, size)?;
    let (set, name) = (volume.set.as_str(), volume.name.as_str());
    let created = create_volume(&mut connect(common), set, name, size).await?;
    let json = serde_json::json!({ "set": set, "name": name, "size_bytes": size.0, "created": created });
    output::show(common.output, &json, || format!("volume {volume} {} with {size}", created_text(created)))
}

async fn change(
    api: &mut ClusterClient,
    volume: &VolumePath,
    id: u32,
    what: &str,
    force: bool,
    change: Change,
) -> Result<v1::ChangeVolumeReply, CliError> {
    let set = volume.set.to_string();
    let request = v1::ChangeVolumeRequest { set, request_id: request_id(), volume: id, force, change: Some(change) };
    let call = async |mut client: Client| client.change_volume(request.clone()).await;
    api.call(&format!("{what} volume {volume}"), Effect::Changes, call).await
}

async fn grow(common: &Common, volume: &VolumePath, size: ByteSize) -> Result<(), CliError> {
    check_size(volume, size)?;
    let mut api = connect(common);
    let found = find(&mut api, volume).await?;
    let grow = Change::Grow(v1::GrowVolume { size_bytes: size.0 });
    let reply = change(&mut api, volume, found.id, "grow", false, grow).await.map_err(|error| {
        if size.0 < found.size_bytes { error.next("to make it smaller use `holdfast volume shrink`") } else { error }
    })?;
    output::show(common.output, &reply, || {
        format!(
            "volume {volume} grew from {} to {size}; attached kernel devices follow, other clients see it when they reconnect",
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
        let error = CliError::declined(format!("data of {volume} beyond {size} would be lost"));
        return Err(error.next("shrink the file system on it first, then add --discard-data"));
    }
    let mut api = connect(common);
    let found = find(&mut api, volume).await?;
    let shrink = v1::ShrinkVolume { from_bytes: found.size_bytes, size_bytes: size.0, discard_data };
    let reply = change(&mut api, volume, found.id, "shrink", force, Change::Shrink(shrink)).await;
    let reply = reply.map_err(|error| in_use(error, true))?;
    output::show(common.output, &reply, || {
        format!("volume {volume} shrank from {} to {size}", output::bytes(found.size_bytes))
    })
}

async fn rename(common: &Common, volume: &VolumePath, to: &Name) -> Result<(), CliError> {
    let mut api = connect(common);
    let found = find(&mut api, volume).await?;
    let rename = v1::RenameVolume { from: volume.name.to_string(), to: to.to_string() };
    let reply = change(&mut api, volume, found.id, "rename", false, Change::Rename(rename)).await;
    let reply = reply.map_err(|error| in_use(error, false))?;
    output::show(common.output, &reply, || format!("volume {volume} is now {}/{to}", volume.set))
}

async fn delete(common: &Common, volume: &VolumePath, force: bool, yes: bool) -> Result<(), CliError> {
    let mut api = connect(common);
    let found = find(&mut api, volume).await?;
    if !yes {
        confirm(&format!("Delete volume {volume} ({}) and all its data?", output::bytes(found.size_bytes)))?;
        // The time limit starts after the answer.
        api = connect(common);
    }
    let delete = v1::DeleteVolume { name: volume.name.to_string() };
    let reply = change(&mut api, volume, found.id, "delete", force, Change::Delete(delete)).await;
    let reply = reply.map_err(|error| in_use(error, true))?;
    if reply.already {
        tell(common, &format!("volume {volume} was already deleted by an earlier attempt of this request"));
    }
    output::show(common.output, &reply, || {
        format!(
            "volume {volume} is deleted; its space is freed after the next checkpoint and the grace period for readers"
        )
    })
}

/// Adds advice for a volume that is in use.
fn in_use(error: CliError, may_be_forced: bool) -> CliError {
    if error.code != "precondition" || error.next.is_some() || error.exit == Exit::Unknown {
        return error;
    }
    error.next(if may_be_forced { "disconnect its clients, or add --force" } else { "disconnect its clients" })
}

async fn list(common: &Common, set: &Name) -> Result<(), CliError> {
    let reply = space(&mut connect(common), set.as_str()).await?;
    output::show(common.output, &reply, || match reply.not_known.as_str() {
        "" => describe(&reply),
        why => format!("{}\nThe space in the store is unknown: {why}", describe(&reply)),
    })
}

/// A number from the last checkpoint's map. Without the map it is unknown, which is not zero.
fn mapped(reply: &v1::GetSpaceReply, figure: u64) -> String {
    if reply.not_known.is_empty() { output::bytes(figure) } else { "unknown".to_string() }
}

/// One volume for programs, with the reason why a part of it is unknown: else 0 mapped bytes would look like none.
#[derive(serde::Serialize)]
struct Known<'a> {
    #[serde(flatten)]
    found: &'a v1::VolumeSpace,
    not_known: &'a str,
}

async fn show(common: &Common, volume: &VolumePath) -> Result<(), CliError> {
    let reply = space(&mut connect(common), volume.set.as_str()).await?;
    let named = |found: &&v1::VolumeSpace| found.volume.as_ref().is_some_and(|v| v.name == volume.name.as_str());
    let Some(found) = reply.volumes.iter().find(named) else {
        return Err(no_volume(volume));
    };
    let facts = found.volume.as_ref().ok_or_else(|| incomplete("the volume"))?;
    let json = Known { found, not_known: &reply.not_known };
    output::show(common.output, &json, || {
        format!(
            "volume       {volume} (id {})\nsize         {}\nmapped       {}\nconnections  {}\nlimit        {}",
            facts.id,
            output::bytes(facts.size_bytes),
            mapped(&reply, found.mapped_bytes),
            found.connections,
            limit_text(found.limit.as_ref())
        )
    })
}

fn describe(reply: &v1::GetSpaceReply) -> String {
    let rows = reply.volumes.iter().filter_map(|found| {
        let volume = found.volume.as_ref()?;
        let (size, mapped) = (output::bytes(volume.size_bytes), mapped(reply, found.mapped_bytes));
        Some([volume.name.clone(), volume.id.to_string(), size, mapped, found.connections.to_string()])
    });
    // The column is shown only if there is a limit.
    if reply.volumes.iter().all(|found| found.limit.is_none()) {
        return output::table(["VOLUME", "ID", "SIZE", "MAPPED", "CONNECTIONS"], rows);
    }
    let limits = reply.volumes.iter().filter(|found| found.volume.is_some());
    let rows = rows.zip(limits).map(|([name, id, size, mapped, connections], found)| {
        [name, id, size, mapped, connections, limit_text(found.limit.as_ref())]
    });
    output::table(["VOLUME", "ID", "SIZE", "MAPPED", "CONNECTIONS", "LIMIT"], rows)
}

/// The space of a set as text, below the other lines of `set show`.
pub(super) fn describe_space(reply: &v1::GetSpaceReply) -> String {
    let fact = |name: &str, value: String| format!("{name:<22}{value}\n");
    let bytes = output::bytes;
    let mapped = |figure| mapped(reply, figure);
    let mut text = fact("provisioned", bytes(reply.provisioned_bytes))
        + &fact(
            "written",
            format!(
                "{} in the checkpoint, {} in the journal since then",
                mapped(reply.written_bytes),
                bytes(reply.journal_bytes)
            ),
        )
        + &fact(
            "stored",
            format!(
                "{}, {} including snapshots and clones",
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
                "{} in segments in use, {} objects wait for deletion, {} old checkpoints to search",
                mapped(reply.garbage_bytes),
                reply.retired_objects,
                reply.dropped_roots
            ),
        );
    if !reply.snapshots.is_empty() {
        let rows = reply.snapshots.iter().map(|found| {
            [found.name.clone(), bytes(found.provisioned_bytes), bytes(found.written_bytes), bytes(found.unique_bytes)]
        });
        text = format!("{text}\n{}", output::table(["SNAPSHOT", "PROVISIONED", "WRITTEN", "UNIQUE"], rows));
    }
    if !reply.not_known.is_empty() {
        text += &format!("\nThe space in the store is unknown: {}", reply.not_known);
    } else if reply.incomplete {
        text += "\nSome snapshots are left out, because their maps are too large for one answer or the store did not deliver them in time. UNIQUE may be too large for the others.";
    }
    format!("{text}\n{}", describe(reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "0B stored" would look like data loss.
    #[test]
    fn unknown_space_is_not_shown_as_zero() {
        let volume = v1::Volume { name: "vol1".into(), id: 1, size_bytes: 1 << 30 };
        let space = v1::VolumeSpace { volume: Some(volume), ..v1::VolumeSpace::default() };
        let mut reply = v1::GetSpaceReply { volumes: vec![space], ..v1::GetSpaceReply::default() };
        assert!(!describe_space(&reply).contains("unknown"));
        reply.not_known = "the store does not answer".into();
        let text = describe_space(&reply);
        assert!(text.matches("unknown").count() > 5 && text.contains("the store does not answer"), "{text}");
        assert!(describe(&reply).contains("unknown"));
        let json = serde_json::to_value(Known { found: &reply.volumes[0], not_known: &reply.not_known }).unwrap();
        assert_eq!(json["volume"]["name"], "vol1");
        assert_eq!(json["not_known"], "the store does not answer");
    }
}
