//! One gateway's machine: its clock, its disk, and, while it runs, its process: a [`Node`] on a tokio runtime of its
//! own.
//!
//! The world runs the runtime in slices: everything that is ready, at one moment of the machine's clock. Nothing moves
//! between two slices, so dropping it there kills the process at an await point; [`Host::slice_and_stop_after`] makes
//! it any await point.

use crate::broken::Broken;
use crate::net::{Door, Net, Stream};
use crate::rng::Rng;
use crate::shape::Shape;
use crate::slices::Slices;
use crate::store::{Server, Way, open};
use crate::sync::lock;
use crate::time::{Clock, MachineTime};
use holdfast_gateway::admin::start_tasks;
use holdfast_gateway::config::{GatewayConfig, GatewayRole, KeyConfig};
use holdfast_gateway::node::{Node, Seams};
use holdfast_gateway::serve_nbd_over;
use holdfast_log::{LogConfig, NodeLog, Turns};
use holdfast_store::{Faults, RetryPolicy};
use holdfast_testkit::{SECTOR_BYTES, SimDisk, Survives};
use holdfast_tls::{Connection, Dialer};
use holdfast_types::{ByteSize, GroupId, Locality, Name};
use holdfast_volume::map::LeafShape;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::{Service, http::Uri};

const MS: u64 = 1_000_000;
/// After this time without work the journal's writer marks its last batch as synced, as its thread does.
const IDLE_AFTER: u64 = 100 * MS;
/// Short, so that lives are renewed under every fault.
const RENEW: Duration = Duration::from_millis(1_300);
/// The shortest that a gateway allows.
const FOLLOW_OWNER_MS: u64 = 5_000;
/// Small, so that files are begun, dropped and carried all the time.
const JOURNAL_FILE_BYTES: u64 = 256 << 10;
const JOURNAL_RESERVE_BYTES: u64 = 1 << 20;
const JOURNAL_TAIL_BYTES: u64 = 48 << 10;
/// An idle marker: one block (docs/formats.md).
const MARKER_BYTES: usize = 4096;

/// Fatal events in order: panics, aborts (R11).
static FATAL: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The gateway that runs now.
static RUNNING: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Notes an event that must never happen.
pub fn fatal(what: &str) {
    lock(&FATAL).push(format!("gateway {}: {what}", RUNNING.load(Relaxed) + 1));
}

/// The noted events; returned once.
pub fn take_fatal() -> Vec<String> {
    std::mem::take(&mut *lock(&FATAL))
}

/// A gateway's process.
pub struct Process {
    /// First: tasks are dropped before the things that they hold.
    slices: Slices,
    node: Arc<Mutex<Option<Arc<Node>>>>,
    turns: Arc<Mutex<Option<Turns>>>,
    /// Why it ended by itself, if it did.
    pub ended: Arc<Mutex<Option<String>>>,
    /// Grows by each start.
    pub life: u64,
}

impl Process {
    /// The node, once it is open.
    pub fn node(&self) -> Option<Arc<Node>> {
        lock(&self.node).clone()
    }

    /// Runs `work` in the process.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.slices.spawn(work);
    }
}

/// A gateway's machine.
pub struct Host {
    pub index: usize,
    pub time: MachineTime,
    pub disk: SimDisk,
    pub process: Option<Process>,
    /// Shortest and longest time of a write with its sync, in nanoseconds.
    pub disk_delay: (u64, u64),
    /// To each store of the set, in its order.
    pub ways: Vec<Way>,
    /// Role in its settings.
    pub witness: bool,
    /// Its disk reports syncs without doing them: `Broken::SyncsIgnored`.
    pub syncs_ignored: bool,
    /// Its disk is full with this many files.
    pub files_max: Option<usize>,
    /// NBD is served.
    pub nbd: bool,
    /// Where it stands, in its settings. Leadership then follows owners soon.
    pub locality: Option<Locality>,
    /// A bug in how its stores are combined.
    pub broken: Option<Broken>,
    /// Its roots are tops and leaves, also small ones.
    pub in_leaves: bool,
    pub shape: Shape,
    dir: PathBuf,
    net: Net,
    rng: Rng,
    lives: u64,
    turn_at: Option<u64>,
    worked_at: u64,
}

/// The name of gateway `index`.
pub fn name(index: usize) -> String {
    format!("g{}", index + 1)
}

/// Where gateway `index` is reached by the others.
pub fn address(index: usize) -> String {
    format!("10.0.0.{}:7401", index + 1)
}

/// Where gateway `index` serves NBD.
pub fn nbd_address(index: usize) -> String {
    format!("10.0.0.{}:10809", index + 1)
}

/// The machine of an address.
pub fn machine_of(host: &str) -> Option<usize> {
    host.rsplit('.').next()?.parse::<usize>().ok()?.checked_sub(1)
}

/// Makes connections of one machine over the simulated network.
#[derive(Clone)]
pub struct Connector {
    pub from: usize,
    pub net: Net,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let to = uri.host().and_then(machine_of);
        let (from, net) = (self.from, self.net.clone());
        Box::pin(async move {
            match to {
                Some(to) => net.connect(from, to, Door::Rpc).await.map(TokioIo::new),
                None => Err(std::io::ErrorKind::InvalidInput.into()),
            }
        })
    }
}

/// How gateways are reached from `from`.
pub fn dialer(from: usize, net: &Net) -> Dialer {
    let connector = Connector { from, net: net.clone() };
    let net = net.clone();
    Dialer::over(
        Arc::new(move |endpoint| endpoint.connect_with_connector_lazy(connector.clone())),
        Arc::new(move |address: &str| {
            let to = address.rsplit_once(':').and_then(|(host, _)| machine_of(host));
            let net = net.clone();
            Box::pin(async move {
                let to = to.ok_or(std::io::ErrorKind::InvalidInput)?;
                let connection: Connection = Box::new(net.connect(from, to, Door::Rpc).await?);
                Ok(connection)
            })
        }),
    )
}

/// Content of a machine's disk at one moment.
pub struct DiskCopy {
    disk: SimDisk,
    dir: tempfile::TempDir,
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_files(&entry.path(), &to)?,
            false => drop(std::fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

/// Creates what must exist before the first start.
fn furnish(dir: &Path) -> std::io::Result<()> {
    // The journal is simulated; `Identity::check_journal` needs something in its place.
    std::fs::create_dir_all(dir.join("journal"))?;
    std::fs::write(dir.join("journal").join("simulated"), b"")?;
    let key = dir.join("key");
    std::fs::write(&key, [7; 32])?;
    std::fs::set_permissions(key, std::os::unix::fs::PermissionsExt::from_mode(0o600))
}

impl Host {
    /// A machine that has never run.
    pub fn new(
        index: usize,
        seed: u64,
        dir: PathBuf,
        net: Net,
        servers: &[Server],
        clock: Clock,
    ) -> anyhow::Result<Self> {
        furnish(&dir)?;
        let ways = servers.iter().enumerate();
        let ways = ways.map(|(at, server)| Way::new(server.clone(), seed ^ index as u64 ^ (at as u64) << 32)).collect();
        let rng = Rng::new(seed, 100 + index as u64);
        let (disk, disk_delay) = (SimDisk::new(), (MS / 5, 2 * MS));
        Ok(Self {
            index,
            time: MachineTime::new(clock),
            disk,
            process: None,
            disk_delay,
            ways,
            witness: false,
            syncs_ignored: false,
            files_max: None,
            nbd: false,
            locality: None,
            // None, all, or alternating: then each takeover changes the written form.
            in_leaves: match seed % 3 {
                0 => false,
                1 => true,
                _ => index.is_multiple_of(2),
            },
            broken: None,
            shape: Shape::USUAL,
            dir,
            net,
            rng,
            lives: 0,
            turn_at: None,
            worked_at: 0,
        })
    }

    /// Adds ways to further stores, before it is started.
    pub fn more_ways(&mut self, seed: u64, servers: &[Server]) {
        let more = servers.iter().enumerate().skip(self.ways.len());
        self.ways
            .extend(more.map(|(at, server)| Way::new(server.clone(), seed ^ self.index as u64 ^ (at as u64) << 32)));
    }

    /// Replaces the machine by one with an empty disk.
    pub fn wipe(&mut self, now: u64) -> std::io::Result<()> {
        self.kill(now);
        self.disk = SimDisk::new();
        std::fs::remove_dir_all(&self.dir)?;
        furnish(&self.dir)
    }

    /// Copies the disk, like a snapshot of the machine.
    pub fn copy_disk(&self) -> std::io::Result<DiskCopy> {
        let dir = tempfile::tempdir()?;
        copy_files(&self.dir, dir.path())?;
        Ok(DiskCopy { disk: self.disk.crashed(Survives::Everything), dir })
    }

    /// Restores the disk from a copy.
    pub fn restore(&mut self, now: u64, copy: &DiskCopy) -> std::io::Result<()> {
        self.kill(now);
        self.disk = copy.disk.crashed(Survives::Everything);
        std::fs::remove_dir_all(&self.dir)?;
        copy_files(copy.dir.path(), &self.dir)
    }

    /// Makes the next start find group 0 damaged: an unreadable quarantine note means that.
    pub fn quarantine_group_0(&self) -> std::io::Result<()> {
        std::fs::write(self.dir.join("raft").join("group-0.quarantine"), b"")
    }

    /// The file of a group's state snapshot.
    pub fn state_snapshot(&self, group: GroupId) -> PathBuf {
        self.dir.join("raft").join(format!("group-{}.snapshot", group.0))
    }

    /// The file in which a group's state snapshot is written has no room, or has it again.
    pub fn refuse_snapshots(&self, group: GroupId, refuse: bool) -> std::io::Result<()> {
        let mut beside = self.state_snapshot(group).into_os_string();
        beside.push(".new");
        if refuse {
            return std::os::unix::fs::symlink("/dev/full", beside);
        }
        match std::fs::remove_file(beside) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Whether the note is there that a group ends here, or has.
    pub fn ends_group(&self, group: GroupId) -> bool {
        self.dir.join("raft").join(format!("group-{}.ended", group.0)).exists()
    }

    fn config(&self, rtt_ms: u32) -> anyhow::Result<GatewayConfig> {
        let mut config = GatewayConfig { name: Name::new(name(self.index))?, ..GatewayConfig::default() };
        config.data_dir = self.dir.clone();
        config.rtt_ms = rtt_ms;
        config.rtt_calm_ms = 5_000;
        if self.witness {
            config.role = GatewayRole::Witness;
        }
        config.advertise.peer = Some(address(self.index));
        config.advertise.api = Some(format!("10.0.0.{}:7400", self.index + 1));
        if self.nbd {
            // Never bound: `serve_nbd_over` uses the simulated network.
            config.nbd_listen = Some(nbd_address(self.index).parse()?);
        }
        // Every set on every gateway: scenes say themselves where voters go.
        config.placing.enabled = false;
        if let Some(locality) = &self.locality {
            config.locality = Some(locality.clone());
            config.placing.follow_owner_ms = FOLLOW_OWNER_MS;
        }
        config.key = KeyConfig { file: Some(self.dir.join("key")), ..KeyConfig::default() };
        config.cache.memory.0 = 32 << 20;
        config.cache.disk.0 = 0;
        config.upload.interval_ms = 1_500;
        config.upload.bytes.0 = self.shape.upload;
        config.upload.whole_root = self.in_leaves.then_some(ByteSize(0));
        config.space.grace_ms = 2_000;
        config.space.sweep_interval_ms = 5_000;
        // One gateway does not seal: as a leader it makes entries in clear, as a follower it gets sealed ones.
        config.journal.seal = self.index != 1;
        // Scenes start copies of its disk on other machines.
        config.journal.read_clear = true;
        Ok(config)
    }

    fn seams(&self, slot: Arc<Mutex<Option<Turns>>>) -> Seams {
        let (disk, bound) = (self.disk.clone(), self.shape.journal);
        let journal = move |config: LogConfig, identity, sealing| {
            let small = LogConfig {
                file_bytes: JOURNAL_FILE_BYTES,
                bound_bytes: bound,
                reserve_bytes: JOURNAL_RESERVE_BYTES,
                tail_bytes: JOURNAL_TAIL_BYTES,
                ..config
            };
            let (log, report, turns) = NodeLog::open_in_turns(disk.clone(), small, identity, sealing)?;
            *lock(&slot) = Some(turns);
            Ok((log, report))
        };
        let (ways, broken) = (self.ways.clone(), self.broken);
        let policy = RetryPolicy {
            read_timeout_ms: 2_000,
            write_timeout_ms: 4_000,
            operation_timeout_ms: 10_000,
            ..RetryPolicy::default()
        };
        Seams {
            journal: Arc::new(journal),
            store: Arc::new(move |_, stores, health| {
                Box::pin(std::future::ready(open(&ways, stores, &policy, &health, broken)))
            }),
            // The simulated stores are correct, and the check would change the course of seeds.
            check_limit: None,
            dialer: Some(dialer(self.index, &self.net)),
            abort: fatal,
            renew: RENEW,
            pair: None,
            keys: None,
            live: None,
            leaves: LeafShape { pages: 1, objects: 2, packs: 4, ..LeafShape::DEFAULT },
            // Two or three leaves: the others are always away.
            leaf_bytes: 400,
            tasks: start_tasks,
        }
    }

    /// Starts the process.
    pub fn start(&mut self, now: u64, rtt_ms: u32) -> anyhow::Result<()> {
        self.time.begin();
        self.enter(now);
        self.net.power(self.index, true);
        if self.syncs_ignored {
            self.disk.ignore_syncs();
        }
        self.disk.set_files_max(self.files_max);
        self.lives += 1;
        let process = Process {
            slices: Slices::new(now)?,
            node: Arc::default(),
            turns: Arc::default(),
            ended: Arc::default(),
            life: self.lives,
        };
        let (config, seams) = (self.config(rtt_ms)?, self.seams(process.turns.clone()));
        let incoming = UnboundedReceiverStream::new(self.net.listen(self.index, Door::Rpc));
        let nbd = self.nbd.then(|| (self.net.listen(self.index, Door::Nbd), config.clone()));
        let (node_slot, ended) = (process.node.clone(), process.ended.clone());
        process.spawn(async move {
            let stop = CancellationToken::new();
            let why = match Node::open_over(config, stop.clone(), seams).await {
                Err(e) => format!("does not start: {e}"),
                Ok(node) => {
                    *lock(&node_slot) = Some(node.clone());
                    // Held until the process ends.
                    let mut _front = None;
                    if let Some((incoming, config)) = nbd {
                        match serve_nbd_over(incoming, &config, &node) {
                            Ok(front) => _front = Some(front),
                            Err(error) => fatal(&error.to_string()),
                        }
                    }
                    let served = holdfast_gateway::serve_doors_over(incoming, node.clone(), stop).await;
                    match node.refusal() {
                        Some(why) => format!("ended: {why}"),
                        None => format!("ended by itself: {served:?}, {:?}", node.not_ready()),
                    }
                }
            };
            *lock(&ended) = Some(why);
        });
        self.process = Some(process);
        (self.turn_at, self.worked_at) = (None, now);
        Ok(())
    }

    /// Makes the machine's clock the current one, until another machine's is.
    pub fn enter(&self, now: u64) {
        RUNNING.store(self.index, Relaxed);
        self.time.enter(now);
    }

    /// Whether the process was stopped or suspended until now; true once.
    pub fn goes_on(&mut self, now: u64) -> bool {
        self.process.is_some() && self.time.goes_on(now)
    }

    /// Whether the process is there and not stopped.
    pub fn runs(&self, now: u64) -> bool {
        self.process.is_some() && !self.time.is_stopped(now)
    }

    /// Runs everything ready now: the disk first, then the tasks. False: there was nothing to run.
    pub fn slice(&mut self, now: u64) -> bool {
        self.enter(now);
        let worked = self.turn_disk(now);
        self.process.as_mut().is_some_and(|process| process.slices.run(now, worked))
    }

    /// Like [`Host::slice`], but only this many polls of tasks: the process is killed next.
    pub fn slice_and_stop_after(&mut self, now: u64, polls: u64) {
        self.enter(now);
        self.turn_disk(now);
        if let Some(process) = &self.process {
            process.slices.stop_after(polls);
        }
    }

    /// Whether the disk did anything.
    fn turn_disk(&mut self, now: u64) -> bool {
        let Some(process) = &self.process else { return false };
        let mut slot = lock(&process.turns);
        let Some(turns) = slot.as_mut() else { return false };
        if turns.waits() {
            let due = *self.turn_at.get_or_insert_with(|| now + self.rng.range(self.disk_delay.0, self.disk_delay.1));
            if due > now {
                return false;
            }
            turns.turn(false);
            (self.turn_at, self.worked_at) = (None, now);
        } else if now >= self.worked_at + IDLE_AFTER {
            turns.turn(true);
            self.worked_at = now;
        } else {
            return false;
        }
        true
    }

    /// Sets the faults on the way to store `at`, or to every store.
    pub fn set_ways(&self, at: Option<usize>, faults: &Faults) {
        let ways = self.ways.iter().enumerate().filter(|(way, _)| at.is_none_or(|at| at == *way));
        ways.for_each(|(_, way)| way.0.set(faults.clone()));
    }

    /// Kills the process. The machine stays: written data is not lost, and the kernel closes its connections.
    pub fn kill(&mut self, now: u64) {
        self.enter(now);
        self.net.close(self.index);
        self.process = None;
        self.time.wake(now);
        self.disk.restart();
    }

    /// Whether nothing but an idle marker is unsynced in its journal.
    pub fn is_marked_idle(&self) -> bool {
        self.disk.unsynced_bytes() == MARKER_BYTES
    }

    /// Cuts the power between the write and the sync of the first batch behind an idle marker: the disk keeps the batch
    /// and loses the marker. False, and nothing was done: no batch waits behind a marker now.
    pub fn cut_power_behind_marker(&mut self, now: u64) -> bool {
        let waits = |process: &Process| lock(&process.turns).as_ref().is_some_and(Turns::waits);
        if !self.is_marked_idle() || !self.process.as_ref().is_some_and(waits) {
            return false;
        }
        self.enter(now);
        self.net.power(self.index, false);
        self.disk.die_after(1);
        if let Some(process) = &self.process
            && let Some(turns) = lock(&process.turns).as_mut()
        {
            turns.turn(false);
        }
        self.net.close(self.index);
        self.process = None;
        self.time.wake(now);
        let mut asked = 0;
        self.disk = self.disk.crashed(Survives::Some(&mut || {
            asked += 1;
            asked > MARKER_BYTES / SECTOR_BYTES
        }));
        true
    }

    /// Cuts the power, possibly in the middle of a write: unsynced data is lost in part, and no peer is told.
    pub fn cut_power(&mut self, now: u64) {
        self.enter(now);
        self.net.power(self.index, false);
        if self.rng.chance(500)
            && let Some(process) = &self.process
            && let Some(turns) = lock(&process.turns).as_mut()
        {
            self.disk.die_after(self.rng.below(4));
            turns.turn(false);
        }
        self.net.close(self.index);
        self.process = None;
        self.time.wake(now);
        let rng = &mut self.rng;
        let keep = rng.below(1001);
        self.disk = match rng.below(4) {
            0 => self.disk.crashed(Survives::Nothing),
            1 => {
                let bytes = self.disk.unsynced_bytes() as u64;
                self.disk.crashed(Survives::Prefix(rng.below(bytes + 1) as usize))
            }
            _ => self.disk.crashed(Survives::Some(&mut || rng.chance(keep))),
        };
    }
}
