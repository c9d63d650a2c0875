//! Calls that create and change volumes (ADR 0022). A change that removes something must name what its caller has seen,
//! and is decided while nobody is connected. Apply compares the rest (`control::set`, VOLUME-V3).

use super::AdminDoor;
use super::member::invalid;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::set::{SetAnswer, SetCommand, SetRefusal, VolumeChange};
use holdfast_raft::ProposeError;
use holdfast_set::server::{InUse, SetError, SetServer};
use holdfast_types::{Epoch, Name, RequestId, Sectors, VolumeId};
use std::sync::Arc;
use v1::change_volume_request::Change;

fn sectors(what: &str, bytes: u64) -> Result<Sectors, Refusal> {
    Sectors::from_bytes(bytes)
        .ok_or_else(|| invalid(format!("{what}: found {bytes} bytes, expected a multiple of 512")))
}

fn message(set: &SetServer, volume: VolumeId) -> Option<v1::Volume> {
    set.host.with(|m| {
        m.state().volumes.get(&volume).map(|found| v1::Volume {
            id: volume.0,
            name: found.name.to_string(),
            size_bytes: found.size.to_bytes().unwrap_or(0),
        })
    })
}

impl AdminDoor {
    pub(super) async fn create_volume(
        &self,
        request: v1::CreateVolumeRequest,
    ) -> Result<v1::CreateVolumeReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let name = holdfast_api::name("name", &request.name)?;
        let size = sectors("size", request.size_bytes)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let change = VolumeChange::Create { name: name.clone(), size };
        let command = SetCommand::ChangeVolume { change, request: id };
        let reply = |id: VolumeId, created| {
            let volume = v1::Volume { id: id.0, name: name.to_string(), size_bytes: request.size_bytes };
            v1::CreateVolumeReply { volume: Some(volume), created }
        };
        match set.command("a new volume", &command).await {
            Ok(SetAnswer::VolumeChanged { volume, .. }) => {
                // A recovery knows only the volumes of the last checkpoint.
                set.head.want_checkpoint();
                Ok(reply(volume, true))
            }
            Ok(SetAnswer::VolumeChangedBefore) => {
                let found = set.host.with(|m| m.state().volume_named(&name).map(|(id, volume)| (id, volume.size)));
                match found.filter(|(_, found)| *found == size) {
                    Some((id, _)) => Ok(reply(id, true)),
                    None => {
                        let text = format!(
                            "this request created {}/{name} earlier, but that volume is gone or was replaced since",
                            set.name
                        );
                        Err(Refusal::new(RefusalCode::Precondition, text))
                    }
                }
            }
            Err(SetError::Refused(SetRefusal::NameTaken { volume, size: found })) if found == size => {
                Ok(reply(volume, false))
            }
            Ok(other) => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => Err(self.of_set(&set, &e)),
        }
    }

    pub(super) async fn change_volume(
        &self,
        request: v1::ChangeVolumeRequest,
    ) -> Result<v1::ChangeVolumeReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let volume = VolumeId(request.volume);
        let change =
            request.change.ok_or_else(|| invalid("change: found none, expected grow, shrink, rename or delete"))?;
        self.confirm(&set).await?;
        // R12: an earlier copy has done it. The conditions that it found may have changed since.
        if set.host.with(|m| m.state().space_requests.contains(&id)) {
            return Ok(v1::ChangeVolumeReply { volume: message(&set, volume), already: true });
        }
        let seen = ChangeRequest { volume, id, force: request.force };
        // RESIZE-U1: an abandoned call would let the volume go, with its command still in the log.
        self.to_its_end(move |door| async move { door.carry_out(&set, seen, change).await }).await
    }

    async fn carry_out(
        &self,
        set: &Arc<SetServer>,
        seen: ChangeRequest,
        change: Change,
    ) -> Result<v1::ChangeVolumeReply, Refusal> {
        let ChangeRequest { volume, id, force } = seen;
        // Growing a volume hurts no connection. Renaming would hurt connected clients, so force does not allow it.
        let anyway = match &change {
            Change::Grow(_) => true,
            Change::Rename(_) => false,
            Change::Shrink(_) | Change::Delete(_) => force,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let held = set.hold_volume(volume, anyway).map_err(|why| {
                let text = format!("volume {} of set {} is in use: {why}", name_of(set, volume), set.name);
                // It may be an earlier attempt of this call, which is asked for again until its outcome is known.
                let code = if why == InUse::Changing { RefusalCode::Busy } else { RefusalCode::Precondition };
                Refusal::new(code, text)
            })?;
            let epoch = set.host.with(|m| m.state().epoch);
            let command = command_of(&change, volume, epoch, id)?;
            let already = match set.command("a change of a volume", &command).await {
                Ok(SetAnswer::VolumeChanged { discarded, .. }) => {
                    tracing::info!(set = %set.name, %volume, ?change, discarded = discarded.is_some(), "volume changed");
                    set.head.want_checkpoint();
                    false
                }
                Ok(SetAnswer::VolumeChangedBefore) => true,
                // The set was granted at this very moment: check it and its connections again.
                Err(SetError::Refused(SetRefusal::WrongEpoch { .. })) if tries < TRIES_MAX => continue,
                Ok(other) => {
                    return Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}")));
                }
                Err(e) => {
                    if matches!(e, SetError::Propose(ProposeError::Unknown { .. })) {
                        tokio::spawn(held.settled());
                    }
                    return Err(self.of_set(set, &e));
                }
            };
            return Ok(v1::ChangeVolumeReply { volume: message(set, volume), already });
        }
    }
}

/// How often a change is retried because the set was granted meanwhile.
const TRIES_MAX: u32 = 5;

struct ChangeRequest {
    volume: VolumeId,
    id: RequestId,
    force: bool,
}

fn command_of(change: &Change, volume: VolumeId, epoch: Epoch, request: RequestId) -> Result<SetCommand, Refusal> {
    let name = |what: &'static str, text: &str| -> Result<Name, Refusal> { Ok(holdfast_api::name(what, text)?) };
    let change = match change {
        Change::Grow(grow) => VolumeChange::Grow { volume, size: sectors("size", grow.size_bytes)? },
        Change::Shrink(shrink) => {
            if !shrink.discard_data {
                let text = "the data beyond the new size would be lost: confirm with --discard-data";
                return Err(Refusal::new(RefusalCode::Precondition, text));
            }
            let (from, to) = (sectors("from", shrink.from_bytes)?, sectors("size", shrink.size_bytes)?);
            VolumeChange::Shrink { volume, from, to, epoch }
        }
        Change::Rename(rename) => {
            VolumeChange::Rename { volume, from: name("from", &rename.from)?, to: name("to", &rename.to)?, epoch }
        }
        Change::Delete(delete) => VolumeChange::Delete { volume, name: name("name", &delete.name)?, epoch },
    };
    Ok(SetCommand::ChangeVolume { change, request })
}

fn name_of(set: &SetServer, volume: VolumeId) -> String {
    message(set, volume).map_or_else(|| volume.to_string(), |found| found.name)
}
