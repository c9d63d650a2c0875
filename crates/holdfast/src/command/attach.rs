//! `holdfast attach`: makes a set's volumes available as devices on this host, and shows or ends that.
//!
//! Owns: output, exit codes. Does not own: arguments (`cli`), the connection and the devices (crate `attach`).

use super::console::tell;
use super::text::epoch_text;
use crate::cli::{AttachArgs, Common, GIVE_TLS};
use crate::exit::CliError;
use crate::{output, serve};
use holdfast_attach::{AttachError, Bounds, DirError, Ended, KernelOptions, Options, Phase, RunDir, Status};
use holdfast_types::Owner;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Poll interval of `--detach`.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);

/// Default log filter: includes the phases of an attached set.
pub const LOG: &str = "warn,holdfast_attach=info,holdfast_tls=info";

/// Advice if the set is not attached.
const NOT_ATTACHED: &str = "`holdfast attach SET` attaches it; --dir names another run directory";

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
    Owner::new(name.trim()).map_err(|error| {
        CliError::usage("this host's name cannot be used as owner").because(&error).next("give an owner with --owner")
    })
}

async fn attach(common: &Common, args: AttachArgs, dir: PathBuf) -> Result<(), CliError> {
    let owner = args.owner.map_or_else(host, Ok)?;
    let requests = usize::try_from(args.queue_requests).unwrap_or(usize::MAX);
    let options = Options {
        set: args.set,
        owner,
        locality: args.locality,
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
    serve::ignore_hangup()?;
    // Its token, its TLS key and the database's pages pass through this process.
    serve::without_core_dumps();
    let stop = CancellationToken::new();
    let signalled = stop.clone();
    let signals = serve::stop_signal();
    serve::follow_certificate(&common.dialer);
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
            tracing::warn!(%error, "the service manager was not notified that the devices are ready");
        }
    };
    match holdfast_attach::run(options, stop, ready).await {
        Ok(Ended::Detached) => {
            tell(common, &format!("{set} is detached; this process holds no lease of it"));
            Ok(())
        }
        Ok(Ended::Fenced { by }) => Err(fenced(set.as_str(), by.as_deref())),
        Err(error) => Err(failed(&error)),
    }
}

/// Sends `READY=1` to the service manager (systemd's `Type=notify`).
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
        "data written on this host since then is not in the set: detach, attach again when the lease is free, and mount or import again",
    )
}

fn failed(error: &AttachError) -> CliError {
    match error {
        AttachError::Refused(refusal) => CliError::from_refusal(refusal),
        AttachError::Tls(_) => CliError::usage("").because(error).next(GIVE_TLS),
        AttachError::Unreachable { .. } => CliError::unreachable("").because(error).next(
            "check --api (or HOLDFAST_API), and that more than half of the gateways are running; --timeout allows more time",
        ),
        AttachError::Dir(DirError::Attached { .. }) => {
            CliError::failed("").because(error).next("`holdfast attach SET --status` shows it, and --detach detaches it")
        }
        AttachError::Dir(_) => CliError::failed("").because(error).next("use another run directory with --dir"),
        _ => CliError::failed("").because(error),
    }
}

/// Process and status from the run directory of an attached set.
fn look(dir: &Path) -> Result<(Pid, Status), CliError> {
    let running =
        holdfast_attach::running(dir).map_err(|error| CliError::failed("").because(&error).next(NOT_ATTACHED))?;
    let starting = || CliError::failed(format!("{}: process {running} is still starting", dir.display()));
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
    tell(common, &format!("disconnected {count} devices of {}", args.set));
    Ok(())
}

async fn detach(common: &Common, dir: &Path) -> Result<(), CliError> {
    let deadline = Instant::now() + common.timeout();
    let (pid, status) = look(dir)?;
    if status.phase != Phase::Fenced
        && let Some(device) = status.volumes.iter().filter_map(|volume| volume.device.as_deref()).find(|d| is_in_use(d))
    {
        return Err(CliError::refused(format!("{device} is in use: data that it has not written yet would be lost"))
            .next("unmount it or export its pool first"));
    }
    kill_process(pid, Signal::TERM)
        .map_err(|error| CliError::failed(format!("process {pid:?} cannot be signalled")).because(&error))?;
    while !matches!(holdfast_attach::running(dir), Err(DirError::NotAttached { .. })) {
        if Instant::now() >= deadline {
            let limit = common.timeout();
            return Err(CliError::unknown(format!("not detached within {limit:?}")).next(
                "it continues in the background: `--status` shows outstanding requests; --timeout allows more time",
            ));
        }
        sleep(LOOK_INTERVAL).await;
    }
    let status = RunDir::status(dir).map_err(|error| CliError::failed("").because(&error))?;
    output::show(common.output, &status, || format!("{} is {}", status.set, status.phase))?;
    match status.phase {
        Phase::Detached => Ok(()),
        Phase::Fenced => Err(fenced(&status.set, status.fenced_by.as_deref())),
        phase => Err(CliError::failed(format!("the process ended in phase {phase}; its lease will expire"))
            .next("see the output of that process")),
    }
}

/// Whether a block device is mounted or opened exclusively.
fn is_in_use(device: &str) -> bool {
    let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(device, exclusive, Mode::empty()).is_err_and(|error| error == rustix::io::Errno::BUSY)
}

fn describe(status: &Status) -> String {
    let gateway = if status.gateway.is_empty() { "-" } else { status.gateway.as_str() };
    let mut text = format!(
        "{} is {} for {} at {gateway}, epoch {}",
        status.set,
        status.phase,
        status.owner,
        epoch_text(status.epoch)
    );
    if let Some(loss) = &status.last_loss {
        let longest = status.longest_outage_ms.unwrap_or(0);
        text.push_str(&format!(
            "\n{} reconnects, the longest took {longest} ms; cause of the last: {loss}",
            status.reconnects
        ));
    }
    let rows = status.volumes.iter().map(|volume| {
        let device = volume.device.clone().unwrap_or_default();
        [volume.name.clone(), output::bytes(volume.size_bytes), device, volume.socket.clone()]
    });
    for volume in &status.volumes {
        if let (Some(bytes), Some(device)) = (volume.device_bytes, &volume.device) {
            let (has, still) = (output::bytes(volume.size_bytes), output::bytes(bytes));
            text.push_str(&format!("\nvolume {} grew to {has}, {device} still has {still}: ", volume.name));
            text.push_str("kernel devices follow within seconds, others when they are detached and attached again");
        }
    }
    let lost = status.volumes.iter().filter_map(|volume| volume.lost.as_deref());
    for why in lost {
        text.push_str(&format!("\n{why}: its device fails, the others continue; detach, then attach again"));
    }
    format!("{text}\n{}", output::table(["VOLUME", "SIZE", "DEVICE", "SOCKET"], rows))
}
