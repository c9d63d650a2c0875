//! Changes of the lives on this gateway's disk (CLUSTER-C3) while the gateway runs.

use super::{Node, NodeError};
use crate::identity::{Identity, IdentityError};
use holdfast_raft::Lineage;
use holdfast_types::sync::LockExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

impl Node {
    /// How long it runs under one life.
    pub(crate) fn renewal_pace(&self) -> Duration {
        self.seams.renew
    }

    /// Changes the lives on the disk. They are on disk before it returns, and are sent to peers from then on.
    ///
    /// # Errors
    /// [`NodeError::Identity`]; nothing has changed then.
    pub(crate) async fn change_identity(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Identity, &Path) -> Result<Lineage, IdentityError> + Send + 'static,
    ) -> Result<Lineage, NodeError> {
        let _one = self.turns.identity.lock().await;
        let (mut next, dir) = (self.identity(), self.config.data_dir.clone());
        // A disk may be slow: readers of the identity do not wait for it.
        let changed =
            holdfast_log::spawn_blocking(move || change(&mut next, &dir).map(|lineage| (next, lineage))).await;
        let (next, lineage) = changed.map_err(|e| NodeError::Refused(format!("identity: {e}")))??;
        {
            let mut identity = self.identity.locked();
            *identity = identity.clone().with_lives_of(&next);
        }
        // Under the lock of this change, so that peers never get an older lineage after a newer one.
        if let Some(raft) = self.raft() {
            raft.set_lineage(lineage.clone());
        }
        Ok(lineage)
    }
}
