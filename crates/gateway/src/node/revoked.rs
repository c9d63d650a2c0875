//! The certificates that group 0 has revoked count no more at this gateway (ADR 0049).

use super::Node;
use holdfast_control::cluster::{Bearer, ClusterState, REVOKED_MAX, RevokedBy};
use holdfast_tls::{Identity, LIST_MAX, Revoked};
use std::sync::Arc;

// Processes that ask for the list take no longer one.
const _: () = assert!(REVOKED_MAX <= LIST_MAX);

/// What the doors check, and what processes that are no gateway ask for.
pub(crate) fn list(state: &ClusterState) -> Revoked {
    let mut list = Revoked::default();
    for what in state.revoked.keys() {
        match what {
            RevokedBy::Serial(serial) => list.serials.insert(serial.clone()),
            RevokedBy::Name(name) => list.names.insert(name.clone()),
        };
    }
    list
}

/// A certificate, as group 0 knows it.
pub(crate) fn bearer(one: Identity) -> Bearer {
    Bearer { name: one.name, serial: one.serial }
}

impl Node {
    /// Hands the list as applied here to the doors and to what dials.
    pub(super) fn follow_revoked(&self) {
        if let Some(tls) = &self.tls {
            tls.revocations().replace(self.cluster.read(list));
        }
    }

    /// This gateway's own certificate is on the list: no other gateway talks to it.
    pub(super) fn revoked_warning(&self) -> Option<String> {
        let shown = self.tls.as_ref()?.shown();
        let own = Bearer { name: shown.name, serial: shown.serial };
        self.cluster.read(|state| state.is_revoked(&own)).then(|| {
            format!(
                "the TLS certificate {} (serial number {}) is revoked: other gateways refuse this one until it has another",
                own.name, own.serial
            )
        })
    }
}

/// Follows the state, entry by entry.
pub(super) async fn run(node: Arc<Node>) {
    let mut changes = node.cluster.changes();
    let mut said = false;
    loop {
        changes.borrow_and_update();
        node.follow_revoked();
        let warning = node.revoked_warning();
        if let Some(why) = warning.as_ref().filter(|_| !said) {
            tracing::error!("{why}");
        }
        said = warning.is_some();
        tokio::select! {
            () = node.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}
