//! The controller: makes, grows, copies and deletes volumes. One instance serves a whole Kubernetes cluster.
//!
//! Each call may come again at any time, after any part of it was done: it looks first, and does what is missing. What
//! it makes is named by the name in the call ([`crate::names`]).

mod parameters;
mod snapshots;
#[cfg(test)]
mod tests;

use crate::capacity::{Range, signed};
use crate::cluster::Cluster;
use crate::locks::Locks;
use crate::names::{self, Prefix, SnapshotId, VOLUME, VolumeId};
use crate::refused::Refused;
use crate::v1::volume_content_source::Type as Source;
use crate::{capability, topology, v1};
use holdfast_api::v1 as api;
use holdfast_reached::reached;
use holdfast_types::Name;
use parameters::Parameters;
use std::sync::Arc;
use tonic::Code;

/// Most entries of one answer to a list.
const PAGE_MAX: usize = 256;

/// Begins the token of a list's next page.
const AFTER: &str = "after/";

/// The controller.
pub struct Controller {
    cluster: Arc<dyn Cluster>,
    prefix: Prefix,
    /// Of sets whose parameters name none.
    store: Option<String>,
    locks: Locks,
}

/// What a new volume is a copy of, as found in the cluster.
struct Origin {
    set: Name,
    /// Whose snapshot is copied; `None`: one is made for the copy.
    snapshot: Option<api::Snapshot>,
    volume: api::Volume,
}

fn volume_name() -> Result<Name, Refused> {
    Name::new(VOLUME).map_err(|error| Refused::failed(error.to_string()))
}

/// Whether the set is being deleted.
fn is_ending(status: &api::SetStatus) -> bool {
    status.deletion.as_ref().is_some_and(|deletion| deletion.stage != "emptied")
}

/// Whether the set is there.
fn is_there(status: &api::SetStatus) -> bool {
    status.deletion.is_none()
}

/// How much of a list is asked for.
fn page(max_entries: i32) -> Result<usize, Refused> {
    match usize::try_from(max_entries) {
        Ok(0) => Ok(PAGE_MAX),
        Ok(max) => Ok(max.min(PAGE_MAX)),
        Err(_) => Err(Refused::invalid(format!("max_entries: found {max_entries}, expected 0 or more"))),
    }
}

/// What a page comes after: everything up to this id was listed, whether it still exists or not.
fn after(token: &str) -> Result<Option<&str>, Refused> {
    match token.strip_prefix(AFTER) {
        None if token.is_empty() => Ok(None),
        Some(id) if !id.is_empty() => Ok(Some(id)),
        _ => Err(Refused::pending(format!(
            "starting_token: found {token:?}, expected a next_token of this driver: list again"
        ))),
    }
}

impl Controller {
    /// A controller of this cluster. `store` is for sets whose StorageClass names none.
    pub fn new(cluster: Arc<dyn Cluster>, prefix: Prefix, store: Option<String>) -> Self {
        Self { cluster, prefix, store, locks: Locks::default() }
    }

    /// A set that is there, and its volume.
    fn find(&self, id: &VolumeId) -> Result<(api::SetStatus, api::Volume), Refused> {
        let status = self.cluster.set(&id.set)?.filter(is_there).ok_or_else(|| names::no_volume(id))?;
        let volume = status.volumes.iter().find(|volume| volume.name == id.volume.as_str()).cloned();
        volume.map(|volume| (status, volume)).ok_or_else(|| names::no_volume(id))
    }

    /// CreateVolume.
    ///
    /// # Errors
    /// A field that cannot be used; a volume of that name with other properties; a refusal of the cluster.
    pub fn create_volume(&self, request: &v1::CreateVolumeRequest) -> Result<v1::Volume, Refused> {
        let set = self.prefix.named(&request.name)?;
        capability::check(&request.volume_capabilities)?;
        let range = Range::read(request.capacity_range.as_ref())?;
        let parameters = Parameters::read(&request.parameters, self.store.as_deref())?;
        let source = request.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
        let _held = self.locks.take(set.as_str())?;
        let found = self.cluster.set(&set)?;
        if found.as_ref().is_some_and(is_ending) {
            return Err(Refused::pending(format!(
                "a volume {set} of that name is being deleted: repeat this call later"
            )));
        }
        let volume = match (source, found.filter(is_there)) {
            (None, found) => self.made(&set, range, &parameters, request.accessibility_requirements.as_ref(), found)?,
            (Some(source), found) => self.copied(&set, range, source, found)?,
        };
        let id = VolumeId { set, volume: Name::new(volume.name).map_err(|error| Refused::failed(error.to_string()))? };
        Ok(v1::Volume {
            capacity_bytes: signed(volume.size_bytes),
            volume_id: id.to_string(),
            content_source: request.volume_content_source.clone(),
            // Every node can use it.
            accessible_topology: Vec::new(),
        })
    }

    /// A volume without a source.
    fn made(
        &self,
        set: &Name,
        range: Range,
        parameters: &Parameters,
        wished: Option<&v1::TopologyRequirement>,
        found: Option<api::SetStatus>,
    ) -> Result<api::Volume, Refused> {
        let bytes = range.size(0)?;
        let name = volume_name()?;
        if let Some(status) = &found {
            let copy = status.set.as_ref().map_or("", |summary| summary.clone_of.as_str());
            if !copy.is_empty() {
                return Err(Refused::exists(format!(
                    "volume {set} exists as a copy of {copy}, expected none of that name"
                )));
            }
            if let Some(volume) = status.volumes.iter().find(|volume| volume.name == name.as_str()) {
                return self.fitting(set, range, volume);
            }
            // An earlier call was interrupted between the set and its volume.
            reached!("csi: a set without its volume was completed");
        } else {
            let home = match &parameters.home {
                Some(home) => Some(home.clone()),
                None if wished.is_some() => topology::home(wished, &self.cluster.regions()?),
                None => None,
            };
            self.cluster.create_set(set, &parameters.store, parameters.policy(home))?;
        }
        self.cluster.create_volume(set, &name, bytes)?;
        Ok(api::Volume { id: 0, name: name.to_string(), size_bytes: bytes })
    }

    /// A volume that exists, if its size is what was asked for.
    fn fitting(&self, set: &Name, range: Range, volume: &api::Volume) -> Result<api::Volume, Refused> {
        if range.holds(volume.size_bytes) {
            return Ok(volume.clone());
        }
        let found = volume.size_bytes;
        Err(Refused::exists(format!("volume {set} exists with {found} bytes, which is not within capacity_range")))
    }

    /// A volume with the content of a snapshot or of another volume.
    fn copied(
        &self,
        set: &Name,
        range: Range,
        source: &Source,
        found: Option<api::SetStatus>,
    ) -> Result<api::Volume, Refused> {
        let status = match found {
            Some(status) => {
                let copy = status.set.as_ref().map_or("", |summary| summary.clone_of.as_str());
                if !is_copy(set, source, copy)? {
                    let copy = if copy.is_empty() { "nothing" } else { copy };
                    return Err(Refused::exists(format!(
                        "volume {set} exists as a copy of {copy}, expected another source"
                    )));
                }
                status
            }
            None => {
                let origin = self.origin(source)?;
                // Before anything is made.
                range.size(origin.volume.size_bytes)?;
                self.copy(set, &origin)?;
                self.cluster.set(set)?.filter(is_there).ok_or_else(|| {
                    Refused::pending(format!("the new volume {set} is not there yet: repeat this call"))
                })?
            }
        };
        if let Source::Volume(of) = source {
            self.tidy(set, of)?;
        }
        let wanted = self.copied_name(source)?;
        let volume = status.volumes.iter().find(|volume| volume.name == wanted).or(status.volumes.first());
        let volume = volume.ok_or_else(|| Refused::failed(format!("the copy {set} has no volume")))?;
        let bytes = range.size(volume.size_bytes)?;
        if bytes > volume.size_bytes {
            self.cluster.grow(set, volume, bytes)?;
        }
        Ok(api::Volume { size_bytes: bytes, ..volume.clone() })
    }

    /// The volume's name in a copy: that of its source.
    fn copied_name(&self, source: &Source) -> Result<String, Refused> {
        Ok(match source {
            Source::Volume(of) => VolumeId::of(&of.volume_id)?.volume.to_string(),
            Source::Snapshot(_) => VOLUME.to_string(),
        })
    }

    /// Finds what is copied.
    fn origin(&self, source: &Source) -> Result<Origin, Refused> {
        let of = match source {
            Source::Volume(of) => {
                let id = VolumeId::of(&of.volume_id)?;
                let (_, volume) = self.find(&id)?;
                return Ok(Origin { set: id.set, snapshot: None, volume });
            }
            Source::Snapshot(of) => of,
        };
        let none = || Refused::not_found(format!("there is no snapshot {}", of.snapshot_id));
        let id = SnapshotId::read(&of.snapshot_id)?.ok_or_else(none)?;
        let listed = self.cluster.snapshots(&id.set)?.ok_or_else(none)?;
        let snapshot = listed.into_iter().find(|found| found.name == id.snapshot.as_str()).ok_or_else(none)?;
        if snapshot.pending {
            return Err(Refused::new(Code::Unavailable, format!("snapshot {id} is not ready yet: repeat this call")));
        }
        if snapshot.volumes.len() > 1 {
            return Err(Refused::precondition(format!(
                "snapshot {id} has several volumes, expected one: its id does not say which; use `holdfast set clone`"
            )));
        }
        let volume = snapshot.volumes.first().cloned();
        let volume = volume.ok_or_else(|| Refused::precondition(format!("snapshot {id} has no volume")))?;
        Ok(Origin { set: id.set, snapshot: Some(snapshot), volume })
    }

    /// Makes the copy, by a snapshot of its own if a volume is the source.
    fn copy(&self, set: &Name, origin: &Origin) -> Result<(), Refused> {
        if let Some(snapshot) = &origin.snapshot {
            return self.cluster.clone_set(&origin.set, snapshot, set);
        }
        let name = Name::new(names::for_a_clone(set)).map_err(|error| Refused::failed(error.to_string()))?;
        let snapshot = self.cluster.create_snapshot(&origin.set, &name)?;
        self.cluster.clone_set(&origin.set, &snapshot, set)
    }

    /// Deletes the snapshot that a copy of a volume was made by: the copy keeps what it needs.
    fn tidy(&self, set: &Name, of: &v1::volume_content_source::VolumeSource) -> Result<(), Refused> {
        let id = VolumeId::of(&of.volume_id)?;
        let name = names::for_a_clone(set);
        let listed = self.cluster.snapshots(&id.set)?.unwrap_or_default();
        match listed.iter().find(|snapshot| snapshot.name == name) {
            Some(snapshot) => self.cluster.delete_snapshot(&id.set, snapshot),
            None => Ok(()),
        }
    }

    /// DeleteVolume. Refused while a node uses it, while it has snapshots, and while copies need it. ABORTED if all of
    /// these copies are being deleted: the same call works soon.
    ///
    /// # Errors
    /// As said, and refusals of the cluster.
    pub fn delete_volume(&self, id: &str) -> Result<(), Refused> {
        let Some(id) = VolumeId::read(id)? else { return Ok(()) };
        if !self.prefix.is_ours(id.set.as_str()) {
            reached!("csi: a set of a person was not deleted");
            return Err(Refused::precondition(format!(
                "{id} was not made by this driver (names of its sets begin with {}): delete it by `holdfast set delete`",
                self.prefix
            )));
        }
        let _held = self.locks.take(id.set.as_str())?;
        let Some(status) = self.cluster.set(&id.set)?.filter(is_there) else { return Ok(()) };
        if !status.volumes.is_empty() && status.volumes.iter().all(|volume| volume.name != id.volume.as_str()) {
            return Ok(());
        }
        if status.volumes.len() > 1 && status.set.as_ref().is_some_and(|summary| summary.clone_of.is_empty()) {
            return Err(Refused::precondition(format!(
                "{id} is not the only volume of its set, as the driver made it: use `holdfast set delete`"
            )));
        }
        // Left by copies that were given up.
        let listed = self.cluster.snapshots(&id.set)?.unwrap_or_default();
        for left in listed.iter().filter(|snapshot| names::is_for_a_clone(&snapshot.name)) {
            self.cluster.delete_snapshot(&id.set, left)?;
        }
        let deleted = self.cluster.delete_set(deletion(&id.set, &status));
        deleted.map_err(|refused| self.while_copies_go(&status.clones, refused))
    }

    /// The refusal of a deletion. For the gateways a copy that is being deleted needs its source until its objects are
    /// gone; callers delete both, one right after the other.
    fn while_copies_go(&self, copies: &[api::Clone], refused: Refused) -> Refused {
        let goes = |copy: &api::Clone| match Name::new(copy.name.clone()) {
            Ok(name) => self.cluster.set(&name).is_ok_and(|found| !found.as_ref().is_some_and(is_there)),
            // Without a name: the cluster has no set of that number any more.
            Err(_) => true,
        };
        let is_soon = refused.code == Code::FailedPrecondition && !copies.is_empty() && copies.iter().all(goes);
        if !is_soon {
            return refused;
        }
        reached!("csi: a volume was not deleted before its copies were gone");
        Refused::pending(refused.text)
    }

    /// ValidateVolumeCapabilities.
    ///
    /// # Errors
    /// A field is missing, or there is no such volume.
    pub fn validate(
        &self,
        request: &v1::ValidateVolumeCapabilitiesRequest,
    ) -> Result<v1::ValidateVolumeCapabilitiesResponse, Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Refused::invalid("volume_capabilities is missing"));
        }
        self.find(&id.ok_or_else(|| names::no_volume(&request.volume_id))?)?;
        Ok(match capability::check(&request.volume_capabilities) {
            Err(refused) => v1::ValidateVolumeCapabilitiesResponse { confirmed: None, message: refused.text },
            Ok(()) => v1::ValidateVolumeCapabilitiesResponse {
                confirmed: Some(v1::validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context.clone(),
                    volume_capabilities: request.volume_capabilities.clone(),
                    parameters: request.parameters.clone(),
                    mutable_parameters: request.mutable_parameters.clone(),
                }),
                message: String::new(),
            },
        })
    }

    /// ListVolumes: the driver's own.
    ///
    /// # Errors
    /// A token of another driver, or the cluster does not answer.
    pub fn list_volumes(&self, request: &v1::ListVolumesRequest) -> Result<v1::ListVolumesResponse, Refused> {
        let (max, after) = (page(request.max_entries)?, after(&request.starting_token)?);
        let mut response = v1::ListVolumesResponse::default();
        for set in self.sets()? {
            // A set is listed whole: the page ends between two sets.
            if after.is_some_and(|after| set.as_str() <= after) {
                continue;
            }
            if response.entries.len() >= max {
                let last = response.entries.last().and_then(|entry| entry.volume.as_ref());
                let last = last.and_then(|volume| volume.volume_id.split('/').next()).unwrap_or_default();
                response.next_token = format!("{AFTER}{last}");
                break;
            }
            // Deleted meanwhile, or not complete yet.
            let Some(status) = self.cluster.set(&set)?.filter(is_there) else { continue };
            response.entries.extend(status.volumes.iter().map(|volume| entry(&set, volume)));
        }
        Ok(response)
    }

    /// The names of the driver's sets, sorted.
    fn sets(&self) -> Result<Vec<Name>, Refused> {
        let sets = self.cluster.sets()?;
        let ours = sets.into_iter().filter(|set| self.prefix.is_ours(&set.name));
        let mut names: Vec<Name> = ours.filter_map(|set| Name::new(set.name).ok()).collect();
        names.sort();
        Ok(names)
    }

    /// ControllerExpandVolume.
    ///
    /// # Errors
    /// A field that cannot be used, no such volume, or a refusal of the cluster.
    pub fn expand(
        &self,
        request: &v1::ControllerExpandVolumeRequest,
    ) -> Result<v1::ControllerExpandVolumeResponse, Refused> {
        let id = VolumeId::read(&request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(Refused::invalid("capacity_range is missing"));
        }
        let range = Range::read(request.capacity_range.as_ref())?;
        let id = id.ok_or_else(|| names::no_volume(&request.volume_id))?;
        let _held = self.locks.take(id.set.as_str())?;
        let (_, volume) = self.find(&id)?;
        let bytes = range.size(volume.size_bytes)?;
        if bytes > volume.size_bytes {
            self.cluster.grow(&id.set, &volume, bytes)?;
        }
        Ok(v1::ControllerExpandVolumeResponse { capacity_bytes: signed(bytes), node_expansion_required: true })
    }
}

fn entry(set: &Name, volume: &api::Volume) -> v1::list_volumes_response::Entry {
    let volume = v1::Volume {
        capacity_bytes: signed(volume.size_bytes),
        volume_id: format!("{set}/{}", volume.name),
        ..Default::default()
    };
    v1::list_volumes_response::Entry { volume: Some(volume) }
}

/// Whether `copy`, which says what the set is a clone of, is what the call wants.
fn is_copy(set: &Name, source: &Source, copy: &str) -> Result<bool, Refused> {
    Ok(match source {
        Source::Snapshot(of) => copy == of.snapshot_id,
        Source::Volume(of) => {
            let id = VolumeId::of(&of.volume_id)?;
            copy == format!("{}@{}", id.set, names::for_a_clone(set))
        }
    })
}

/// The deletion of a set that nobody uses: with a lease, a client, a snapshot or a copy the gateways refuse it.
fn deletion(set: &Name, status: &api::SetStatus) -> api::DeleteSetRequest {
    api::DeleteSetRequest {
        set: set.to_string(),
        id: status.set.as_ref().map_or(0, |summary| summary.id),
        force: false,
        with_snapshots: false,
        ..Default::default()
    }
}
