//! Bounds on what clients can make the front hold, and the patience it has with them.

use holdfast_types::limits::REQUEST_BYTES_MAX;
use std::time::Duration;

/// Bounds of one front. `Default` is what a gateway uses where nothing else is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontLimits {
    /// Connections in transmission at most.
    pub connections: usize,
    /// Connections that are still shaking hands at most. One more, and the oldest of them is closed: who does not get on with it
    /// cannot keep others out.
    pub handshakes: usize,
    /// Requests of one connection that run at the same time at most.
    pub connection_requests: usize,
    /// Bytes that one connection's requests and unsent replies hold at most.
    pub connection_bytes: u64,
    /// The same over all connections.
    pub gateway_bytes: u64,
    /// From the connection's first byte to the answer that begins transmission.
    pub handshake_timeout: Duration,
    /// A peer that sends a payload, or takes its replies, at less than [`STALL_BYTES_MIN`] in this time is closed.
    pub stall_timeout: Duration,
    /// A read of what cannot be read anywhere is asked again after this pause, then after twice as long each time, up to half a minute.
    pub unreadable_pause: Duration,
}

/// Progress that counts as such, in bytes per [`FrontLimits::stall_timeout`].
pub const STALL_BYTES_MIN: u64 = 1 << 20;

impl Default for FrontLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshakes: 128,
            connection_requests: 256,
            connection_bytes: 64 << 20,
            gateway_bytes: 512 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            unreadable_pause: Duration::from_secs(1),
        }
    }
}

/// Limits that contradict one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: found {found}, expected at least {expected}")]
pub struct LimitsError {
    what: &'static str,
    found: u64,
    expected: u64,
}

impl FrontLimits {
    /// Bytes that every connection may hold without asking the others: what a flood elsewhere cannot take from it.
    pub fn floor_bytes(&self) -> u64 {
        (self.gateway_bytes / 2 / self.connections.max(1) as u64).min(1 << 20)
    }

    /// Bytes that all connections share beyond their floors.
    pub fn shared_bytes(&self) -> u64 {
        self.gateway_bytes.saturating_sub(self.floor_bytes().saturating_mul(self.connections as u64))
    }

    /// Checks the relations between the fields.
    ///
    /// # Errors
    /// The first bound that could not let a single largest request through.
    pub fn validate(&self) -> Result<(), LimitsError> {
        let request = u64::from(REQUEST_BYTES_MAX) + u64::from(INPUT_SLACK_BYTES);
        let at_least = |what, found: u64, expected: u64| {
            if found >= expected { Ok(()) } else { Err(LimitsError { what, found, expected }) }
        };
        at_least("connections", self.connections as u64, 1)?;
        at_least("handshakes", self.handshakes as u64, 1)?;
        at_least("requests per connection", self.connection_requests as u64, 1)?;
        at_least("bytes per connection", self.connection_bytes, request)?;
        at_least("bytes per gateway", self.gateway_bytes, 2 * request)
    }
}

/// Room beside a payload in a buffer of its own: the next request's header, so that equal requests fit the same buffer again.
pub(super) const INPUT_SLACK_BYTES: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_and_leave_room_to_share() {
        let limits = FrontLimits::default();
        assert_eq!(limits.validate(), Ok(()));
        assert!(limits.shared_bytes() >= u64::from(REQUEST_BYTES_MAX) + u64::from(INPUT_SLACK_BYTES));
        let narrow = FrontLimits { gateway_bytes: 65 << 20, connections: 65536, ..limits.clone() };
        assert_eq!(narrow.validate(), Ok(()));
        assert!(narrow.shared_bytes() >= 32 << 20);
        assert!(FrontLimits { connection_bytes: 32 << 20, ..limits.clone() }.validate().is_err());
        assert!(FrontLimits { gateway_bytes: 64 << 20, ..limits }.validate().is_err());
    }
}
