//! Who has a pair's seat, and which builds its gateways have, for people and tools.

use super::{Pair, PairError};
use holdfast_control::pair::{Roster, TenureId};
use holdfast_gateway::config::GatewayConfig;

/// Who has a pair's seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seated {
    /// Name of the gateway; empty, like the rest of what it says itself, where the key's text is not of this form.
    pub gateway: String,
    /// Its admin door.
    pub api: String,
    /// Where it serves NBD.
    pub nbd: String,
    /// Since when, by its wall clock, in Unix milliseconds.
    pub since_unix_ms: u64,
    /// Grows with each holder.
    pub revision: u64,
    /// The cluster that its sets live in.
    pub cluster: u128,
}

/// A pair, as its etcd has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatedPair {
    /// The seat's key.
    pub key: String,
    /// Who has it.
    pub seated: Option<Seated>,
    /// Which build each gateway has, as it said last, and what may be written into the stores.
    pub roster: Roster,
}

/// Asks the etcd that `config` names; says nothing to it.
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
