//! Channels and connections to the other gateways, and the metadata of every call.

use crate::beats::Beats;
use crate::config::{RaftTiming, TypeConfig};
use crate::dials::Dials;
use crate::lives::{Lineage, Lives};
use crate::promise::Promises;
use crate::protocol::Protocol;
use crate::round_trips::RoundTrips;
use crate::snapshot_pieces::{Way, ping_time};
use crate::wire::{META_CLUSTER, META_FROM, META_GROUP, META_TO};
use holdfast_tls::{Connection, Dialer};
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, MemberId};
use openraft::errors::Unreachable;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::Request;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;

/// HTTP/2 windows: a snapshot must not wait for a window update at each 64 KiB.
const WINDOW_BYTES: u32 = 4 << 20;

/// Channels to all peers, shared by all groups. Two each, so that heartbeats and votes do not queue behind snapshots.
/// Append streams have connections of their own, one for each group and peer.
pub(crate) struct Channels {
    cluster: String,
    me: MemberId,
    timing: RaftTiming,
    dialer: Dialer,
    open: Mutex<BTreeMap<(MemberId, bool), (String, Channel)>>,
    /// Addresses that are newer than those in membership entries: a gateway may move.
    addresses: Mutex<BTreeMap<MemberId, String>>,
    /// Connections for append streams that are being made.
    dials: Mutex<BTreeMap<MemberId, Arc<Dials>>>,
    /// State snapshots that are on their way.
    ways: Mutex<BTreeMap<MemberId, Arc<Way>>>,
    /// The accepted lives of members (CLUSTER-C3).
    pub(crate) lives: Lives,
    /// Read leases that members promise (R3).
    pub(crate) promises: Promises,
    /// Measured on heartbeats.
    pub(crate) trips: RoundTrips,
    /// Heartbeats that travel together.
    pub(crate) beats: Arc<Beats>,
}

impl Channels {
    pub(crate) fn new(
        cluster: u128,
        me: MemberId,
        timing: RaftTiming,
        dialer: Dialer,
        own: Lineage,
        protocol: Protocol,
    ) -> Self {
        let (lives, promises) = (Lives::new(own, protocol), Promises::new(timing.read_lease));
        let (open, addresses, dials) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (cluster, ways) = (format!("{cluster:032x}"), Mutex::default());
        let (trips, beats) = (RoundTrips::default(), Arc::default());
        Self { cluster, me, timing, dialer, open, addresses, dials, ways, lives, promises, trips, beats }
    }

    /// The cluster's id as in the metadata of calls.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Adds this process's life and its promise.
    pub(crate) fn stamp(&self, meta: &mut MetadataMap) {
        self.lives.stamp(meta);
        self.promises.stamp(meta);
    }

    /// `message` with the metadata that every call between gateways carries.
    pub(crate) fn request<T>(&self, message: T, group: GroupId, to: MemberId) -> Request<T> {
        let mut request = Request::new(message);
        let meta = request.metadata_mut();
        meta.insert(META_GROUP, MetadataValue::from(group.0));
        meta.insert(META_FROM, MetadataValue::from(self.me.0));
        meta.insert(META_TO, MetadataValue::from(to.0));
        if let Ok(cluster) = MetadataValue::try_from(&self.cluster) {
            meta.insert(META_CLUSTER, cluster);
        }
        self.stamp(meta);
        request
    }

    pub(crate) fn set_address(&self, member: MemberId, addr: String) {
        self.addresses.locked().insert(member, addr);
    }

    /// The newest address of `member` that is known here.
    pub(crate) fn address(&self, member: MemberId, fallback: &str) -> String {
        self.addresses.locked().get(&member).cloned().unwrap_or_else(|| fallback.to_string())
    }

    /// The way of state snapshots to `member`.
    pub(crate) fn way(&self, member: MemberId) -> Arc<Way> {
        self.ways.locked().entry(member).or_default().clone()
    }

    /// A connection to `member` for append streams. Waits as long as those before it take: the caller limits the time.
    pub(crate) async fn dial(&self, member: MemberId, addr: &str) -> Result<Connection, Unreachable<TypeConfig>> {
        let dials = self.dials.locked().entry(member).or_default().clone();
        let dialled = dials.dial(&self.dialer, addr, self.timing.election_min).await;
        dialled.map_err(|e| Unreachable::from_string(format!("member {member} at {addr}: {e}")))
    }

    /// A lazily connecting channel to `member`.
    pub(crate) fn get(&self, member: MemberId, fallback: &str, bulk: bool) -> Result<Channel, Unreachable<TypeConfig>> {
        let addr = self.address(member, fallback);
        let mut open = self.open.locked();
        if let Some((known, channel)) = open.get(&(member, bulk))
            && *known == addr
        {
            return Ok(channel.clone());
        }
        let patience = ping_time(self.timing.election_max, if bulk { WINDOW_BYTES } else { 0 });
        let endpoint = self
            .dialer
            .endpoint(&addr)
            .map_err(|e| Unreachable::from_string(format!("member {member}: {e}")))?
            .connect_timeout(self.timing.election_min)
            .tcp_nodelay(true)
            // HTTP/2 pings and the kernel's probes detect a silent peer.
            .http2_keep_alive_interval(self.timing.election_max)
            .keep_alive_timeout(patience)
            .keep_alive_while_idle(true)
            .tcp_keepalive(Some(Duration::from_secs(10)))
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        let channel = self.dialer.channel(&endpoint);
        open.insert((member, bulk), (addr, channel.clone()));
        Ok(channel)
    }
}
