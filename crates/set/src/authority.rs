//! In a gateway pair: the tenure under which this gateway may answer, as everything that answers sees it (ADR 0031).
//!
//! Owns: whether an answer may leave now. Does not own: how a tenure is won and kept (crate `pair`).

use holdfast_control::pair::{Durability, Ended, Tenure, TenureId};
use holdfast_raft::boot_now;
use holdfast_types::MonoTime;
use holdfast_types::sync::LockExt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One tenure of this gateway, as everything that answers sees it.
#[derive(Debug)]
pub struct Authority {
    /// Its name.
    pub id: TenureId,
    /// What an answer says of the store (P4).
    pub durability: Durability,
    /// Where the pair's sets lie.
    stores: Vec<String>,
    tenure: Mutex<Tenure>,
}

impl Authority {
    /// Won by a lease that was asked for at `sent`.
    pub fn begin(id: TenureId, durability: Durability, stores: Vec<String>, sent: MonoTime, ttl: Duration) -> Self {
        let tenure = Mutex::new(Tenure::begin(sent, ttl));
        Self { id, durability, stores, tenure }
    }

    fn tenure(&self) -> MutexGuard<'_, Tenure> {
        self.tenure.locked()
    }

    /// Whether an answer may leave now (P1).
    ///
    /// # Errors
    /// Why not, for ever (P2).
    pub fn may_answer(&self) -> Result<(), Ended> {
        self.tenure().may_answer(boot_now())
    }

    /// Until when, if nothing else happens.
    pub fn until(&self) -> MonoTime {
        self.tenure().until()
    }

    /// A keep-alive that was sent at `sent` or later was answered.
    pub fn renewed(&self, sent: MonoTime, ttl: Duration) {
        self.tenure().renewed(boot_now(), sent, ttl);
    }

    /// It is over.
    pub fn end(&self, why: Ended) {
        self.tenure().end(why);
    }

    /// A set of the pair must lie where the other gateway looks for it.
    ///
    /// # Errors
    /// Where the pair's sets lie.
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
