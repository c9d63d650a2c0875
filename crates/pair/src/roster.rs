//! The pair's roster in the etcd. Each gateway writes its build there, and reads from it what may be written into the
//! pair's stores (PAIR-P6 of `holdfast_control::pair`).
//!
//! ```text
//!   a gateway starts ─▶ writes what its build knows, or is refused ─▶ reads the roster again ─▶ asks for the seat
//!   a gateway serves ─▶ reads every few seconds what both builds know ─▶ raises the level in the etcd
//! ```

use super::error::PairError;
use super::said::Said;
use holdfast_control::cluster::{FEATURE_LEVEL, FIRST_LEVEL};
use holdfast_control::pair::{NotEnrolled, Roster};
use holdfast_etcd::{EtcdError, EtcdOptions, RosterKey, RosterText};
use holdfast_gateway::config::GatewayConfig;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Pause between two reads of the roster.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Pause after a failed read.
const RETRY: Duration = Duration::from_secs(1);

/// This gateway's entry in the roster.
pub(super) struct Enrolment {
    key: RosterKey,
    gateway: String,
    /// The level in the roster, as last read.
    level: u32,
    /// The time of that read.
    looked: Option<Instant>,
}

fn read(text: &RosterText) -> Roster {
    Roster { level: text.level, gateways: text.gateways.clone() }
}

/// The roster with this gateway in it, at the resulting level.
fn enrolled(found: Option<&RosterText>, gateway: &str, knows: u32) -> Result<RosterText, NotEnrolled> {
    let next = found.map(read).unwrap_or_default().with(gateway, knows)?;
    Ok(RosterText::new(next.level, next.gateways))
}

impl Enrolment {
    pub(super) fn new(options: &EtcdOptions, pair: &str, config: &GatewayConfig) -> Result<Self, EtcdError> {
        let key = RosterKey::new(options, &config.etcd.prefix, pair)?;
        Ok(Self { key, gateway: config.name.to_string(), level: FIRST_LEVEL, looked: None })
    }

    /// The roster's content.
    pub(super) async fn read(&mut self) -> Result<Roster, EtcdError> {
        Ok(self.key.read().await?.as_ref().map(read).unwrap_or_default())
    }

    /// Whether the roster should be read again while another gateway has the seat.
    pub(super) fn is_due(&self) -> bool {
        self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY)
    }

    /// Writes this gateway's build into the roster, if it is not there yet.
    ///
    /// # Errors
    /// [`PairError::Etcd`]: the result is unknown. [`PairError::NotEnrolled`]: this gateway must not have the seat.
    pub(super) async fn enrol(&mut self) -> Result<(), PairError> {
        let gateway = self.gateway.as_str();
        let text = self.key.change(|found| enrolled(found, gateway, FEATURE_LEVEL)).await?;
        let text = text.map_err(|why| PairError::NotEnrolled { key: self.key.key().to_owned(), why })?;
        if self.level != text.level {
            tracing::info!(level = text.level, gateways = ?text.gateways, "the pair's feature level, as its roster says");
        }
        (self.level, self.looked) = (text.level, Some(Instant::now()));
        Ok(())
    }

    /// Keeps the level in the roster at what both builds support, until `ends` is cancelled.
    pub(super) async fn follow(&mut self, ends: &CancellationToken) {
        let mut said = Said::default();
        loop {
            let enrolled = tokio::select! {
                () = ends.cancelled() => return,
                enrolled = self.enrol() => enrolled,
            };
            let pause = match enrolled {
                Ok(()) => {
                    said = Said::default();
                    LOOK_EVERY
                }
                Err(error) => {
                    if said.is_news("roster") {
                        tracing::warn!(%error, "the pair's roster is not confirmed; the feature level stays as it was");
                    }
                    RETRY
                }
            };
            tokio::select! {
                () = ends.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The rule itself is tested in `control`. This test checks that the roster's text survives the way there and back.
    #[test]
    fn the_roster_is_read_and_written_as_the_rule_has_it() {
        let alone = enrolled(None, "a", 9).unwrap();
        assert_eq!(alone, RosterText::new(FIRST_LEVEL, BTreeMap::from([("a".into(), 9)])));
        let both = enrolled(Some(&alone), "b", 8).unwrap();
        assert_eq!(both, RosterText::new(8, BTreeMap::from([("a".into(), 9), ("b".into(), 8)])));
        assert_eq!(enrolled(Some(&both), "a", 9).unwrap(), both);
        let refused = enrolled(Some(&both), "b", 7).unwrap_err();
        let error = PairError::NotEnrolled { key: "/holdfast/pairs/db/roster".into(), why: refused };
        let said = error.to_string();
        assert!(said.contains("knows feature level 7, and the pair is at 8"), "{said}");
        assert!(said.contains("/holdfast/pairs/db/roster"), "{said}");
    }
}
