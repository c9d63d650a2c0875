//! A temporary writable copy of a snapshot on this host. Writes go to a local scratch file, never to the set.
//!
//! ```text
//!   nbdfuse + loop, or any NBD client
//!        │ Unix socket per volume
//!   ┌────▼── snapshot copy (one process) ───────────────────────────────┐
//!   │ serve ─▶ Disk: overlay ─┬─ written here ─▶ scratch file, nameless │
//!   │                         └─ not ─▶ base ──────────────────────────┼─ TCP ─▶ SET/VOLUME@SNAPSHOT, at any gateway
//!   └───────────────────────────────────────────────────────────────────┘
//! ```
//!
//! It takes no lease and only reads the snapshot (SCRATCH-W4): whatever happens here, the set is not affected.
//! docs/adr/0024-standbys.md has the reasons.

mod base;
mod disk;
mod identity;
mod overlay;
mod serve;
mod status;

use crate::admin_client::{self, AdminClients, call};
use crate::device::{self, DeviceError, DeviceKind, Devices};
use crate::dir::{DirError, RunDir};
use crate::machine::Phase;
use crate::revoked;
use crate::status::VolumeStatus;
use base::{Base, Gateways, Patience};
use disk::Disk;
use futures_util::future::BoxFuture;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_nbd::{ExportName, SnapshotExport};
use holdfast_tls::Dialer;
use holdfast_types::{Name, Token};
use identity::{Identity, Presence};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

pub use status::{SnapshotCopyStatus, Source};

/// Interval of the questions for the list of gateways.
const LEARN_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of such a question.
const LEARN_LIMIT: Duration = Duration::from_secs(10);
/// Interval of status writes.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two attempts to reach a gateway at the start.
const REACH_PAUSE: Duration = Duration::from_millis(200);

/// Options of a snapshot copy.
#[derive(Clone, Debug)]
pub struct SnapshotCopyOptions {
    /// The set.
    pub set: Name,
    /// Its snapshot.
    pub snapshot: Name,
    /// Admin addresses of some gateways; the others are found.
    pub api: Vec<String>,
    /// Connection to the admin ports, and TLS of NBD (R10).
    pub dialer: Dialer,
    /// The run directory.
    pub dir: PathBuf,
    /// Directory of the scratch files.
    pub scratch: PathBuf,
    /// Maximum size of one volume's scratch file, in bytes.
    pub scratch_max: u64,
    /// Kind of devices.
    pub device: DeviceKind,
    /// Connections of nbdfuse to each socket.
    pub connections: u8,
    /// Time limit until the devices are ready.
    pub patience: Duration,
}

/// A snapshot copy could not be made, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotCopyError {
    /// The run directory.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel's driver was asked for.
    #[error("found device kind kernel, expected auto, nbdfuse or none: a snapshot copy has no kernel device")]
    Kernel,
    /// A gateway's definite answer.
    #[error("{0}")]
    Refused(holdfast_api::Refusal),
    /// There is no such snapshot.
    #[error("found no snapshot {set}@{snapshot}, expected one of: {there}")]
    NoSnapshot {
        /// The set.
        set: Name,
        /// The requested snapshot.
        snapshot: Name,
        /// The snapshots that exist.
        there: String,
    },
    /// It is not in the store yet.
    #[error("snapshot {set}@{snapshot} is pending: it is not in the store yet")]
    Pending {
        /// The set.
        set: Name,
        /// The snapshot.
        snapshot: Name,
    },
    /// No gateway answered in time.
    #[error("snapshot {set}@{snapshot} is not reached within {limit:?}: {last}")]
    Unreachable {
        /// The set.
        set: Name,
        /// The snapshot.
        snapshot: Name,
        /// Duration of the attempt.
        limit: Duration,
        /// The last obstacle.
        last: String,
    },
    /// A scratch file or socket.
    #[error("{}: {source}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// It was deleted; another snapshot may have its name now.
    #[error("the snapshot is gone: {why}: this copy is unusable: create a new one")]
    Gone {
        /// The finding.
        why: String,
    },
    /// A device ended while in use.
    #[error("{which}: this copy is unusable: create a new one")]
    DeviceEnded {
        /// The device and the reason.
        which: String,
    },
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> SnapshotCopyError + '_ {
    |source| SnapshotCopyError::Io { path: path.to_path_buf(), source }
}

/// Makes the copy and keeps it until `stop`; calls `on_ready` once it can be used. Data written to it is gone
/// afterwards.
pub fn run_snapshot_copy<'a>(
    options: SnapshotCopyOptions,
    stop: CancellationToken,
    on_ready: impl FnOnce(&SnapshotCopyStatus) + Send + 'a,
) -> BoxFuture<'a, Result<(), SnapshotCopyError>> {
    // Boxed: its code is generated in this crate only.
    boxed(options, stop, Box::new(on_ready))
}

/// Called once the copy can be used.
type OnReady<'a> = Box<dyn FnOnce(&SnapshotCopyStatus) + Send + 'a>;

fn boxed(
    options: SnapshotCopyOptions,
    stop: CancellationToken,
    on_ready: OnReady<'_>,
) -> BoxFuture<'_, Result<(), SnapshotCopyError>> {
    Box::pin(keep(options, stop, on_ready))
}

async fn keep(
    options: SnapshotCopyOptions,
    stop: CancellationToken,
    on_ready: OnReady<'_>,
) -> Result<(), SnapshotCopyError> {
    if options.device == DeviceKind::Kernel {
        return Err(SnapshotCopyError::Kernel);
    }
    let dir = RunDir::take(&options.dir)?;
    let mut copy = tokio::select! {
        copy = Copy::make(&options, dir) => copy?,
        // Nothing exists yet that would have to be removed.
        () = stop.cancelled() => return Ok(()),
    };
    let (news, mut heard) = mpsc::unbounded_channel();
    let kind = if options.device == DeviceKind::Auto { DeviceKind::Nbdfuse } else { options.device };
    let kind = device::choose(kind).await?;
    let names: Vec<Name> = copy.disks.iter().map(|disk| disk.export.volume.clone()).collect();
    let on_end = move |which: String| drop(news.send(which));
    let made = Devices::of_sockets(kind, &options.set, &names, copy.dir.path(), options.connections, on_end).await?;
    copy.devices = Some(made);
    // From here on devices exist: whatever happens, they are removed in order. A stale status.json does not change
    // that.
    let mut unshown = copy.show_or_log(Phase::Serving, false);
    on_ready(&copy.status(Phase::Serving));
    let mut ticks = tokio::time::interval(SHOW_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            () = stop.cancelled() => break Ok(()),
            Some(which) = heard.recv() => break Err(SnapshotCopyError::DeviceEnded { which }),
            why = copy.gateways.ended() => break Err(SnapshotCopyError::Gone { why }),
            _ = ticks.tick() => unshown = copy.show_or_log(Phase::Serving, unshown),
        }
    };
    if let Some(devices) = copy.devices.take() {
        devices.stop(Instant::now() + device::SYNC_LIMIT).await;
    }
    copy.show_or_log(Phase::Detached, unshown);
    ended
}

/// Parts of a running copy.
struct Copy {
    options: SnapshotCopyOptions,
    snapshot: v1::Snapshot,
    dir: RunDir,
    gateways: Arc<Gateways>,
    disks: Vec<Arc<Disk>>,
    sockets: Vec<PathBuf>,
    devices: Option<Devices>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Copy {
    /// Finds the snapshot, reaches a gateway, and listens; no devices yet.
    async fn make(options: &SnapshotCopyOptions, dir: RunDir) -> Result<Self, SnapshotCopyError> {
        let (set, limit) = (&options.set, options.patience);
        let deadline = Instant::now() + limit;
        let unreachable = |last: String| {
            let snapshot = options.snapshot.clone();
            SnapshotCopyError::Unreachable { set: set.clone(), snapshot, limit, last }
        };
        let doors = Arc::new(AdminClients::new(options.dialer.clone(), &options.api));
        let revoked = revoked::follow(&options.dialer, &doors, dir.path());
        let known = || unreachable(format!("no gateway of {} answered", doors.known().join(", ")));
        let snapshot = tokio::time::timeout_at(deadline, find(&doors, options)).await.map_err(|_| known())??;
        let gateways = Arc::new(Gateways::over(options.dialer.connector()));
        let learned = tokio::time::timeout_at(deadline, learn(&doors)).await;
        gateways.set(learned.ok().flatten().ok_or_else(known)?);
        let opens = tokio::time::timeout_at(deadline, token(&doors, options)).await.map_err(|_| known())?;
        gateways.set_token(Some(opens.map_err(SnapshotCopyError::Refused)?));
        let identity = Identity::listed(&doors, set, &snapshot, &options.snapshot);

        std::fs::create_dir_all(&options.scratch).map_err(at(&options.scratch))?;
        let mut copy = Self {
            options: options.clone(),
            dir,
            gateways,
            disks: Vec::new(),
            sockets: Vec::new(),
            devices: None,
            tasks: Vec::new(),
            snapshot,
        };
        for volume in copy.snapshot.volumes.clone() {
            // A name that is invalid here cannot be exported.
            let Ok(name) = Name::new(volume.name.clone()) else { continue };
            let plain = ExportName::plain(set.clone(), name);
            let shown = SnapshotExport { name: options.snapshot.clone(), token: None };
            let export = ExportName { snapshot: Some(shown), ..plain.clone() };
            let base = Base::new(export, volume.size_bytes, copy.gateways.clone(), identity.clone(), Patience::USUAL);
            let disk = Disk::new(plain, base, volume.size_bytes, &options.scratch, options.scratch_max);
            copy.disks.push(Arc::new(disk.map_err(at(&options.scratch))?));
        }
        copy.tasks.extend(revoked.map(|following| following.abort_handle()));
        copy.show(Phase::Connecting)?;
        copy.reach(deadline, unreachable).await?;
        let learning = tokio::spawn(follow(doors, copy.gateways.clone(), identity, options.clone()));
        copy.tasks.push(learning.abort_handle());
        Ok(copy)
    }

    /// Connects each volume to a gateway, and listens.
    async fn reach(
        &mut self,
        deadline: Instant,
        unreachable: impl Fn(String) -> SnapshotCopyError,
    ) -> Result<(), SnapshotCopyError> {
        for disk in self.disks.clone() {
            while let Err(last) = disk.reach().await {
                if let Some(why) = self.gateways.gone() {
                    return Err(SnapshotCopyError::Gone { why });
                }
                if Instant::now() >= deadline {
                    return Err(unreachable(last));
                }
                tokio::time::sleep(REACH_PAUSE).await;
            }
            self.listen(disk)?;
        }
        Ok(())
    }

    fn listen(&mut self, disk: Arc<Disk>) -> Result<(), SnapshotCopyError> {
        let path = self.dir.socket(&disk.export.volume)?;
        let listener = self.dir.listen(&path).map_err(at(&path))?;
        self.sockets.push(path);
        self.tasks.push(tokio::spawn(serve::accept(listener, disk)).abort_handle());
        Ok(())
    }

    fn status(&self, phase: Phase) -> SnapshotCopyStatus {
        let volumes = self.disks.iter().enumerate().map(|(index, disk)| VolumeStatus {
            name: disk.export.volume.to_string(),
            size_bytes: disk.size,
            socket: self.sockets.get(index).map(|path| path.display().to_string()).unwrap_or_default(),
            device: self.devices.as_ref().and_then(|devices| devices.path(index)),
            // A snapshot's volumes never change.
            device_bytes: None,
            lost: None,
        });
        SnapshotCopyStatus {
            set: self.options.set.to_string(),
            snapshot: self.options.snapshot.to_string(),
            snapshot_unix_ms: self.snapshot.created_unix_ms,
            phase,
            pid: std::process::id(),
            ready: self.devices.is_some(),
            volumes: volumes.collect(),
            source: self.gateways.source(),
            scratch_bytes: self.disks.iter().map(|disk| disk.held_bytes()).sum(),
            scratch_max_bytes: self.options.scratch_max,
        }
    }

    fn show(&self, phase: Phase) -> Result<(), DirError> {
        self.dir.show(&self.status(phase))
    }

    /// Like `show`, if a full /run must not end the copy; logs it once, unless it `failed` before. Returns whether it
    /// failed.
    fn show_or_log(&self, phase: Phase, failed: bool) -> bool {
        match self.show(phase) {
            Ok(()) => false,
            Err(error) => {
                if !failed {
                    let set = &self.options.set;
                    tracing::error!(%set, %error, "cannot update status.json; everything else works");
                }
                true
            }
        }
    }
}

/// Keeps the addresses of gateways and the token up to date, until the snapshot is gone.
async fn follow(doors: Arc<AdminClients>, gateways: Arc<Gateways>, identity: Identity, options: SnapshotCopyOptions) {
    loop {
        tokio::time::sleep(LEARN_INTERVAL).await;
        if let Ok(Some(nbd)) = tokio::time::timeout(LEARN_LIMIT, learn(&doors)).await {
            gateways.set(nbd);
        }
        // It changes with the set's data key.
        if let Ok(Ok(token)) = tokio::time::timeout(LEARN_LIMIT, token(&doors, &options)).await {
            gateways.set_token(Some(token));
        }
        // Also without reads: a copy of a deleted snapshot must not look alive.
        if let Presence::Gone(why) = identity.look().await {
            return gateways.end(why);
        }
    }
}

/// The snapshot as listed by its set's leader.
async fn find(doors: &AdminClients, options: &SnapshotCopyOptions) -> Result<v1::Snapshot, SnapshotCopyError> {
    let listed = identity::list(doors, &options.set).await.map_err(SnapshotCopyError::Refused)?;
    let (set, snapshot) = (options.set.clone(), options.snapshot.clone());
    let names = || listed.iter().map(|found| found.name.as_str()).collect::<Vec<_>>().join(", ");
    match listed.iter().find(|found| found.name == snapshot.as_str()) {
        None => Err(SnapshotCopyError::NoSnapshot { there: names(), set, snapshot }),
        Some(found) if found.pending => Err(SnapshotCopyError::Pending { set, snapshot }),
        Some(found) => Ok(found.clone()),
    }
}

/// The token that opens the snapshot. Asks until a gateway answers: the caller sets the time limit.
async fn token(doors: &AdminClients, options: &SnapshotCopyOptions) -> Result<Token, Refusal> {
    let (set, name) = (options.set.to_string(), options.snapshot.to_string());
    let call = call!(get_snapshot_token, v1::GetSnapshotTokenRequest { set, name });
    let (_, reply) = doors.ask_all(call, admin_client::is_final).await;
    let found = reply?.token;
    Token::from_text(&found).ok_or_else(|| {
        Refusal::new(RefusalCode::Unknown, "found a malformed token of the snapshot, expected 32 hex digits")
    })
}

/// The gateways' NBD addresses; remembers their admin addresses too.
async fn learn(doors: &AdminClients) -> Option<Vec<String>> {
    let call = call!(cluster_status, v1::ClusterStatusRequest {});
    let (_, status) = doors.ask_all(call, admin_client::is_final).await;
    let status = status.ok()?;
    let addresses = status.members.iter().filter_map(|member| member.member.as_ref()?.addresses.as_ref());
    let mut nbd = Vec::new();
    for address in addresses {
        if holdfast_api::host_port(&address.api).is_some() {
            doors.learn(&address.api);
        }
        if holdfast_api::host_port(&address.nbd).is_some() {
            nbd.push(address.nbd.clone());
        }
    }
    Some(nbd)
}
