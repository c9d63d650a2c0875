//! `holdfast standby`: a read-only PostgreSQL on a local copy of a snapshot.
//!
//! Owns: output, exit codes. Does not own: arguments (`cli`), the steps of a refresh (crate `agent`), the copy (crate
//! `attach`).

use super::console::tell;
use super::text::since;
use crate::cli::{Common, CopyArgs, SnapshotArg, StandbyCommand};
use crate::exit::CliError;
use crate::{output, serve};
use holdfast_attach::{SnapshotCopyError, SnapshotCopyOptions, SnapshotCopyStatus, run_snapshot_copy};
use holdfast_standby::config::{self, StandbyConfig};
use holdfast_standby::{Standby, StandbyView, Which};
use std::path::Path;
use tokio_util::sync::CancellationToken;

/// Default log filter of a standby.
pub const LOG: &str = "warn,holdfast_agent=info,holdfast_attach=info,holdfast_standby=info,holdfast=info";

/// Connections of nbdfuse to the socket of a copy.
const CONNECTIONS: u8 = 4;

/// Runs `holdfast standby`.
pub async fn run(common: &Common, command: StandbyCommand) -> Result<(), CliError> {
    match command {
        StandbyCommand::Run { config, check } => keep(common, &config.config, check).await,
        StandbyCommand::Refresh { config, snapshot, latest } => {
            let which = match (snapshot, latest) {
                (Some(name), _) => Which::Named(name.to_string()),
                (None, true) => Which::Latest,
                (None, false) => Which::New,
            };
            refresh(common, &config.config, &which).await
        }
        StandbyCommand::Status { config } => status(common, &config.config).await,
        StandbyCommand::Stop { config } => stop(common, &config.config).await,
        StandbyCommand::Config => {
            output::say(&config::sample().map_err(|error| CliError::failed("sample").because(&error))?);
            Ok(())
        }
        StandbyCommand::Copy(args) => copy(common, args).await,
    }
}

fn load(path: &Path) -> Result<StandbyConfig, CliError> {
    StandbyConfig::load(path).map_err(|error| {
        CliError::usage("settings")
            .because(&error)
            .next("`holdfast standby config` prints a file that explains every setting")
    })
}

fn open(path: &Path) -> Result<Standby, CliError> {
    Standby::new(&load(path)?).map_err(CliError::failed)
}

async fn keep(common: &Common, path: &Path, check: bool) -> Result<(), CliError> {
    serve::without_own_core_dumps();
    let config = load(path)?;
    if check {
        tell(common, &format!("{}: the settings are valid", path.display()));
        return Ok(());
    }
    serve::ignore_hangup()?;
    let stop = async {
        match serve::stop_signal().await {
            Ok(which) => tracing::info!(signal = which, "stopping"),
            Err(error) => tracing::error!(error = error.message, "stopping"),
        }
    };
    holdfast_standby::run(config, stop).await.map_err(CliError::failed)
}

async fn refresh(common: &Common, path: &Path, which: &Which) -> Result<(), CliError> {
    let standby = open(path)?;
    if standby.view().await.map_err(CliError::failed)?.running {
        return Err(CliError::refused("`holdfast standby run` is running, and refreshes the standby by itself")
            .next("wait for its next refresh (refresh_every_s), or restart it: it begins with a refresh"));
    }
    let refreshed = standby.refresh(which).await.map_err(|why| {
        CliError::failed(why).next("the previous data is still served: see `holdfast standby status`; the messages of PostgreSQL are in postgresql.log below `dir`")
    })?;
    output::show(common.output, &refreshed, || {
        format!("now serves {}; the refresh took {} ms", refreshed.snapshot, refreshed.took_ms)
    })
}

async fn status(common: &Common, path: &Path) -> Result<(), CliError> {
    let view = open(path)?.view().await.map_err(CliError::failed)?;
    output::show(common.output, &view, || describe(&view))
}

async fn stop(common: &Common, path: &Path) -> Result<(), CliError> {
    let standby = open(path)?;
    let view = standby.view().await.map_err(CliError::failed)?;
    if view.running {
        return Err(CliError::refused("`holdfast standby run` is running, and would start it again")
            .next("stop that process (systemctl stop): it stops everything"));
    }
    standby.stop().await.map_err(CliError::failed)?;
    tell(common, &format!("standby {} is stopped", view.name));
    Ok(())
}

/// The age of the data, for people.
fn age(view: &StandbyView) -> String {
    match view.age_ms.map(|age| age / 1000) {
        None => String::new(),
        Some(seconds @ 0..=119) => format!("{seconds} s"),
        Some(seconds @ 120..=7199) => format!("{} min", seconds / 60),
        Some(seconds) => format!("{} h", seconds / 3600),
    }
}

fn describe(view: &StandbyView) -> String {
    let state = if view.serving { "serving" } else { "down" };
    let snapshot = view.current.as_ref().map_or(String::new(), |current| format!("{}@{}", view.set, current.snapshot));
    let scratch = format!("{} of {}", output::bytes(view.scratch_bytes), output::bytes(view.scratch_max_bytes));
    let row = [
        view.name.clone(),
        state.to_string(),
        age(view),
        snapshot,
        view.port.to_string(),
        scratch.replace(' ', "_").replace("_of_", "/"),
        view.gateway.clone(),
    ];
    let mut text = output::table(["STANDBY", "STATE", "AGE", "SNAPSHOT", "PORT", "SCRATCH", "READS FROM"], [row]);
    if let Some(failure) = &view.failure {
        text.push_str(&format!("\nthe last refresh failed {}: {}", since(failure.unix_ms), failure.why));
    }
    text
}

async fn copy(common: &Common, args: CopyArgs) -> Result<(), CliError> {
    let SnapshotArg { set, name } = args.snapshot;
    let options = SnapshotCopyOptions {
        set,
        snapshot: name,
        api: common.api.clone(),
        dialer: common.dialer.clone(),
        dir: args.dir,
        scratch: args.scratch,
        scratch_max: args.scratch_max.0,
        device: args.device.into(),
        connections: CONNECTIONS,
        patience: common.timeout(),
    };
    serve::ignore_hangup()?;
    let stop = CancellationToken::new();
    let signalled = stop.clone();
    let signals = serve::stop_signal();
    serve::follow_certificate(&common.dialer);
    tokio::spawn(async move {
        if let Err(error) = signals.await {
            tracing::error!(error = error.message, "stopping");
        }
        signalled.cancel();
    });
    let ready = |status: &SnapshotCopyStatus| {
        let _ = output::show(common.output, status, || describe_copy(status));
    };
    run_snapshot_copy(options, stop, ready).await.map_err(|error| match &error {
        SnapshotCopyError::Refused(refusal) => CliError::from_refusal(refusal),
        SnapshotCopyError::Unreachable { .. } => CliError::unreachable("")
            .because(&error)
            .next("check --api (or HOLDFAST_API), and that the gateways are running; --timeout allows more time"),
        SnapshotCopyError::NoSnapshot { .. } | SnapshotCopyError::Pending { .. } => {
            CliError::refused("").because(&error).next("`holdfast snapshot list SET` shows all")
        }
        SnapshotCopyError::Kernel => CliError::usage("--device").because(&error),
        _ => CliError::failed("").because(&error),
    })
}

fn describe_copy(status: &SnapshotCopyStatus) -> String {
    let rows = status.volumes.iter().map(|volume| {
        let device = volume.device.clone().unwrap_or_default();
        [volume.name.clone(), output::bytes(volume.size_bytes), device, volume.socket.clone()]
    });
    let table = output::table(["VOLUME", "SIZE", "DEVICE", "SOCKET"], rows);
    format!("copy of {}@{} (created {})\n{table}", status.set, status.snapshot, since(status.snapshot_unix_ms))
}
