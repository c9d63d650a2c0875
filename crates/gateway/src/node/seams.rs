//! The parts of a gateway that touch the machine, each behind a seam: a simulation replaces them (ADR 0017). All others
//! use the defaults. Also the tasks that stand above the node.

use super::{Adopted, Node};
use crate::config::GatewayConfig;
use crate::config::live::Live;
use crate::store_options::open_store;
use holdfast_log::{Identity, LogConfig, NodeLog, OpenError, RecoveryReport, Sealing};
use holdfast_set::authority::Authority;
use holdfast_set::keyring::ClusterKeys;
use holdfast_set::mapping::LEAF_BYTES;
use holdfast_store::{BoxFuture, CHECK_LIMIT, Health, ObjectStore, StoreError};
use holdfast_tls::Dialer;
use holdfast_volume::map::LeafShape;
use std::sync::Arc;
use std::time::Duration;

/// Opens a node's journal.
pub type OpenJournal =
    Arc<dyn Fn(LogConfig, Identity, Option<Sealing>) -> Result<(NodeLog, RecoveryReport), OpenError> + Send + Sync>;

/// A store, or the error, once it is known.
pub type Opening = BoxFuture<'static, Result<Arc<dyn ObjectStore>, StoreError>>;

/// Opens the store at a URL. Blocking work runs on threads that may block.
pub type OpenStore = Arc<dyn Fn(&GatewayConfig, &str, Arc<Health>) -> Opening + Send + Sync>;

/// A copy of a disk that is older than this is detected at its start. Each renewal costs a few hundred bytes on the
/// disk and an entry of group 0.
const RENEW: Duration = Duration::from_secs(60);

/// Disk, store, network, and the end of the process.
#[derive(Clone)]
pub struct Seams {
    /// The journal.
    pub journal: OpenJournal,
    /// A set's store.
    pub store: OpenStore,
    /// How long the check of a store may take before a set is created there; `None`: no check.
    pub check_limit: Option<Duration>,
    /// Connects to other gateways; `None`: TCP, with this gateway's certificate if it has one.
    pub dialer: Option<Dialer>,
    /// Ends the process, for this reason (R11).
    pub abort: fn(&str),
    /// How long a gateway runs under one life (CLUSTER-C3).
    pub renew: Duration,
    /// The tenure under which this gateway serves, in a pair (ADR 0031).
    pub pair: Option<Arc<Authority>>,
    /// The cluster keys, if they were opened before; `None`: those of the settings.
    pub keys: Option<Arc<ClusterKeys>>,
    /// Settings that change while it runs; `None`: those that it is opened with, which stay.
    pub live: Option<Live>,
    /// How large roots are divided. A setting says which roots are large.
    pub leaves: LeafShape,
    /// Maximum memory, in bytes, for the leaves of one root's pages.
    pub leaf_bytes: u64,
    /// Starts the tasks of group 0's leader that use the admin API ([`crate::admin::start_tasks`]): it stands above the
    /// node. By default there are none; [`crate::run_life`] has them.
    pub tasks: fn(Arc<Node>, Adopted),
}

impl Node {
    /// The tenure under which this gateway serves, in a pair.
    pub fn pair(&self) -> Option<&Arc<Authority>> {
        self.seams.pair.as_ref()
    }

    /// How long the check of a store may take before a set is created there; `None`: no check.
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
            keys: None,
            live: None,
            leaves: LeafShape::DEFAULT,
            leaf_bytes: LEAF_BYTES,
            tasks: |_, _| {},
        }
    }
}
