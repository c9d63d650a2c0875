//! Connections to the admin API of the other gateways, which are kept between calls, and how long an answer may take.
//!
//! A new connection costs several round trips, and one that is kept costs one. At 400 ms, a gateway that was asked for
//! its state over a new connection did not answer within 1.5 s, and counted as silent.

use holdfast_control::serve::RTT_MAX;
use holdfast_tls::Dialer;
use holdfast_types::sync::LockExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;
use tonic::transport::Channel;

/// How long an answer may take besides the round trips: another gateway may be busy, and tells of each of its groups.
const ANSWER_LIMIT: Duration = Duration::from_millis(1500);

/// So many round trips an answer may take: TCP, TLS, HTTP/2, the call, and two until the window is as large as the
/// state of a gateway with many sets.
const ROUND_TRIPS: u32 = 6;

/// Pause between two HTTP/2 pings during a call, and time for their answer. A call has a limit of its own.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// How long a gateway may take to answer, with so long a round trip to it.
pub(crate) fn answer_limit(trip: Duration) -> Duration {
    ANSWER_LIMIT + trip.min(RTT_MAX) * ROUND_TRIPS
}

/// Channels by address, HOST:PORT of the admin API. At most as many as members were asked since the last
/// [`Others::keep_only`].
#[derive(Default)]
pub(crate) struct Others(Mutex<BTreeMap<String, Channel>>);

impl Others {
    /// The channel to `address`. It connects when it is first used, and again when its connection has ended.
    ///
    /// # Errors
    /// An invalid address.
    pub(crate) fn channel(&self, dialer: &Dialer, address: &str) -> Result<Channel, String> {
        let mut kept = self.0.locked();
        if let Some(channel) = kept.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = dialer.endpoint(address)?;
        let endpoint = endpoint.connect_timeout(answer_limit(RTT_MAX)).tcp_nodelay(true);
        let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_INTERVAL);
        let channel = dialer.channel(&endpoint);
        kept.insert(address.to_string(), channel.clone());
        Ok(channel)
    }

    /// Ends a connection that may lead nowhere: the next call makes another one.
    pub(crate) fn forget(&self, address: &str) {
        self.0.locked().remove(address);
    }

    /// Ends the connections to all others than these: members that were removed, or that have moved.
    pub(crate) fn keep_only(&self, addresses: &BTreeSet<&str>) {
        self.0.locked().retain(|address, _| addresses.contains(address.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_tls::{Dial, Dialling};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tonic::transport::Endpoint;

    #[test]
    fn a_gateway_that_is_far_away_has_time_to_answer() {
        let ms = Duration::from_millis;
        assert_eq!(answer_limit(ms(0)), ms(1500));
        assert_eq!(answer_limit(ms(1)), ms(1506), "within a zone a silent one is waited for as before");
        assert!(answer_limit(ms(400)) >= ms(400) * 6 + ms(1500));
        assert_eq!(answer_limit(ms(90_000)), ms(7500), "a measure that cannot be a round trip");
    }

    #[tokio::test]
    async fn a_connection_is_made_once_until_it_is_forgotten() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let connect = move |endpoint: &Endpoint| {
            count.fetch_add(1, Ordering::Relaxed);
            endpoint.connect_lazy()
        };
        let nowhere: Dial = Arc::new(|_: &str| -> Dialling { Box::pin(std::future::pending()) });
        let dialer = Dialer::over(Arc::new(connect), nowhere);
        let others = Others::default();
        let ask = |address: &str| {
            others.channel(&dialer, address).expect("an address");
            made.load(Ordering::Relaxed)
        };
        assert_eq!((ask("a:1"), ask("a:1"), ask("b:1")), (1, 1, 2));
        others.forget("a:1");
        assert_eq!((ask("a:1"), ask("b:1")), (3, 3));
        others.keep_only(&BTreeSet::from(["a:1"]));
        assert_eq!((ask("a:1"), ask("b:1")), (3, 4), "b was removed, and is back");
        assert!(others.channel(&dialer, "no address").is_err());
    }
}
