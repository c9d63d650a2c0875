//! Calls about a set's lease.

use super::AdminDoor;
use super::member::invalid;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::set::{Lease, SetRefusal};
use holdfast_set::random::random_u128;
use holdfast_set::server::{SetError, SetServer};
use holdfast_types::{Epoch, Locality, Token};
use holdfast_volume::machine::{Cut, SetMachine};
use std::time::Duration;

/// Where the owner says that it stands.
fn place_from(text: &str) -> Result<Option<Locality>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse::<Locality>().map(Some).map_err(|error| invalid(error.to_string()))
}

fn volumes_of(machine: &SetMachine) -> Vec<v1::Volume> {
    let volumes = machine.state().volumes.iter().map(|(id, v)| v1::Volume {
        id: id.0,
        name: v.name.to_string(),
        size_bytes: v.size.to_bytes().unwrap_or(0),
    });
    volumes.collect()
}

/// Volumes and cuts, with the log position of both. They must be from the same moment. Otherwise a shrink that is in
/// only one of them would be held against a device that never had the removed range, or would be missed.
fn volumes_and_cuts(machine: &SetMachine) -> (Vec<v1::Volume>, Vec<v1::Cut>, u64) {
    let cut = |cut: &Cut| Some(v1::Cut { volume: cut.volume.0, at: cut.at.0, size_bytes: cut.size.to_bytes()? });
    (volumes_of(machine), machine.cuts().filter_map(cut).collect(), machine.place().0)
}

impl AdminDoor {
    /// A lease without its token.
    pub(super) fn lease_message(&self, set: &SetServer, lease: &Lease) -> v1::Lease {
        let gateway = self.node.cluster.member(lease.gateway);
        v1::Lease {
            set: set.name.to_string(),
            owner: lease.owner.to_string(),
            gateway: lease.gateway.0,
            gateway_name: gateway.as_ref().map(|m| m.name.to_string()).unwrap_or_default(),
            gateway_nbd: gateway.map(|m| m.nbd_addr).unwrap_or_default(),
            epoch: lease.epoch.0,
            ttl_ms: lease.ttl_ms,
            remaining_ms: u32::try_from(set.lease_left(lease).as_millis()).unwrap_or(u32::MAX),
            plain: lease.plain,
            since_unix_ms: lease.since_unix_ms,
            locality: set.place_of(lease).map(|at| at.to_string()).unwrap_or_default(),
        }
    }

    pub(super) fn volumes_message(set: &SetServer) -> Vec<v1::Volume> {
        set.host.with(volumes_of)
    }

    pub(super) fn grant_message(&self, set: &SetServer, lease: &Lease) -> v1::GrantReply {
        let (volumes, cuts, as_of) = set.host.with(volumes_and_cuts);
        let (lease, token) = (Some(self.lease_message(set, lease)), lease.token.to_text());
        v1::GrantReply { lease, token, volumes, cuts, as_of }
    }

    pub(super) fn ttl(&self, asked_ms: u32) -> Duration {
        let ms = if asked_ms == 0 { self.node.live().lease_ttl_ms } else { asked_ms };
        Duration::from_millis(u64::from(ms))
    }

    pub(super) async fn acquire_lease(&self, request: v1::AcquireLeaseRequest) -> Result<v1::GrantReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let owner = holdfast_api::owner(&request.owner)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let at = place_from(&request.locality)?;
        let ttl = self.ttl(request.ttl_ms);
        let token = Token(random_u128());
        let lease =
            set.acquire(owner, token, ttl, id, request.force, false).await.map_err(|e| self.of_set(&set, &e))?;
        set.owner_stands(lease.epoch, at);
        Ok(self.grant_message(&set, &lease))
    }

    pub(super) async fn continue_lease(&self, request: v1::ContinueLeaseRequest) -> Result<v1::GrantReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let owner = holdfast_api::owner(&request.owner)?;
        let token = holdfast_api::token(&request.token)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let at = place_from(&request.locality)?;
        let lease = set
            .continue_lease(owner, token, Token(random_u128()), id)
            .await
            .map_err(|e| self.of_continuation(&set, &e))?;
        set.owner_stands(lease.epoch, at);
        Ok(self.grant_message(&set, &lease))
    }

    /// PAIR-P5: a lease that this tenure of a pair does not know was granted in an earlier one.
    fn of_continuation(&self, set: &SetServer, error: &SetError) -> Refusal {
        let Some(pair) = self.node.pair() else { return self.of_set(set, error) };
        let of_before = matches!(
            error,
            SetError::Refused(SetRefusal::NotHeld { .. } | SetRefusal::StaleToken { .. } | SetRefusal::Held { .. })
        );
        if !of_before {
            return self.of_set(set, error);
        }
        let message = format!(
            "{error}. This is tenure {} of the gateway pair: an earlier lease was lost with its gateway, and so were writes that were not flushed. \
             Such a device cannot continue: detach it, attach it again, and let the file system recover as after a power cut",
            pair.id.revision
        );
        Refusal::new(self.of_set(set, error).code, message)
    }

    pub(super) async fn renew_lease(&self, request: v1::RenewLeaseRequest) -> Result<v1::RenewLeaseReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let token = holdfast_api::token(&request.token)?;
        let lease = set.lease().filter(|l| l.token == token && l.epoch == Epoch(request.epoch));
        if lease.is_none() {
            let message = "the token and epoch are not those of the current lease";
            return Err(Refusal::new(RefusalCode::StaleToken, message));
        }
        set.renew(Epoch(request.epoch)).await.map_err(|e| self.of_set(&set, &e))?;
        let lease = set.lease().map(|l| self.lease_message(&set, &l));
        let (volumes, cuts, as_of) = set.host.with(volumes_and_cuts);
        Ok(v1::RenewLeaseReply { lease, volumes, cuts, as_of })
    }

    pub(super) async fn release_lease(
        &self,
        request: v1::ReleaseLeaseRequest,
    ) -> Result<v1::ReleaseLeaseReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let token = holdfast_api::token(&request.token)?;
        match set.release(Epoch(request.epoch), Some(token)).await {
            Ok(()) => Ok(v1::ReleaseLeaseReply { released: true }),
            // Released already: by this request, whose answer was lost, or by an earlier one.
            Err(SetError::Refused(SetRefusal::NotHeld { .. })) => Ok(v1::ReleaseLeaseReply { released: false }),
            Err(SetError::Refused(SetRefusal::WrongEpoch { current: None, .. })) => {
                Ok(v1::ReleaseLeaseReply { released: false })
            }
            Err(e) => Err(self.of_set(&set, &e)),
        }
    }

    pub(super) async fn get_lease(&self, request: v1::GetLeaseRequest) -> Result<v1::GetLeaseReply, Refusal> {
        let set = self.led_set(&request.set)?;
        self.confirm(&set).await?;
        Ok(v1::GetLeaseReply { lease: set.lease().map(|l| self.lease_message(&set, &l)) })
    }

    /// Confirms with a quorum that this gateway still leads, so that it does not show an outdated state.
    pub(super) async fn confirm(&self, set: &SetServer) -> Result<(), Refusal> {
        set.confirm_leadership().await.map_err(|e| self.of_set(set, &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::set::{SetCommand, SetState, VolumeChange};
    use holdfast_types::{LogId, Name, RequestId, Sectors, VolumeId};
    use holdfast_volume::entry::encode_control;

    #[test]
    fn a_place_is_read_or_refused_with_the_reason() {
        assert_eq!(place_from("").unwrap(), None);
        assert_eq!(place_from("region=eu,zone=a").unwrap(), Some("region=eu,zone=a".parse().unwrap()));
        let refusal = place_from("zone=a").unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Invalid);
        assert!(refusal.message.contains("the region is missing"), "{refusal}");
    }

    /// A host that has a device of the volume relies on all three together.
    #[test]
    fn sizes_are_told_with_the_shrinks_before_them_and_with_their_place() {
        let base = Epoch(1000);
        let mut machine = SetMachine::new(SetState::new(base));
        let (volume, all, less) = (VolumeId(1), Sectors(64), Sectors(16));
        let changes = [
            VolumeChange::Create { name: Name::new("vol1").unwrap(), size: all },
            VolumeChange::Shrink { volume, from: all, to: less, epoch: base },
            VolumeChange::Grow { volume, size: all },
        ];
        for (index, change) in (1_u64..).zip(changes) {
            let command = SetCommand::ChangeVolume { change, request: RequestId(u128::from(index)) };
            machine.apply(LogId::new(1, index), &encode_control(&command).unwrap()).unwrap();
        }
        let (volumes, cuts, as_of) = volumes_and_cuts(&machine);
        assert_eq!(volumes, [v1::Volume { id: 1, name: "vol1".into(), size_bytes: 32 << 10 }]);
        assert_eq!(cuts, [v1::Cut { volume: 1, at: 1002, size_bytes: 8 << 10 }]);
        assert_eq!(as_of, 1003);
    }
}
