//! The holder of a pair's seat and the builds of its gateways, for people and tools.

use super::error::PairError;
use super::pair::Pair;
use holdfast_control::pair::{Roster, TenureId};
use holdfast_gateway::config::GatewayConfig;

/// The holder of a pair's seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seated {
    /// Name of the gateway. Empty, like the rest of its own data, if the key's text is malformed.
    pub gateway: String,
    /// Address of its admin API.
    pub api: String,
    /// Address where it serves NBD.
    pub nbd: String,
    /// Start of its tenure by its own wall clock, in Unix milliseconds.
    pub since_unix_ms: u64,
    /// Grows with each holder.
    pub revision: u64,
    /// The cluster of its sets.
    pub cluster: u128,
}

/// A pair, as stored in its etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatedPair {
    /// The seat's key.
    pub key: String,
    /// The holder.
    pub seated: Option<Seated>,
    /// The last known build of each gateway, and the level of what may be written into the stores.
    pub roster: Roster,
}

/// Reads from the etcd in `config`; writes nothing.
///
/// # Errors
/// [`PairError::Io`], [`PairError::Etcd`].
pub async fn seated(config: GatewayConfig) -> Result<SeatedPair, PairError> {
    let mut pair = Pair::new(config)?;
    let found = pair.seat.look().await?;
    let roster = pair.roster.read().await?;
    let key = pair.seat.key().to_string();
    let seated = found.map(|occupant| {
        let said = |of: fn(&holdfast_etcd::Holder) -> String| occupant.holder.as_ref().map(of).unwrap_or_default();
        Seated {
            gateway: said(|holder| holder.gateway.clone()),
            api: said(|holder| holder.api.clone()),
            nbd: said(|holder| holder.nbd.clone()),
            since_unix_ms: occupant.holder.as_ref().map_or(0, |holder| holder.since_unix_ms),
            revision: occupant.revision,
            cluster: TenureId::new(occupant.etcd, &key, occupant.revision).cluster(),
        }
    });
    Ok(SeatedPair { key, seated, roster })
}
