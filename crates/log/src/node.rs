//! The node's journal as a whole: opening, closing, usage.

use crate::beside::Beside;
use crate::config::{Identity, LogConfig, OpenError};
use crate::disk::RealDisk;
use crate::group::GroupLog;
use crate::memory::{Group, Memory};
use crate::queue::Queue;
use crate::shared::Shared;
use crate::uring::Ring;
use crate::writer::{Turns, Writer};
use holdfast_journal::{Disk, Journal, Params, RecoveryReport, Sealing};
use holdfast_types::GroupId;
use holdfast_types::sync::LockExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::Handle;

/// How full the journal is, and whether it still works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Bytes of the files in use, and of the records that wait to be written.
    pub used_bytes: u64,
    /// Maximum space.
    pub bound_bytes: u64,
    /// Part of it that client data must leave free.
    pub reserve_bytes: u64,
    /// Payload bytes in memory, over all groups.
    pub tail_bytes: u64,
    /// Set permanently by the first failed write, sync or creation of a file (LOG-L2).
    pub failed: Option<String>,
    /// What a further file waits for (room, a file descriptor), with the error; retried until it works. A journal
    /// that has failed waits for nothing.
    pub stalled: Option<String>,
    /// R9: the reason why old files are not freed, if a bad record was found while running. The next start names its
    /// group.
    pub blocked: Option<String>,
}

/// Handle of the node's journal: cheap to clone, used from any thread.
#[derive(Clone)]
pub struct NodeLog {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for NodeLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLog").field("dir", &self.shared.config.dir).field("usage", &self.usage()).finish()
    }
}

impl NodeLog {
    /// Opens or creates the journal in `config.dir`, for a node whose disk uuid is not checked.
    ///
    /// # Errors
    /// See [`OpenError`]. Bad records are no error here: see the report and [`crate::GroupLogState::damaged`].
    pub fn open(config: LogConfig) -> Result<(NodeLog, RecoveryReport), OpenError> {
        Self::open_as(config, Identity::default())
    }

    /// Opens or creates the journal in `config.dir` for the node `identity`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_as(config: LogConfig, identity: Identity) -> Result<(NodeLog, RecoveryReport), OpenError> {
        Self::open_sealed(config, identity, None)
    }

    /// Like `open_as`, with a node key, under which payloads are sealed on disk (R10).
    ///
    /// # Errors
    /// See [`OpenError`]; also if a file was sealed under another key.
    pub fn open_sealed(
        config: LogConfig,
        identity: Identity,
        sealing: Option<Sealing>,
    ) -> Result<(NodeLog, RecoveryReport), OpenError> {
        config.validate()?;
        let mut disk = RealDisk::open(&config.dir, config.file_bytes, config.ready_files_max())?;
        // Without a runtime there is no task that could write.
        let Ok(runtime) = Handle::try_current() else { return Self::open_sealed_on(disk, config, identity, sealing) };
        match disk.use_ring(config.io) {
            Some(ring) => Self::open_beside(disk, &ring, &runtime, config, identity, sealing),
            None => Self::open_sealed_on(disk, config, identity, sealing),
        }
    }

    /// With a task on `runtime` that writes by the disk's `ring`, and the thread beside it.
    fn open_beside(
        disk: RealDisk,
        ring: &Arc<Ring>,
        runtime: &Handle,
        config: LogConfig,
        identity: Identity,
        sealing: Option<Sealing>,
    ) -> Result<(NodeLog, RecoveryReport), OpenError> {
        let (log, writer, report) = Self::prepare(disk, config, identity, sealing)?;
        let beside = Arc::new(Beside::new(writer, log.shared.queue.clone()));
        let stands_by = beside.clone();
        log.start_thread(move || stands_by.stand_by())?;
        runtime.spawn(beside.drive(ring.clone()));
        Ok((log, report))
    }

    fn start_thread(&self, life: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let thread = std::thread::Builder::new().name("holdfast-journal".to_string()).spawn(life);
        let thread = thread.map_err(|source| OpenError::Io { dir: self.shared.config.dir.clone(), source })?;
        *self.shared.writer.locked() = Some(thread);
        Ok(())
    }

    /// Like `open_sealed`, on any disk; `config.dir` is not used, and sizes are not checked. For tests on a simulated
    /// disk.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_on<D>(disk: D, config: LogConfig, identity: Identity) -> Result<(NodeLog, RecoveryReport), OpenError>
    where
        D: Disk + Send + 'static,
    {
        Self::open_sealed_on(disk, config, identity, None)
    }

    /// [`NodeLog::open_sealed`] on any disk.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_sealed_on<D>(
        disk: D,
        config: LogConfig,
        identity: Identity,
        sealing: Option<Sealing>,
    ) -> Result<(NodeLog, RecoveryReport), OpenError>
    where
        D: Disk + Send + 'static,
    {
        let (log, mut writer, report) = Self::prepare(disk, config, identity, sealing)?;
        log.start_thread(move || writer.run())?;
        Ok((log, report))
    }

    /// Like `open_sealed_on`, without a thread: only [`Turns::turn`] writes. For a simulation.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_in_turns<D>(
        disk: D,
        config: LogConfig,
        identity: Identity,
        sealing: Option<Sealing>,
    ) -> Result<(NodeLog, RecoveryReport, Turns), OpenError>
    where
        D: Disk + Send + 'static,
    {
        let (log, writer, report) = Self::prepare(disk, config, identity, sealing)?;
        Ok((log, report, Turns::of(writer)))
    }

    fn prepare<D: Disk>(
        disk: D,
        config: LogConfig,
        identity: Identity,
        sealing: Option<Sealing>,
    ) -> Result<(NodeLog, Writer<D>, RecoveryReport), OpenError> {
        let params = Params {
            file_bytes: config.file_bytes,
            room_bytes: config.bound_bytes.saturating_sub(config.reserve_bytes),
            disk_uuid: identity.disk_uuid,
            boot: identity.boot,
        };
        let seals = sealing.as_ref().is_some_and(|sealing| sealing.new_files);
        let (journal, report) = Journal::open_sealed(disk, params, sealing, Box::new(rand::random::<u128>))?;
        let (queue, catalog, tail_bytes) = (Arc::new(Queue::default()), journal.catalog(), Arc::new(AtomicU64::new(0)));
        queue.written(0, journal.used_bytes());
        let writer = Writer::new(journal, queue.clone(), tail_bytes.clone(), config.tail_bytes);
        let shared = Shared {
            queue,
            catalog,
            tail_bytes,
            groups: Mutex::default(),
            config,
            seals,
            lost: report.lost.clone(),
            writer: Mutex::new(None),
        };
        Ok((NodeLog { shared: Arc::new(shared) }, writer, report))
    }

    /// The log of one group; empty if the journal does not know the group. It is then marked as damaged (R9) if
    /// recovery lost records whose group is unknown.
    pub fn group(&self, id: GroupId) -> GroupLog {
        let group = self
            .shared
            .groups
            .locked()
            .entry(id)
            .or_insert_with(|| {
                let known = self.shared.catalog.groups().contains(&id);
                let index = self.shared.catalog.index(id);
                let mut memory = Memory::from_index(&index.locked());
                if !known {
                    holdfast_reached::reached!(
                        "journal: a group that is not known may have lost records",
                        self.shared.lost.is_some()
                    );
                    memory.damaged = self.shared.lost.clone();
                    memory.unknown = memory.damaged.is_some();
                }
                Arc::new(Group { id, memory: Mutex::new(memory), index })
            })
            .clone();
        GroupLog { shared: self.shared.clone(), group }
    }

    /// Groups that the journal knows, also empty ones.
    pub fn groups(&self) -> Vec<GroupId> {
        self.shared.catalog.groups()
    }

    /// How full it is, and whether it still works.
    pub fn usage(&self) -> LogUsage {
        let failed = self.shared.queue.failed().map(str::to_string);
        LogUsage {
            used_bytes: self.shared.queue.used_bytes(),
            bound_bytes: self.shared.config.bound_bytes,
            reserve_bytes: self.shared.config.reserve_bytes,
            tail_bytes: self.shared.tail_bytes.load(Ordering::Relaxed),
            stalled: self.shared.queue.stalled().filter(|_| failed.is_none()),
            failed,
            blocked: self.shared.queue.blocked(),
        }
    }

    /// Files of the journal that are not sealed.
    pub fn clear_files(&self) -> usize {
        self.shared.catalog.clear_files()
    }

    /// Waits until at most `bytes` of appends, over all groups, wait for the disk; returns at once if the journal has
    /// failed or is closed. A caller that receives appends from elsewhere limits its memory with this.
    pub async fn queue_at_most(&self, bytes: u64) {
        self.shared.queue.at_most(bytes).await;
    }

    /// Writes what waits, calls back, ends the writer thread and unlocks the directory. Remaining handles get errors.
    /// MUST NOT be called from a callback.
    pub fn close(self) {
        self.shared.queue.close();
        let writer = self.shared.writer.locked().take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the journal's writer thread panicked");
        }
    }
}
