//! State that all handles of one node's journal share.

use crate::config::LogConfig;
use crate::memory::Group;
use crate::queue::Queue;
use holdfast_journal::{Catalog, CorruptRecord};
use holdfast_types::GroupId;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

pub(crate) struct Shared {
    pub queue: Arc<Queue>,
    pub catalog: Arc<Catalog>,
    pub tail_bytes: Arc<AtomicU64>,
    pub groups: Mutex<BTreeMap<GroupId, Arc<Group>>>,
    pub config: LogConfig,
    /// Whether files are begun sealed.
    pub seals: bool,
    /// R9: records of unknown groups were lost; a group that the journal does not know may be among them.
    pub lost: Option<CorruptRecord>,
    pub writer: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    /// Lets the writer finish its queue and end. Only `NodeLog::close` waits for that.
    fn drop(&mut self) {
        self.queue.close();
    }
}
