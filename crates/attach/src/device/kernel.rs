//! A device of the kernel's nbd driver: its sockets end in this process.
//!
//! ```text
//!   /dev/nbdN ── nbd driver ── socket pairs ──▶ client::transmit ── Machine ── lanes ──▶ the gateway that serves
//! ```
//! KERNEL-K1  A socket that the kernel gave up is replaced as long as the device is to exist: this process never leaves
//!     the device without one.
//! KERNEL-K2  When this process dies, the kernel keeps the device. Requests wait for the next process ([`Left`]) or for
//!     `dead_timeout`, and then fail.
//! KERNEL-K3  Devices of an earlier process are used again only by continuing its lease (TOKEN-P2). All others of this
//!     run directory are disconnected.

use super::driver::{self, Driver, DriverError, Found};
use super::error::DeviceError;
use super::flush::{SYNC_LIMIT, flush};
use super::netlink::Connect;
use crate::client;
use crate::lease_file::Lease;
use crate::machine::VolumeFacts;
use crate::shared::Shared;
use bytes::BytesMut;
use holdfast_nbd::server::Negotiated;
use holdfast_nbd::{HeaderStyle, TransmissionFlags};
use holdfast_types::{Name, Owner};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The export's flags for the kernel, which does not ask for them.
const FLAGS: u16 = TransmissionFlags::HAS_FLAGS
    | TransmissionFlags::SEND_FLUSH
    | TransmissionFlags::SEND_FUA
    | TransmissionFlags::SEND_TRIM
    | TransmissionFlags::SEND_WRITE_ZEROES
    | TransmissionFlags::CAN_MULTI_CONN;
/// The kernel's requests and replies have simple headers.
const SPEECH: Negotiated = Negotiated { style: HeaderStyle::Simple, allocation: false };
/// As a loop device has: a file system made on one can be mounted on the other.
const BLOCK_BYTES: u64 = 512;
/// Time for udev, or devtmpfs, to make the node.
const NODE_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// A socket that lived for less time is not replaced at once: the kernel ignores a new one while it still uses the old
/// one.
const CALM: Duration = Duration::from_millis(100);
/// How often a socket is offered again that the kernel did not take. The pauses begin with [`CALM`] and double, 3.1 s
/// in all.
const GIVE_TRIES_MAX: u32 = 5;

/// Options of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Sockets per device. With more than one, the kernel gives up a socket whose request is older than 30 s.
    pub sockets: u8,
    /// How long requests wait after the death of this process, in whole seconds; then they fail, and a ZFS pool is
    /// suspended.
    pub dead_timeout: Duration,
}

/// Prefix of the names of a run directory's devices.
fn prefix(dir: &Path) -> String {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    format!("holdfast {}/", dir.display())
}

/// The driver's note of a device's owner.
fn backend(dir: &Path, volume: &Name) -> String {
    format!("{}{volume}", prefix(dir))
}

/// Devices that an earlier process of this run directory left in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// None that can be used again; these devices are to be disconnected.
    Orphans(Vec<u32>),
    /// Its devices wait for sockets, and its lease may still be ours.
    Devices(Lease),
}

/// KERNEL-K3. `wanted`: kernel devices are requested now, and the lease is not to be taken by force.
fn judge(lease: Option<Lease>, found: &[Found], dir: &Path, (set, owner): (&Name, &Owner), wanted: bool) -> Left {
    let prefix = prefix(dir);
    let ours = |found: &&Found| found.backend.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('/'));
    let all = || Left::Orphans(found.iter().filter(ours).map(|found| found.index).collect());
    let Some(lease) = lease else { return all() };
    let Some(volumes) = lease.volumes() else { return all() };
    let complete = !volumes.is_empty() && volumes.len() == lease.devices.len() && lease.token().is_some();
    let there = || {
        volumes.iter().zip(&lease.devices).all(|(volume, index)| {
            let backend = backend(dir, &volume.name);
            // Smaller if that process died after it stored a new size and before it told the kernel (GROWTH-G1); 0 if
            // it was disconnected.
            let fits = |size: u64| size > 0 && size <= volume.size;
            found.iter().any(|f| f.index == *index && f.backend == backend && fits(f.size))
        })
    };
    let same = lease.set == set.as_str() && lease.owner == owner.to_string();
    if wanted && same && complete && there() { Left::Devices(lease) } else { all() }
}

/// Looks for it.
///
/// # Errors
/// Sysfs cannot be read: whether there are devices is unknown.
pub(crate) fn left(
    lease: Option<Lease>,
    dir: &Path,
    whose: (&Name, &Owner),
    wanted: bool,
) -> Result<Left, DeviceError> {
    Ok(judge(lease, &driver::found()?, dir, whose, wanted))
}

/// Disconnects devices that no process resumes: every request on them fails. Returns how many there were.
pub(crate) fn disconnect(orphans: &[u32]) -> Result<usize, DriverError> {
    if orphans.is_empty() {
        return Ok(0);
    }
    let mut driver = Driver::open()?;
    for index in orphans {
        // A device that was disconnected before, and is only held open, refuses.
        if let Err(error) = driver.disconnect(*index) {
            tracing::debug!(%error, "an earlier process's device");
        }
    }
    Ok(orphans.len())
}

/// Whether the kernel has the driver and lets us use it; loads its module if necessary.
pub(super) async fn is_there(load: bool) -> Result<(), DriverError> {
    match blocking(|| Driver::open().map(drop)).await {
        Err(DriverError::NoDriver) if load => {}
        other => return other,
    }
    let mut modprobe = tokio::process::Command::new("/sbin/modprobe");
    modprobe.arg("nbd").stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let loaded = modprobe.stderr(std::process::Stdio::null()).status().await;
    tracing::info!(?loaded, "modprobe nbd");
    blocking(|| Driver::open().map(drop)).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DriverError> + Send + 'static,
) -> Result<T, DriverError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(DriverError::Answer(error.to_string())))
}

/// The request to the driver: a device of `size` bytes over these sockets.
fn plan<'a>(options: KernelOptions, size: u64, backend: &'a str, sockets: &'a [u32]) -> Connect<'a> {
    // For the driver 0 means "never": the death of this process would cause errors at once.
    let dead_s = options.dead_timeout.as_millis().div_ceil(1000).max(1);
    let dead_s = u64::try_from(dead_s).unwrap_or(u64::MAX);
    Connect { size, block: BLOCK_BYTES, flags: FLAGS, dead_s, backend, sockets }
}

/// Socket pairs: our ends, and the kernel's ends.
fn pairs(count: u8) -> Result<(Vec<UnixStream>, Vec<std::os::unix::net::UnixStream>), DriverError> {
    let made = (0..count.max(1)).map(|_| {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = theirs.into_std()?;
        // The kernel's own threads wait on it.
        theirs.set_nonblocking(false)?;
        Ok((ours, theirs))
    });
    made.collect::<std::io::Result<Vec<_>>>()
        .map(|pairs| pairs.into_iter().unzip())
        .map_err(|error| DriverError::Answer(format!("a socket pair: {error}")))
}

fn numbers(sockets: &[std::os::unix::net::UnixStream]) -> Vec<u32> {
    sockets.iter().filter_map(|socket| u32::try_from(socket.as_raw_fd()).ok()).collect()
}

/// One volume as a device of the driver.
#[derive(Debug)]
pub(crate) struct Device {
    index: u32,
    path: String,
    backend: Arc<str>,
    /// Its size as the kernel knows it, in bytes.
    size: u64,
    /// Its sockets are no longer replaced.
    stopping: CancellationToken,
}

/// A device that is smaller than its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Index of the volume.
    pub(crate) volume: usize,
    /// Its new size in bytes.
    pub(crate) size: u64,
    index: u32,
    backend: Arc<str>,
}

impl Growth {
    /// Tells the kernel.
    pub(crate) async fn tell(&self) -> Result<(), DriverError> {
        let (index, size, backend) = (self.index, self.size, self.backend.clone());
        blocking(move || Driver::open()?.resize(index, &backend, size)).await
    }
}

/// Destination of a device's sockets.
#[derive(Clone)]
struct Way {
    shared: Arc<Shared>,
    volume: usize,
    index: u32,
    backend: Arc<str>,
    stopping: CancellationToken,
}

impl Device {
    /// Makes a device.
    pub(super) async fn make(
        shared: &Arc<Shared>,
        volume: usize,
        facts: &VolumeFacts,
        dir: &Path,
        options: KernelOptions,
        on_end: impl Fn(String) + Clone + Send + 'static,
    ) -> Result<Self, DriverError> {
        let (ours, theirs) = pairs(options.sockets)?;
        let (name, size) = (backend(dir, &facts.name), facts.size);
        let told = name.clone();
        let index = blocking(move || {
            let mut driver = Driver::open()?;
            let index = driver.connect(plan(options, size, &told, &numbers(&theirs)))?;
            // From here on the kernel holds its ends itself. We must close ours, or the kernel would not notice our
            // death.
            drop(theirs);
            driver::shows_backend(index).inspect_err(|_| drop(driver.disconnect(index)))?;
            Ok(index)
        })
        .await?;
        let device = Self::serve(shared, volume, (index, size), &name, ours, on_end);
        let node = driver::node(index);
        let begun = Instant::now();
        while !Path::new(&node).exists() {
            if begun.elapsed() >= NODE_LIMIT {
                device.stop(Instant::now() + SYNC_LIMIT).await;
                return Err(DriverError::NoNode { node, limit: NODE_LIMIT });
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(device)
    }

    /// Uses a device of an earlier process again.
    pub(super) async fn resume(
        shared: &Arc<Shared>,
        volume: usize,
        (index, facts): (u32, &VolumeFacts),
        dir: &Path,
        sockets: u8,
        on_end: impl Fn(String) + Clone + Send + 'static,
    ) -> Result<Self, DriverError> {
        let (ours, theirs) = pairs(sockets)?;
        let name = backend(dir, &facts.name);
        let asked = name.clone();
        // The device's present size: the lease file may have a larger one than the kernel was told, and the kernel
        // takes a size only while requests are answered (GROWTH-G2).
        let size = blocking(move || {
            Driver::open()?.reconfigure(index, &asked, &numbers(&theirs))?;
            Ok(driver::device_bytes(index))
        })
        .await?;
        Ok(Self::serve(shared, volume, (index, size), &name, ours, on_end))
    }

    fn serve(
        shared: &Arc<Shared>,
        volume: usize,
        (index, size): (u32, u64),
        backend: &str,
        sockets: Vec<UnixStream>,
        on_end: impl Fn(String) + Clone + Send + 'static,
    ) -> Self {
        let (stopping, backend) = (CancellationToken::new(), Arc::<str>::from(backend));
        let way = Way { shared: shared.clone(), volume, index, backend: backend.clone(), stopping: stopping.clone() };
        for socket in sockets {
            let (way, on_end) = (way.clone(), on_end.clone());
            tokio::spawn(async move {
                if let Err(error) = way.run(socket).await {
                    on_end(format!("{}: {error}", driver::node(way.index)));
                }
            });
        }
        Self { index, path: driver::node(index), backend, size, stopping }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The new size for the kernel if the volume has `size`. Growth only: users of the device keep what they have of
    /// it.
    pub(super) fn growth(&self, volume: usize, size: u64) -> Option<Growth> {
        let larger = size > self.size;
        larger.then(|| Growth { volume, size, index: self.index, backend: self.backend.clone() })
    }

    /// The kernel has taken it.
    pub(super) fn grew(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Writes back the page cache, then takes the device's sockets away: remaining users get errors.
    pub(super) async fn stop(self, flush_until: Instant) {
        flush(&self.path, flush_until).await;
        self.stopping.cancel();
        let index = self.index;
        if let Err(error) = blocking(move || Driver::open()?.disconnect(index)).await {
            tracing::warn!(device = self.path, %error, "cannot remove the device");
        }
    }
}

impl Way {
    /// KERNEL-K1: one socket after another, until the device is to end or the kernel takes no more.
    async fn run(&self, mut socket: UnixStream) -> Result<(), DriverError> {
        loop {
            let begun = Instant::now();
            client::transmit(socket, self.volume, self.shared.clone(), SPEECH, BytesMut::new()).await;
            let pause = CALM.saturating_sub(begun.elapsed());
            tokio::select! {
                () = self.stopping.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
            tracing::warn!(device = driver::node(self.index), "the kernel dropped a socket; replacing it");
            let Some(given) = self.give().await? else { return Ok(()) };
            socket = given;
        }
    }

    /// Gives the kernel a new socket. Returns our end of it, or `None` once the device is to end. One refusal may be
    /// temporary (memory, a netlink buffer); several in a row are the end of the device.
    async fn give(&self) -> Result<Option<UnixStream>, DriverError> {
        let mut tries = 0;
        loop {
            let (index, backend) = (self.index, self.backend.clone());
            let given = match pairs(1) {
                Ok((ours, theirs)) => {
                    let given = blocking(move || Driver::open()?.reconfigure(index, &backend, &numbers(&theirs))).await;
                    given.map(|()| ours)
                }
                Err(error) => Err(error),
            };
            match given {
                Ok(ours) => {
                    let ours = ours.into_iter().next();
                    return ours.map(Some).ok_or_else(|| DriverError::Answer("no socket".into()));
                }
                Err(_) if self.stopping.is_cancelled() => return Ok(None),
                Err(error) if tries == GIVE_TRIES_MAX => return Err(error),
                Err(error) => {
                    tracing::warn!(device = driver::node(index), %error, tries, "cannot replace the socket; retrying");
                }
            }
            tokio::select! {
                () = self.stopping.cancelled() => return Ok(None),
                () = tokio::time::sleep(CALM * (1 << tries)) => {}
            }
            tries += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease_file::LeaseFile;
    use holdfast_types::Token;

    fn lease(dir: &Path, devices: &[u32]) -> Lease {
        let facts = |name| VolumeFacts { id: 0, name: Name::new(name).unwrap(), size: 1 << 20 };
        let volumes = ["vol1", "vol2"].map(|name| (facts(name), false));
        let file = LeaseFile::open(dir).unwrap();
        file.granted(&Name::new("demo").unwrap(), &Owner::new("db1").unwrap(), Token(7), &volumes).unwrap();
        file.made(devices, 1).unwrap();
        file.lease().unwrap()
    }

    fn found(dir: &Path, index: u32, volume: &str) -> Found {
        Found { index, backend: backend(dir, &Name::new(volume).unwrap()), size: 1 << 20 }
    }

    #[test]
    fn devices_are_gone_on_with_only_where_all_of_them_and_their_lease_are_there() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let (set, owner) = (Name::new("demo").unwrap(), Owner::new("db1").unwrap());
        let whole = lease(dir, &[4, 6]);
        let both = [found(dir, 4, "vol1"), found(dir, 6, "vol2")];
        let told = |lease: Option<&Lease>, found: &[Found], owner: &Owner, wanted| {
            judge(lease.cloned(), found, dir, (&set, owner), wanted)
        };
        assert_eq!(told(Some(&whole), &both, &owner, true), Left::Devices(whole.clone()));

        let orphans = Left::Orphans(vec![4, 6]);
        assert_eq!(told(None, &both, &owner, true), orphans, "no token: another grant may have come between");
        assert_eq!(told(Some(&whole), &both, &Owner::new("db2").unwrap(), true), orphans, "another owner");
        assert_eq!(told(Some(&whole), &both, &owner, false), orphans, "by force, or other devices");
        assert_eq!(told(Some(&lease(dir, &[])), &both, &owner, true), orphans, "died while they were made");
        assert_eq!(told(Some(&whole), &both[..1], &owner, true), Left::Orphans(vec![4]), "one is gone");
        let mut gone = both.to_vec();
        gone[1].size = 0;
        assert_eq!(told(Some(&whole), &gone, &owner, true), orphans, "disconnected, only held open");
        gone[1].size = 1 << 19;
        let smaller = told(Some(&whole), &gone, &owner, true);
        assert_eq!(smaller, Left::Devices(whole.clone()), "died before the kernel was told");
        gone[1].size = 1 << 21;
        assert_eq!(told(Some(&whole), &gone, &owner, true), orphans, "GROWTH-G1: larger than was ever kept");
        let swapped = [found(dir, 6, "vol1"), found(dir, 4, "vol2")];
        assert_eq!(told(Some(&whole), &swapped, &owner, true), Left::Orphans(vec![6, 4]), "numbers are used again");
    }

    #[test]
    fn devices_of_other_directories_are_let_alone() {
        let dir = Path::new("/run/holdfast/demo");
        let others = [
            found(Path::new("/run/holdfast/demo2"), 1, "vol1"),
            found(Path::new("/run/holdfast/demo/deeper"), 2, "vol1"),
            Found { index: 3, backend: "somebody".into(), size: 1 << 20 },
        ];
        let whose = (&Name::new("demo").unwrap(), &Owner::new("db1").unwrap());
        assert_eq!(judge(None, &others, dir, whose, true), Left::Orphans(vec![]));
    }

    /// KERNEL-K2: the kernel counts how long requests wait after the death of this process before they fail. It gets
    /// whole seconds, never fewer than requested, and never its value for "never".
    #[test]
    fn the_kernel_is_told_how_long_to_wait_for_the_next_process() {
        let seconds = |millis| {
            let options = KernelOptions { sockets: 1, dead_timeout: Duration::from_millis(millis) };
            plan(options, 1 << 20, "holdfast /run/a/vol1", &[3]).dead_s
        };
        assert_eq!([300_000, 2_000, 1_500, 1_000, 20, 0].map(seconds), [300, 2, 2, 1, 1, 1]);
        let options = KernelOptions { sockets: 1, dead_timeout: Duration::MAX };
        assert_eq!(plan(options, 1 << 20, "", &[]).dead_s, u64::MAX);
    }

    #[test]
    fn a_device_only_grows() {
        let (path, backend) = (driver::node(4), Arc::<str>::from("holdfast /run/holdfast/demo/vol1"));
        let mut device = Device { index: 4, path, backend, size: 2 << 30, stopping: CancellationToken::new() };
        assert_eq!((device.growth(1, 2 << 30), device.growth(1, 1 << 30)), (None, None));
        let growth = device.growth(1, 3 << 30).unwrap();
        assert_eq!((growth.volume, growth.size, growth.index), (1, 3 << 30, 4));
        assert_eq!(device.growth(1, 3 << 30), Some(growth), "until the kernel has taken it");
        device.grew(3 << 30);
        assert_eq!((device.growth(1, 3 << 30), device.size()), (None, 3 << 30));
    }

    #[test]
    fn the_kernel_is_promised_what_gateways_do() {
        let flags = TransmissionFlags(FLAGS);
        assert!(flags.has(TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_FUA));
        assert!(!flags.has(TransmissionFlags::READ_ONLY));
    }
}
