//! `holdfast attach`: a set's devices on the host that uses them, and a look at them from outside.
//!
//! Owns: its arguments, what it prints, how it ends as an exit code. Does not own: the keeper (crate `attach`).

use super::{epoch_text, tell};
use crate::cli::{self, Common};
use crate::exit::CliError;
use crate::{duration, output, serve};
use clap::Args;
use holdfast_attach::{
    AttachError, Bounds, DeviceKind, DirError, Ended, KernelOptions, Options, Phase, RunDir, Status,
};
use holdfast_types::{ByteSize, Name, Owner};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// How often `--detach` looks whether the other process has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);

/// What an attached set logs by default: its phases are what a journal is read for.
pub const LOG: &str = "warn,holdfast_attach=info";

/// Requests that one volume may have unanswered.
const QUEUE_REQUESTS: u32 = 1024;

const ATTACH: &str = "\
Examples:
  holdfast attach demo --api 10.0.0.1:7400,10.0.0.2:7400
      takes the lease in this host's name, makes /dev/nbdN or /dev/loopN for each volume, stays in the foreground
  holdfast attach demo --device none --dir /tmp/demo
      Unix sockets only; connect with nbd+unix:///demo/vol1?socket=/tmp/demo/vol1.sock
  holdfast attach demo --output json
      prints one line once the devices can be used, as --status does
  holdfast attach demo --status
  holdfast attach demo --detach

When the gateway that serves is lost, requests wait until another one serves, and go on there: no error, nothing lost.
When another owner takes the set, every request fails from then on, for good: this process stays until the devices are let go
(stop what uses them, then --detach) and ends with 7.

SIGTERM and SIGINT detach: answers that are on their way are waited for, then the lease is given back. Unmount first.
Devices: `kernel` is the kernel's nbd driver, `nbdfuse` a loop device over nbdfuse's file, `auto` the first of them that is there.
The kernel's devices outlive this process: started again for the same owner and directory, it goes on with them, and what waited meanwhile is carried out.
";

/// `holdfast attach`.
#[derive(Debug, Args)]
#[command(after_long_help = cli::with_codes(ATTACH))]
pub struct AttachArgs {
    /// The set
    pub set: Name,
    /// In whose name the lease is held [default: this host's name]
    #[arg(long, value_parser = cli::owner)]
    pub owner: Option<Owner>,
    /// Run directory: lock, status, one Unix socket per volume [default: /run/holdfast/SET]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Block devices to make
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    pub device: Device,
    /// How long the lease lasts without a renewal; it is renewed six times as often [default: the gateway's]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub ttl: Option<Duration>,
    /// Take the set from whoever holds it: each of its writes is refused from then on
    #[arg(long)]
    pub force: bool,
    /// Connections per volume to the gateway
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub connections: u8,
    /// Requests of one volume that may be unanswered; beyond it nothing more is read from its users
    #[arg(long, value_name = "COUNT", default_value_t = QUEUE_REQUESTS, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub queue_requests: u32,
    /// The same in bytes; each volume may take so much memory while no gateway serves
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub queue_bytes: ByteSize,
    /// Sockets between a kernel device and this process; with more than one the kernel replaces those whose request is older than 30 s
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub kernel_sockets: u8,
    /// How long a kernel device waits for a new process after the death of this one; then its requests fail
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse)]
    pub dead_timeout: Duration,
    /// Take away the kernel devices that a process which is gone left behind: every request on them fails
    #[arg(long, conflicts_with_all = ["status", "detach", "ttl", "force"])]
    pub abandon: bool,
    /// Show the set that is attached here, and stop
    #[arg(long, conflicts_with_all = ["detach", "owner", "ttl", "force"])]
    pub status: bool,
    /// End the process that has the set attached here, in good order, and wait for it
    #[arg(long, conflicts_with_all = ["owner", "ttl", "force"])]
    pub detach: bool,
}

/// `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The kernel's driver where it is loaded, else nbdfuse and a loop device
    #[default]
    Auto,
    /// Unix sockets only
    None,
    /// nbdfuse and a loop device
    Nbdfuse,
    /// The kernel's nbd driver
    Kernel,
}

impl From<Device> for DeviceKind {
    fn from(device: Device) -> Self {
        match device {
            Device::Auto => Self::Auto,
            Device::None => Self::None,
            Device::Nbdfuse => Self::Nbdfuse,
            Device::Kernel => Self::Kernel,
        }
    }
}

/// Runs `holdfast attach`.
pub async fn run(common: &Common, args: AttachArgs) -> Result<(), CliError> {
    let dir = args.dir.clone().unwrap_or_else(|| holdfast_attach::default_dir(&args.set));
    match (args.status, args.detach, args.abandon) {
        (true, ..) => status(common, &dir),
        (_, true, _) => detach(common, &dir).await,
        (.., true) => abandon(common, &args, &dir).await,
        _ => attach(common, args, dir).await,
    }
}

/// This host's name.
fn host() -> Result<Owner, CliError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Owner::new(name.trim())
        .map_err(|error| CliError::usage("this host's name is no owner").because(&error).next("give one with --owner"))
}

async fn attach(common: &Common, args: AttachArgs, dir: PathBuf) -> Result<(), CliError> {
    let owner = args.owner.map_or_else(host, Ok)?;
    let requests = usize::try_from(args.queue_requests).unwrap_or(usize::MAX);
    let options = Options {
        set: args.set,
        owner,
        api: common.api.clone(),
        dialer: common.dialer.clone(),
        dir,
        ttl: args.ttl,
        force: args.force,
        connections: args.connections,
        bounds: Bounds { requests, bytes: args.queue_bytes.0 },
        device: args.device.into(),
        kernel: KernelOptions { sockets: args.kernel_sockets, dead_timeout: args.dead_timeout },
        patience: common.timeout(),
    };
    let stop = CancellationToken::new();
    let signalled = stop.clone();
    let signals = serve::stop_signal();
    tokio::spawn(async move {
        match signals.await {
            Ok(which) => tracing::info!(signal = which, "detaching"),
            Err(error) => tracing::error!(error = error.message, "detaching"),
        }
        signalled.cancel();
    });
    let format = common.output;
    let set = options.set.clone();
    let ready = |status: &Status| {
        let _ = output::show(format, status, || describe(status));
        if let Err(error) = tell_service_manager() {
            tracing::warn!(%error, "the service manager could not be told that the devices are ready");
        }
    };
    match holdfast_attach::run(options, stop, ready).await {
        Ok(Ended::Detached) => {
            tell(common, &format!("{set} is detached, its lease given back"));
            Ok(())
        }
        Ok(Ended::Fenced { by }) => Err(fenced(set.as_str(), by.as_deref())),
        Err(error) => Err(failed(&error)),
    }
}

/// Says `READY=1` to the service manager that started us with a socket for it (systemd's `Type=notify`).
fn tell_service_manager() -> std::io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let socket = UnixDatagram::unbound()?;
    let ready = b"READY=1\n";
    match name.as_encoded_bytes().strip_prefix(b"@") {
        Some(hidden) => socket.send_to_addr(ready, &SocketAddr::from_abstract_name(hidden)?)?,
        None => socket.send_to(ready, Path::new(&name))?,
    };
    Ok(())
}

fn fenced(set: &str, by: Option<&str>) -> CliError {
    let by = by.unwrap_or("another owner");
    CliError::fenced(format!("{set} was fenced by {by}")).next(
        "nothing written here since then is in the set; attach anew (the lease must be free) and import or mount from scratch",
    )
}

fn failed(error: &AttachError) -> CliError {
    match error {
        AttachError::Refused(refusal) => CliError::from_refusal(refusal),
        AttachError::Unreachable { .. } => CliError::unreachable("").because(error).next(
            "check --api (or HOLDFAST_API) and that more than half of the gateways run; --timeout gives it longer",
        ),
        AttachError::Dir(DirError::Attached { .. }) => {
            CliError::failed("").because(error).next("`holdfast attach SET --status` shows it, --detach ends it")
        }
        AttachError::Dir(_) => CliError::failed("").because(error).next("--dir names another run directory"),
        _ => CliError::failed("").because(error),
    }
}

/// What the run directory of an attached set shows.
fn look(dir: &Path) -> Result<(Pid, Status), CliError> {
    let running = holdfast_attach::running(dir).map_err(|error| CliError::failed("").because(&error))?;
    let starting = || CliError::failed(format!("{}: process {running} is only starting", dir.display()));
    let pid = Pid::from_raw(running.cast_signed()).ok_or_else(starting)?;
    let status = RunDir::status(dir).ok().filter(|status| status.pid == running).ok_or_else(starting)?;
    Ok((pid, status))
}

fn status(common: &Common, dir: &Path) -> Result<(), CliError> {
    let (_, status) = look(dir)?;
    output::show(common.output, &status, || describe(&status))?;
    match status.phase {
        Phase::Fenced => Err(fenced(&status.set, status.fenced_by.as_deref())),
        _ => Ok(()),
    }
}

async fn abandon(common: &Common, args: &AttachArgs, dir: &Path) -> Result<(), CliError> {
    let owner = args.owner.clone().map_or_else(host, Ok)?;
    let count = holdfast_attach::abandon(dir, &args.set, &owner).await.map_err(|error| failed(&error))?;
    tell(common, &format!("{count} devices of {} were disconnected", args.set));
    Ok(())
}

async fn detach(common: &Common, dir: &Path) -> Result<(), CliError> {
    let deadline = Instant::now() + common.timeout();
    let (pid, status) = look(dir)?;
    if status.phase != Phase::Fenced
        && let Some(device) = status.volumes.iter().filter_map(|volume| volume.device.as_deref()).find(|d| is_in_use(d))
    {
        return Err(CliError::refused(format!("{device} is in use: what it was not told yet would be lost"))
            .next("unmount it, or export its pool, first"));
    }
    kill_process(pid, Signal::TERM)
        .map_err(|error| CliError::failed(format!("process {pid:?} cannot be told")).because(&error))?;
    while !matches!(holdfast_attach::running(dir), Err(DirError::NotAttached { .. })) {
        if Instant::now() >= deadline {
            let limit = common.timeout();
            return Err(CliError::unknown(format!("not detached within {limit:?}"))
                .next("it goes on by itself: `--status` shows what is unanswered; --timeout waits longer"));
        }
        sleep(LOOK_INTERVAL).await;
    }
    let status = RunDir::status(dir).map_err(|error| CliError::failed("").because(&error))?;
    output::show(common.output, &status, || format!("{} is {}", status.set, status.phase))?;
    match status.phase {
        Phase::Detached => Ok(()),
        Phase::Fenced => Err(fenced(&status.set, status.fenced_by.as_deref())),
        phase => Err(CliError::failed(format!("it ended while {phase}: its lease expires by itself"))
            .next("its own output says why")),
    }
}

/// Whether a block device is mounted or otherwise taken: the kernel gives it to nobody else then.
fn is_in_use(device: &str) -> bool {
    let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(device, exclusive, Mode::empty()).is_err_and(|error| error == rustix::io::Errno::BUSY)
}

fn describe(status: &Status) -> String {
    let gateway = if status.gateway.is_empty() { "-" } else { status.gateway.as_str() };
    let mut text = format!(
        "{} is {} for {} at {gateway} under {}",
        status.set,
        status.phase,
        status.owner,
        epoch_text(status.epoch)
    );
    if let Some(loss) = &status.last_loss {
        let longest = status.longest_outage_ms.unwrap_or(0);
        text.push_str(&format!("\n{} reconnects, the longest took {longest} ms; the last: {loss}", status.reconnects));
    }
    let rows = status.volumes.iter().map(|volume| {
        let device = volume.device.clone().unwrap_or_default();
        [volume.name.clone(), output::bytes(volume.size_bytes), device, volume.socket.clone()]
    });
    for volume in &status.volumes {
        if let (Some(bytes), Some(device)) = (volume.device_bytes, &volume.device) {
            let (has, still) = (output::bytes(volume.size_bytes), output::bytes(bytes));
            text.push_str(&format!("\nvolume {} grew to {has}, {device} has {still} still: ", volume.name));
            text.push_str("kernel devices follow within seconds, others when they are detached and attached anew");
        }
    }
    let lost = status.volumes.iter().filter_map(|volume| volume.lost.as_deref());
    for why in lost {
        text.push_str(&format!("\n{why}: its device fails, the others go on; detach, then attach anew"));
    }
    format!("{text}\n{}", output::table(["VOLUME", "SIZE", "DEVICE", "SOCKET"], rows))
}
