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
    /// The same over all connections, also of requests that hold no bytes (FLUSH, TRIM): more wait, none is refused. Never less than two for each
    /// connection that there may be.
    pub gateway_requests: usize,
    /// Bytes that one connection's requests and unsent replies hold at most.
    pub connection_bytes: u64,
    /// The same over all connections, with what is left of replies that nobody paid for ([`FrontLimits::unpaid_bytes`]).
    pub gateway_bytes: u64,
    /// From the connection's first byte to the answer that begins transmission.
    pub handshake_timeout: Duration,
    /// A peer that sends a payload, or takes its replies, at less than [`STALL_BYTES_MIN`] in this time is closed.
    pub stall_timeout: Duration,
    /// A read of what cannot be read anywhere is asked again after this pause, then after twice as long each time, up to half a minute.
    pub unreadable_pause: Duration,
}

const CONNECTIONS: usize = 1024;
const CONNECTION_REQUESTS: usize = 256;
/// What a request holds beside its bytes is small: its future, and what the device has of it. It adds up: without this bound there could be a quarter of
/// a million of them.
const GATEWAY_REQUESTS: usize = 32_768;
/// Requests that every connection may run without asking the others, at most: enough to be served while others wait for a store that is away.
const FLOOR_REQUESTS_MAX: usize = 16;

const _: () = {
    assert!(GATEWAY_REQUESTS < CONNECTIONS * CONNECTION_REQUESTS);
    // Half of it is for the floors, and every connection has a whole one.
    assert!(GATEWAY_REQUESTS / 2 == CONNECTIONS * FLOOR_REQUESTS_MAX);
    assert!(FLOOR_REQUESTS_MAX < CONNECTION_REQUESTS);
    // What is shared lets many connections at once run as much as each may.
    assert!(GATEWAY_REQUESTS / 2 >= 64 * CONNECTION_REQUESTS);
};

/// Bytes that one connection has to itself at most, however much there is for all.
const OWN_BYTES_MAX: u64 = 1 << 20;
/// Of those, one part in so many is for replies that nobody paid for.
const UNPAID_PART: u64 = 8;
/// And no more than this. Such a reply has 16 to 38 bytes: a client that reads never leaves so many unsent.
const UNPAID_BYTES_MAX: u64 = 32 << 10;

const _: () = assert!(UNPAID_BYTES_MAX < OWN_BYTES_MAX);

/// Progress that counts as such, in bytes per [`FrontLimits::stall_timeout`].
pub const STALL_BYTES_MIN: u64 = 1 << 20;

impl Default for FrontLimits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            handshakes: 128,
            connection_requests: CONNECTION_REQUESTS,
            gateway_requests: GATEWAY_REQUESTS,
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
    /// Bytes that every connection has to itself, of its half of them all.
    fn own_bytes(&self) -> u64 {
        (self.gateway_bytes / 2 / self.connections.max(1) as u64).min(OWN_BYTES_MAX)
    }

    /// Bytes of unsent replies that no request paid for, of one connection: where so many wait, it begins nothing more. Never none, for that would be for ever.
    pub fn unpaid_bytes(&self) -> u64 {
        (self.own_bytes() / UNPAID_PART).clamp(1, UNPAID_BYTES_MAX)
    }

    /// Bytes that every connection may hold without asking the others: what a flood elsewhere cannot take from it.
    pub fn floor_bytes(&self) -> u64 {
        self.own_bytes().saturating_sub(self.unpaid_bytes())
    }

    /// Bytes that all connections share beyond what each has to itself.
    pub fn shared_bytes(&self) -> u64 {
        self.gateway_bytes.saturating_sub(self.own_bytes().saturating_mul(self.connections as u64))
    }

    fn requests(&self) -> usize {
        self.gateway_requests.max(self.connections.saturating_mul(2))
    }

    /// Requests that every connection may run without asking the others: one at least.
    pub fn floor_requests(&self) -> usize {
        (self.requests() / 2 / self.connections.max(1)).min(FLOOR_REQUESTS_MAX)
    }

    /// Requests that all connections share beyond their floors.
    pub fn shared_requests(&self) -> usize {
        self.requests().saturating_sub(self.floor_requests().saturating_mul(self.connections))
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
        at_least("requests per gateway", self.gateway_requests as u64, 1)?;
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

    #[test]
    fn replies_that_nobody_paid_for_are_part_of_what_is_promised() {
        for (connections, gateway_bytes) in
            [(1, 64 << 20), (CONNECTIONS, 256 << 20), (CONNECTIONS, 512 << 20), (65_536, 65 << 20)]
        {
            let limits = FrontLimits { connections, gateway_bytes, ..FrontLimits::default() };
            let (floor, unpaid) = (limits.floor_bytes(), limits.unpaid_bytes());
            assert!((1..=UNPAID_BYTES_MAX).contains(&unpaid) && unpaid <= floor, "{unpaid} of {floor}");
            assert!((floor + unpaid) * connections as u64 + limits.shared_bytes() <= gateway_bytes);
        }
        assert_eq!(FrontLimits::default().unpaid_bytes(), 32 << 10);
        let crowded = FrontLimits { connections: 1 << 40, ..FrontLimits::default() };
        assert_eq!((crowded.floor_bytes(), crowded.unpaid_bytes()), (0, 1), "one reply at a time gets through");
    }

    #[test]
    fn every_connection_may_run_a_request_of_its_own() {
        let places = |connections, gateway_requests| {
            let limits = FrontLimits { connections, gateway_requests, ..FrontLimits::default() };
            assert_eq!(limits.validate(), Ok(()));
            (limits.floor_requests(), limits.shared_requests())
        };
        assert_eq!(places(CONNECTIONS, GATEWAY_REQUESTS), (16, 16_384));
        assert_eq!(places(1, GATEWAY_REQUESTS), (16, 32_752));
        assert_eq!(places(2, 4), (1, 2));
        assert_eq!(places(4, 4), (1, 4), "four are too few for four");
        assert_eq!(places(65_536, GATEWAY_REQUESTS), (1, 65_536));
    }
}
