//! Changes of this gateway and of the cluster that must not overlap: each kind has a lock, and takes turns.

use std::sync::Arc;
use tokio::sync::Mutex;

#[derive(Default)]
pub(crate) struct Turns {
    /// Changes of the lives that the disk remembers.
    pub(super) identity: Mutex<()>,
    /// Adoptions.
    pub(super) adoption: Mutex<()>,
    /// Changes of the sets and of their keys: each proposal depends on what was read before it.
    pub(crate) sets: Arc<Mutex<()>>,
    /// Like `sets`, for members.
    pub(crate) members: Arc<Mutex<()>>,
    /// Writes of the node key's file.
    pub(crate) node_key: Mutex<()>,
}
