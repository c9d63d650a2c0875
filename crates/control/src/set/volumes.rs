//! Volumes of a set: created, grown, shrunk, renamed and deleted while the set is served, each by one log entry (ADR
//! 0022).
//!
//! ```text
//!   .. write │ Shrink / Delete │ write ..        one order per set (R4): a write acknowledged before the entry is before it;
//!            │                 │                 an op behind it and outside of its volume is refused by itself
//! ```
//! VOLUME-V1  A volume's id names it for ever: ids are never reused, not even after a deletion or a rollback. Changes
//!     of a volume name it by its id.
//! VOLUME-V2  A request acts once (SET-S11): the last `SPACE_REQUESTS_REMEMBERED` are known, and a copy of one changes
//!     nothing.
//! VOLUME-V3  A destructive command names what its requester saw: the last epoch, the size, the name. Apply compares.
//! VOLUME-V4  A range that a shrink or a deletion discards reads as zeroes, also where the volume grows again;
//!     snapshots keep theirs. The discard changes the content of volumes, so no earlier safety snapshot is valid for a
//!     rollback after it (SET-S12).

use super::command::{SetAnswer, VolumeChange};
use super::limits::Limit;
use super::refusal::SetRefusal;
use super::state::{SetState, Volume};
use holdfast_types::limits::{VOLUME_SECTORS_MAX, VOLUMES_PER_SET_MAX};
use holdfast_types::{Epoch, Lba, LogId, Name, RequestId, Sectors, VolumeId};

impl SetState {
    /// VOLUME-V1 to VOLUME-V4.
    pub(super) fn change_volume(
        &mut self,
        id: LogId,
        change: &VolumeChange,
        request: RequestId,
    ) -> Result<SetAnswer, SetRefusal> {
        holdfast_reached::reached!("volumes: a late copy of a request", self.space_requests.contains(&request));
        if self.space_requests.contains(&request) {
            return Ok(SetAnswer::VolumeChangedBefore);
        }
        let (volume, discarded) = match change {
            VolumeChange::Create { name, size } => (self.new_volume(name, *size)?, None),
            VolumeChange::Grow { volume, size } => {
                self.grow_volume(*volume, *size)?;
                (*volume, None)
            }
            VolumeChange::Shrink { volume, from, to, epoch } => {
                self.check_epoch_seen(*epoch)?;
                (*volume, Some(self.shrink_volume(*volume, *from, *to)?))
            }
            VolumeChange::Rename { volume, from, to, epoch } => {
                self.check_epoch_seen(*epoch)?;
                self.rename_volume(*volume, from, to)?;
                (*volume, None)
            }
            VolumeChange::Delete { volume, name, epoch } => {
                self.check_epoch_seen(*epoch)?;
                self.named_as_seen(*volume, name)?;
                self.volumes.remove(volume);
                self.limits.put(Some(*volume), Limit::NONE);
                (*volume, Some(Lba(0)))
            }
        };
        if discarded.is_some() {
            self.last_change = id.index;
        }
        self.remember(request);
        Ok(SetAnswer::VolumeChanged { volume, discarded })
    }

    /// SET-S18. A late copy of an earlier request changes nothing (VOLUME-V2).
    pub(super) fn set_limit(
        &mut self,
        volume: Option<VolumeId>,
        limit: Limit,
        request: RequestId,
    ) -> Result<SetAnswer, SetRefusal> {
        if self.space_requests.contains(&request) {
            return Ok(SetAnswer::LimitSet);
        }
        if let Some(volume) = volume.filter(|volume| !self.volumes.contains_key(volume)) {
            return Err(SetRefusal::NoSuchVolume { volume });
        }
        limit.check().map_err(|error| SetRefusal::BadLimit { error })?;
        self.limits.put(volume, limit);
        self.remember(request);
        Ok(SetAnswer::LimitSet)
    }

    /// The volume of this name.
    pub fn volume_named(&self, name: &Name) -> Option<(VolumeId, &Volume)> {
        self.volumes.iter().find(|(_, volume)| volume.name == *name).map(|(id, volume)| (*id, volume))
    }

    fn new_volume(&mut self, name: &Name, size: Sectors) -> Result<VolumeId, SetRefusal> {
        if let Some((volume, present)) = self.volume_named(name) {
            return Err(SetRefusal::NameTaken { volume, size: present.size });
        }
        check_size(size)?;
        let full = SetRefusal::TooManyVolumes { max: VOLUMES_PER_SET_MAX as u32 };
        let Some(next) = self.next_volume.checked_add(1).filter(|_| self.volumes.len() < VOLUMES_PER_SET_MAX) else {
            return Err(full);
        };
        let volume = VolumeId(self.next_volume);
        self.next_volume = next;
        self.volumes.insert(volume, Volume { name: name.clone(), size });
        Ok(volume)
    }

    fn grow_volume(&mut self, volume: VolumeId, size: Sectors) -> Result<(), SetRefusal> {
        let Some(present) = self.volumes.get_mut(&volume) else { return Err(SetRefusal::NoSuchVolume { volume }) };
        if size < present.size {
            return Err(SetRefusal::ShrinkRefused { found: size, current: present.size });
        }
        check_size(size)?;
        present.size = size;
        Ok(())
    }

    fn shrink_volume(&mut self, volume: VolumeId, from: Sectors, to: Sectors) -> Result<Lba, SetRefusal> {
        let Some(present) = self.volumes.get_mut(&volume) else { return Err(SetRefusal::NoSuchVolume { volume }) };
        if present.size != from {
            holdfast_reached::reached!("volumes: a shrink names a size that is no more");
            return Err(not_as_seen(volume, present));
        }
        if to > from {
            return Err(SetRefusal::GrowRefused { found: to, current: from });
        }
        check_size(to)?;
        present.size = to;
        Ok(Lba(to.0))
    }

    fn rename_volume(&mut self, volume: VolumeId, from: &Name, to: &Name) -> Result<(), SetRefusal> {
        self.named_as_seen(volume, from)?;
        if let Some((taken, other)) = self.volume_named(to).filter(|(taken, _)| *taken != volume) {
            return Err(SetRefusal::NameTaken { volume: taken, size: other.size });
        }
        if let Some(present) = self.volumes.get_mut(&volume) {
            present.name = to.clone();
        }
        Ok(())
    }

    fn named_as_seen(&self, volume: VolumeId, name: &Name) -> Result<(), SetRefusal> {
        let present = self.volumes.get(&volume).ok_or(SetRefusal::NoSuchVolume { volume })?;
        if present.name == *name { Ok(()) } else { Err(not_as_seen(volume, present)) }
    }

    fn check_epoch_seen(&self, seen: Epoch) -> Result<(), SetRefusal> {
        holdfast_reached::reached!("volumes: a destructive command names an earlier epoch", self.epoch != seen);
        if self.epoch == seen { Ok(()) } else { Err(SetRefusal::WrongEpoch { found: seen, current: Some(self.epoch) }) }
    }
}

fn check_size(size: Sectors) -> Result<(), SetRefusal> {
    if size.0 == 0 || size.0 > VOLUME_SECTORS_MAX {
        return Err(SetRefusal::SizeRefused { found: size, max: Sectors(VOLUME_SECTORS_MAX) });
    }
    Ok(())
}

fn not_as_seen(volume: VolumeId, present: &Volume) -> SetRefusal {
    SetRefusal::VolumeNotAsSeen { volume, name: present.name.clone(), size: present.size }
}

#[cfg(test)]
mod tests;
