//! Which volumes have connections here, and which are being changed.
//!
//! RESIZE-U1  A change that connections must not see is decided while there is no connection, and none is accepted
//!     until its outcome is known. So no client stays connected by a name that the volume has lost, by which it could
//!     not reconnect.

use super::{SetError, SetServer};
use holdfast_control::set::SetRefusal;
use holdfast_front::Slots;
use holdfast_types::sync::LockExt;
use holdfast_types::{Name, VolumeId};
use std::sync::Arc;

/// A connection to a volume; ends when dropped.
pub struct VolumeUse {
    server: Arc<SetServer>,
    volume: VolumeId,
}

impl Drop for VolumeUse {
    fn drop(&mut self) {
        self.server.uses.locked().end(self.volume);
    }
}

/// While this guard lives, no connection to the volume is accepted here.
pub struct VolumeHeld {
    server: Arc<SetServer>,
    volume: VolumeId,
}

impl VolumeHeld {
    /// Holds on after a command whose outcome is not known, until what this gateway has in its log is applied, or it
    /// leads no more. Whoever leads next has applied it before the set is served (R6).
    pub async fn settled(self) {
        let SetServer { group, host, .. } = &*self.server;
        let (Some(term), Some(last)) = (group.leading_term(), group.status().last) else { return };
        while group.leading_term() == Some(term) && group.applied().index < last {
            // At most one heartbeat: the notification may have come between check and wait.
            let heartbeat = self.server.timing().heartbeat();
            let _ = tokio::time::timeout(heartbeat, host.changed().notified()).await;
        }
    }
}

impl Drop for VolumeHeld {
    fn drop(&mut self) {
        self.server.uses.locked().changing.remove(&self.volume);
    }
}

/// Reason why a volume cannot be changed now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InUse {
    /// This many clients are connected.
    #[error("{0} clients are connected to it")]
    Connected(u32),
    /// The holder of the lease may return at any moment, and it knows the volume as it is.
    #[error("the set is held by {0}, which is not connected at the moment and may come back")]
    Held(String),
    /// Another call is changing it.
    #[error("it is being changed by another call")]
    Changing,
}

impl SetServer {
    /// Registers a connection to the volume of that name.
    ///
    /// # Errors
    /// The volume is being changed, or has lost that name meanwhile.
    pub fn use_volume(self: &Arc<Self>, volume: VolumeId, name: &Name) -> Result<VolumeUse, SetError> {
        let mut uses = self.uses.locked();
        if uses.changing.contains(&volume) {
            return Err(SetError::NotReady(format!("volume {name} is being changed")));
        }
        // Checked under the lock: a change that begins after this check finds the connection.
        let found = self.host.with(|m| m.state().volume_named(name).map(|(id, _)| id));
        if found != Some(volume) {
            return Err(SetError::Refused(SetRefusal::NoSuchVolume { volume }));
        }
        uses.begin(volume);
        Ok(VolumeUse { server: self.clone(), volume })
    }

    /// The connection slots of a volume that exists. Slots of deleted volumes are dropped.
    pub fn slots(&self, volume: VolumeId) -> Slots {
        let mut uses = self.uses.locked();
        self.host.with(|m| uses.slots.retain(|id, _| m.state().volumes.contains_key(id)));
        uses.slots.entry(volume).or_default().clone()
    }

    /// Number of clients connected to the volume here.
    pub fn volume_users(&self, volume: VolumeId) -> u32 {
        self.uses.locked().of(volume)
    }

    /// RESIZE-U1. With `anyway`, existing connections stay.
    ///
    /// # Errors
    /// The user of the volume.
    pub fn hold_volume(self: &Arc<Self>, volume: VolumeId, anyway: bool) -> Result<VolumeHeld, InUse> {
        let mut uses = self.uses.locked();
        let open = uses.of(volume);
        if open > 0 && !anyway {
            return Err(InUse::Connected(open));
        }
        let away = self.lease().filter(|lease| {
            let here = self.serving().filter(|s| s.epoch == lease.epoch).map_or(0, |s| s.connected());
            !lease.plain && here == 0
        });
        if let Some(lease) = away.filter(|_| !anyway) {
            return Err(InUse::Held(lease.owner.to_string()));
        }
        if !uses.changing.insert(volume) {
            return Err(InUse::Changing);
        }
        Ok(VolumeHeld { server: self.clone(), volume })
    }
}
