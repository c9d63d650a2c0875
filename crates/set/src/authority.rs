//! In a gateway pair: the tenure under which this gateway may answer (ADR 0031).
//!
//! Owns: whether an answer may leave now. Does not own: how a tenure is won and kept (crate `pair`).

use holdfast_control::pair::{Durability, Ended, Tenure, TenureId};
use holdfast_raft::boot_reading;
use holdfast_types::MonoTime;
use holdfast_types::sync::LockExt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One tenure of this gateway, as checked before every answer.
#[derive(Debug)]
pub struct Authority {
    /// Its id.
    pub id: TenureId,
    /// What an answer guarantees about the store (PAIR-P4).
    pub durability: Durability,
    /// The stores of the pair's sets.
    stores: Vec<String>,
    tenure: Mutex<Tenure>,
}

impl Authority {
    /// Begins a tenure won by a lease request sent at `sent`.
    pub fn begin(id: TenureId, durability: Durability, stores: Vec<String>, sent: MonoTime, ttl: Duration) -> Self {
        let tenure = Mutex::new(Tenure::begin(sent, ttl));
        Self { id, durability, stores, tenure }
    }

    fn tenure(&self) -> MutexGuard<'_, Tenure> {
        self.tenure.locked()
    }

    /// Whether an answer may leave now (PAIR-P1).
    ///
    /// # Errors
    /// The reason why never again (PAIR-P2).
    pub fn may_answer(&self) -> Result<(), Ended> {
        self.tenure().may_answer(boot_reading())
    }

    /// The end of the tenure, if it is not renewed.
    pub fn until(&self) -> MonoTime {
        self.tenure().until()
    }

    /// Reports the answer to a keep-alive that was sent at `sent`.
    pub fn renewed(&self, sent: MonoTime, ttl: Duration) {
        self.tenure().renewed(boot_reading(), sent, ttl);
    }

    /// Ends the tenure.
    pub fn end(&self, why: Ended) {
        self.tenure().end(why);
    }

    /// Checks that a set of the pair is in a store where the other gateway looks for it.
    ///
    /// # Errors
    /// The stores of the pair's sets.
    pub fn check_store(&self, url: &str) -> Result<(), String> {
        if self.stores.iter().any(|known| known == url) {
            return Ok(());
        }
        Err(format!(
            "store: found {url}, expected one of pair.stores ({}): a set elsewhere would not be found by the other gateway of the pair",
            self.stores.join(", ")
        ))
    }
}
