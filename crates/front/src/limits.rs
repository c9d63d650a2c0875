//! Limits on the resources that clients can make the front hold, and its timeouts.

use holdfast_types::limits::REQUEST_BYTES_MAX;
use std::time::Duration;

/// Limits of one front. `Default` is what a gateway uses without configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontLimits {
    /// Maximum number of connections in transmission.
    pub connections: usize,
    /// Maximum number of connections in the handshake. One more, and one of them is closed: a client that makes no
    /// progress cannot keep others out (FRONT-H1). Each takes a buffer of 32 KiB.
    pub handshakes: usize,
    /// Maximum number of concurrent requests of one connection.
    pub connection_requests: usize,
    /// Like `connection_requests`, over all connections, including requests that hold no bytes (FLUSH, TRIM). Further
    /// requests wait; none is refused. Never less than two for each possible connection.
    pub gateway_requests: usize,
    /// Maximum bytes of one connection's requests and unsent replies.
    pub connection_bytes: u64,
    /// Like `connection_bytes`, over all connections. Includes the rest of unpaid replies
    /// ([`FrontLimits::unpaid_bytes`]).
    pub gateway_bytes: u64,
    /// Maximum time for one option of a handshake, from the option before it to its answer. The first begins with the
    /// connection. Where a certificate is needed, all options up to it have this time together.
    pub handshake_timeout: Duration,
    /// Maximum time of a whole handshake: [`Self::handshake_timeout`], and this for each option.
    pub handshake_option: Duration,
    /// And no more than this. A client that lists all exports asks about each of them.
    pub handshake_total: Duration,
    /// A peer that sends a payload, or takes its replies, at less than [`STALL_BYTES_MIN`] in this time is closed.
    pub stall_timeout: Duration,
    /// Pause before the retry of a read that no gateway can serve; it doubles each time, up to half a minute.
    pub unreadable_pause: Duration,
}

const CONNECTIONS: usize = 1024;
/// With a tenth of a second of way, TLS takes four tenths: some thousand strangers a second leave time for that.
pub const HANDSHAKES: usize = 512;
const CONNECTION_REQUESTS: usize = 256;
/// Beside its bytes, a request needs little memory: its future, and the device's state. But it adds up: without this
/// limit there could be a quarter of a million requests.
const GATEWAY_REQUESTS: usize = 32_768;
/// Maximum guaranteed share of one connection, in requests: enough to be served while others wait for a store that is
/// away.
const FLOOR_REQUESTS_MAX: usize = 16;

const _: () = {
    assert!(GATEWAY_REQUESTS < CONNECTIONS * CONNECTION_REQUESTS);
    // Half of it is for the guaranteed shares, and every connection has a full one.
    assert!(GATEWAY_REQUESTS / 2 == CONNECTIONS * FLOOR_REQUESTS_MAX);
    assert!(FLOOR_REQUESTS_MAX < CONNECTION_REQUESTS);
    // The shared half lets many connections at once run as much as each may.
    assert!(GATEWAY_REQUESTS / 2 >= 64 * CONNECTION_REQUESTS);
};

/// Maximum guaranteed share of one connection, in bytes.
const OWN_BYTES_MAX: u64 = 1 << 20;
/// One part in this many of the share is for unpaid replies.
const UNPAID_PART: u64 = 8;
/// And no more than this. An unpaid reply has 16 to 38 bytes: a client that reads never leaves so many unsent.
const UNPAID_BYTES_MAX: u64 = 32 << 10;

const _: () = assert!(UNPAID_BYTES_MAX < OWN_BYTES_MAX);

/// Minimum progress, in bytes per [`FrontLimits::stall_timeout`].
pub const STALL_BYTES_MIN: u64 = 1 << 20;

/// More than an option takes on a slow line. A client that sends one now and then keeps no place by it.
const HANDSHAKE_OPTION: Duration = Duration::from_secs(2);

/// Two options for each of 1024 exports, at a quarter of a second each.
const HANDSHAKE_TOTAL: Duration = Duration::from_secs(600);

impl Default for FrontLimits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS,
            handshakes: HANDSHAKES,
            connection_requests: CONNECTION_REQUESTS,
            gateway_requests: GATEWAY_REQUESTS,
            connection_bytes: 64 << 20,
            gateway_bytes: 512 << 20,
            handshake_timeout: Duration::from_secs(10),
            handshake_option: HANDSHAKE_OPTION,
            handshake_total: HANDSHAKE_TOTAL,
            stall_timeout: Duration::from_secs(30),
            unreadable_pause: Duration::from_secs(1),
        }
    }
}

/// Contradictory limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: found {found}, expected at least {expected}")]
pub struct LimitsError {
    what: &'static str,
    found: u64,
    expected: u64,
}

impl FrontLimits {
    /// Every connection's guaranteed bytes, from the half of all bytes that is for guaranteed shares.
    fn own_bytes(&self) -> u64 {
        (self.gateway_bytes / 2 / self.connections.max(1) as u64).min(OWN_BYTES_MAX)
    }

    /// Maximum bytes of unsent replies of one connection that no request paid for. At this limit the connection begins
    /// nothing more. Never 0: the connection would wait for ever.
    pub fn unpaid_bytes(&self) -> u64 {
        (self.own_bytes() / UNPAID_PART).clamp(1, UNPAID_BYTES_MAX)
    }

    /// Bytes that every connection may hold whatever the others do (its floor): a flood elsewhere cannot take them
    /// away.
    pub fn floor_bytes(&self) -> u64 {
        self.own_bytes().saturating_sub(self.unpaid_bytes())
    }

    /// Bytes that all connections share beyond their floors.
    pub fn shared_bytes(&self) -> u64 {
        self.gateway_bytes.saturating_sub(self.own_bytes().saturating_mul(self.connections as u64))
    }

    fn requests(&self) -> usize {
        self.gateway_requests.max(self.connections.saturating_mul(2))
    }

    /// Requests that every connection may run whatever the others do: at least one.
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
    /// The first limit that would block even a single request of the largest size.
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

/// Extra room after a payload in its own buffer, for the next request's header. So requests of equal size fit the same
/// buffer again.
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
        assert_eq!((crowded.floor_bytes(), crowded.unpaid_bytes()), (0, 1), "one reply at a time passes");
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
        assert_eq!(places(4, 4), (1, 4), "four are too few for four connections");
        assert_eq!(places(65_536, GATEWAY_REQUESTS), (1, 65_536));
    }
}
