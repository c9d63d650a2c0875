//! What of a gateway touches the machine, each in one place: a simulation puts its own there (ADR 0017). Everybody else takes the defaults.

use super::Node;
use crate::config::GatewayConfig;
use crate::store_options::open_store;
use holdfast_log::{Identity, LogConfig, NodeLog, OpenError, RecoveryReport, Sealing};
use holdfast_set::authority::Authority;
use holdfast_set::mapping::LEAF_BYTES;
use holdfast_store::{BoxFuture, CHECK_LIMIT, Health, ObjectStore, StoreError};
use holdfast_tls::Dialer;
use holdfast_volume::map::LeafShape;
use std::sync::Arc;
use std::time::Duration;

/// Opens a node's journal.
pub type OpenJournal =
    Arc<dyn Fn(LogConfig, Identity, Option<Sealing>) -> Result<(NodeLog, RecoveryReport), OpenError> + Send + Sync>;

/// A store, or why there is none, once it is known.
pub type Opening = BoxFuture<'static, Result<Arc<dyn ObjectStore>, StoreError>>;

/// Opens the store at a URL. What may block is done on threads where that is allowed.
pub type OpenStore = Arc<dyn Fn(&GatewayConfig, &str, Arc<Health>) -> Opening + Send + Sync>;

/// A copy of a disk that is older than this is found out at its start. Each renewal is a few hundred bytes on the disk, and an entry of group 0.
const RENEW: Duration = Duration::from_secs(60);

/// Disk, store, network, and the end of the process.
#[derive(Clone)]
pub struct Seams {
    /// The journal.
    pub journal: OpenJournal,
    /// A set's store.
    pub store: OpenStore,
    /// How long a store may take to be checked before a set is put there; `None`: it is not checked.
    pub check_limit: Option<Duration>,
    /// How other gateways are connected to; `None`: TCP, with this gateway's certificate where it has one.
    pub dialer: Option<Dialer>,
    /// Ends the process, for the reason given (R11).
    pub abort: fn(&str),
    /// How long a gateway runs under one life (C3).
    pub renew: Duration,
    /// The tenure under which this gateway serves, in a pair (ADR 0031).
    pub pair: Option<Arc<Authority>>,
    /// How large roots are divided; a setting may say which are large.
    pub leaves: LeafShape,
    /// What leaves of pages of one root may take in memory, in bytes.
    pub leaf_bytes: u64,
}

impl Node {
    /// The tenure under which this gateway serves, in a pair.
    pub fn pair(&self) -> Option<&Arc<Authority>> {
        self.seams.pair.as_ref()
    }

    /// How long a store may take to be checked before a set is put there; `None`: it is not checked.
    pub(crate) fn check_limit(&self) -> Option<Duration> {
        self.seams.check_limit
    }
}

impl Default for Seams {
    fn default() -> Self {
        Self {
            journal: Arc::new(NodeLog::open_sealed),
            store: Arc::new(open_store),
            check_limit: Some(CHECK_LIMIT),
            dialer: None,
            // The reason is in the log already.
            abort: |_| std::process::abort(),
            renew: RENEW,
            pair: None,
            leaves: LeafShape::DEFAULT,
            leaf_bytes: LEAF_BYTES,
        }
    }
}
