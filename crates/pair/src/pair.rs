//! This gateway as one of its pair: its settings, its way to the seat and to the roster, and how its tenures went.

use super::error::PairError;
use super::roster::Enrolment;
use holdfast_etcd::{Holder, Seat, Tenancy};
use holdfast_gateway::config::GatewayConfig;
use holdfast_gateway::config::live::Live;
use holdfast_host::unix_ms;
use holdfast_set::keyring::ClusterKeys;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Pair {
    pub(super) config: GatewayConfig,
    /// Settings that change while it runs; `None`: they stay.
    pub(super) live: Option<Live>,
    pub(super) seat: Seat,
    pub(super) roster: Enrolment,
    pub(super) holder: Holder,
    pub(super) ttl: Duration,
    /// The cluster keys, once they are open. Every tenure has them from here.
    pub(super) keys: Option<Arc<ClusterKeys>>,
    /// Our seat of an ended tenure, which may still be there.
    pub(super) left: Option<Tenancy>,
    /// Failed tenures in a row. Each one raises the sets' heads, which have a limited number of generations.
    pub(super) failures: u32,
}

impl Pair {
    pub(super) fn new(config: GatewayConfig) -> Result<Self, PairError> {
        let options = config.etcd.load().map_err(|(what, source)| PairError::Io { what, source })?.unwrap_or_default();
        let name = config.pair.name.clone().map(|name| name.to_string()).unwrap_or_default();
        let ttl = Duration::from_millis(u64::from(config.pair.ttl_ms));
        let seat = Seat::new(&options, &config.etcd.prefix, &name, ttl)?;
        let roster = Enrolment::new(&options, &name, &config)?;
        let (api, nbd) = (config.api_address(), config.nbd_address().unwrap_or_default());
        let holder = Holder::new(config.name.to_string(), api, nbd, 0);
        Ok(Self { config, live: None, seat, roster, holder, ttl, keys: None, left: None, failures: 0 })
    }

    /// What the seat's key is to say of this gateway from now on.
    pub(super) fn holder(&self) -> Holder {
        let mut holder = self.holder.clone();
        holder.since_unix_ms = unix_ms();
        holder
    }
}
