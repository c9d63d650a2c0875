//! `holdfast gateway`: reads the settings from the file, `--set` and options, and runs the gateway.

use crate::cli::{Common, GatewayRunArgs};
use crate::exit::CliError;
use crate::{log, output, serve};
use holdfast_gateway::config::live::Live;
use holdfast_gateway::config::{self, GatewayConfig};
use holdfast_host::audit::can_be_at;
use holdfast_host::unix_ms;
use holdfast_tls::files::{self, SETTINGS_BYTES_MAX};
use rustix::process::Signal;
use std::path::Path;

pub const EXPLAINED: &str = "`holdfast gateway sample-config` explains every setting";

/// `holdfast gateway sample-config`.
pub fn sample_config() -> Result<(), CliError> {
    let text = config::sample().map_err(|error| CliError::failed("the sample").because(&error))?;
    output::say(&text);
    Ok(())
}

/// `holdfast gateway run`.
pub async fn run(common: &Common, args: GatewayRunArgs) -> Result<(), CliError> {
    if let Some(parent) = args.die_with {
        end_with_parent(parent)?;
    }
    let config = settings(&args)?;
    if !config.core_dumps {
        serve::without_core_dumps();
    }
    holdfast_gateway::raise_descriptors();
    // An option outranks the file.
    let by_file = common.log.is_none();
    if by_file {
        follow_log(&config);
    }
    let live = Live::new(config.clone(), unix_ms() / 1000);
    let again = live.clone();
    let reload = move || {
        if take(&again, read_again(&args, &again)) && by_file {
            follow_log(&again.now());
        }
    };
    serve::gateway(config, live, reload).await
}

fn follow_log(config: &GatewayConfig) {
    log::follow(config.log.as_deref().unwrap_or(log::GATEWAY));
}

/// The settings from the arguments, for a gateway that runs. An audit log that cannot be written where they say is
/// found before anything of them is in use: a pair's gateway that stands by would otherwise find it at its takeover.
fn read_again(args: &GatewayRunArgs, live: &Live) -> Result<GatewayConfig, CliError> {
    let (config, now) = (settings(args)?, live.now());
    if let (Some(log), Some(before)) = (&config.audit.log, &now.audit.log)
        && log != before
    {
        can_be_at(log).map_err(|error| CliError::usage(format!("{}: audit.log", from(args))).because(&error))?;
    }
    Ok(config)
}

/// Takes settings that were read again, and logs what came of it. Returns whether they are in use.
fn take(live: &Live, read: Result<GatewayConfig, CliError>) -> bool {
    match live.take(read.map_err(|error| error.message), unix_ms() / 1000) {
        Ok(changes) if changes.restart.is_empty() => {
            tracing::info!(changed = changes.applied.join(", "), "the settings were read again and are in use");
            true
        }
        Ok(changes) => {
            let (changed, needs_restart) = (changes.applied.join(", "), changes.restart.join(", "));
            tracing::warn!(
                changed,
                needs_restart,
                "the settings were read again; some are used from the next start on"
            );
            true
        }
        Err(why) => {
            tracing::error!(why, "the settings cannot be used: nothing was changed, those read before stay in use");
            false
        }
    }
}

/// The validated settings from the arguments.
pub fn settings(args: &GatewayRunArgs) -> Result<GatewayConfig, CliError> {
    let config = unchecked(args)?;
    config.validate().map_err(|error| CliError::usage(from(args)).because(&error).next(EXPLAINED))?;
    match wrong_filter(&config) {
        Some(why) => Err(CliError::usage(format!("{}: {why}", from(args))).next(EXPLAINED)),
        None => Ok(config),
    }
}

/// What is wrong with the filter of the log.
pub fn wrong_filter(config: &GatewayConfig) -> Option<String> {
    let text = config.log.as_deref()?;
    let error = log::filter(text).err()?;
    Some(format!("log: found {text:?} ({error}), expected a filter such as {:?}", log::GATEWAY))
}

/// Where the settings come from, for people.
pub fn from(args: &GatewayRunArgs) -> String {
    args.config.as_deref().map_or("settings".to_string(), |path| path.display().to_string())
}

/// The settings from the arguments. Their values are not checked.
pub fn unchecked(args: &GatewayRunArgs) -> Result<GatewayConfig, CliError> {
    let mut table = match &args.config {
        None => toml::Table::new(),
        Some(path) => read(path)?,
    };
    put_all(&mut table, &args.set)?;
    let says_snapshots = table.contains_key("snapshot_exports");
    let mut config: GatewayConfig =
        table.try_into().map_err(|error| CliError::usage(from(args)).because(&error).next(EXPLAINED))?;
    apply(args, &mut config);
    // R10: a word of its own about snapshots outranks an option for volumes and snapshots.
    if args.plain_exports && !says_snapshots {
        config.snapshot_exports = config::SnapshotExports::Open;
    }
    Ok(config)
}

fn read(path: &Path) -> Result<toml::Table, CliError> {
    let text = files::read_text(path, SETTINGS_BYTES_MAX)
        .map_err(|error| CliError::usage(format!("{}: cannot be read", path.display())).because(&error))?;
    config::read(&text).map_err(|mistakes| {
        let error = config::ConfigError::Parse { path: path.into(), mistakes };
        CliError::usage("").because(&error).next(EXPLAINED)
    })
}

/// Applies settings one by one, so that an error names the wrong one.
fn put_all(table: &mut toml::Table, given: &[(String, String)]) -> Result<(), CliError> {
    given.iter().try_for_each(|(key, value)| {
        put(table, key, value)?;
        let wrong = |why: &str| CliError::usage(format!("--set {key}: {why}")).next(EXPLAINED);
        config::known(key).map_err(|why| wrong(&why))?;
        let tried: Result<GatewayConfig, toml::de::Error> = table.clone().try_into();
        tried.map(drop).map_err(|error| wrong(error.message()))
    })
}

/// `config` with `KEY=VALUE` settings applied; not validated.
pub fn with_settings(config: GatewayConfig, given: &[(String, String)]) -> Result<GatewayConfig, CliError> {
    let failed = |error: &(dyn std::error::Error + 'static)| CliError::usage("settings").because(error);
    let mut table = toml::Table::try_from(config).map_err(|error| failed(&error))?;
    put_all(&mut table, given)?;
    table.try_into().map_err(|error: toml::de::Error| failed(&error))
}

/// Applies a setting such as `journal.bound=2GiB`. A value that is not valid TOML is taken as a string, to avoid double
/// quoting in a shell.
fn put(table: &mut toml::Table, key: &str, text: &str) -> Result<(), CliError> {
    let parsed = format!("value = {text}").parse::<toml::Table>().ok().and_then(|mut parsed| parsed.remove("value"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(text.to_string()));
    let (section, field) = match key.split_once('.') {
        None => (table, key),
        Some((section, field)) => {
            let entry = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            let section_table = entry.as_table_mut();
            (section_table.ok_or_else(|| CliError::usage(format!("--set {key}: {section} is not a section")))?, field)
        }
    };
    section.insert(field.to_string(), value);
    Ok(())
}

fn apply(args: &GatewayRunArgs, config: &mut GatewayConfig) {
    fn set<T: Clone>(field: &mut T, given: &Option<T>) {
        if let Some(given) = given {
            *field = given.clone();
        }
    }
    set(&mut config.name, &args.name);
    set(&mut config.region, &args.region);
    set(&mut config.data_dir, &args.data_dir.as_deref().map(absolute));
    set(&mut config.api_listen, &args.api_listen);
    set(&mut config.peer_listen, &args.peer_listen);
    set(&mut config.rtt_ms, &args.rtt_ms);
    config.nbd_listen = args.nbd_listen.or(config.nbd_listen);
    config.nbd_unix = args.nbd_unix.clone().or(config.nbd_unix.take());
    config.http_listen = args.http_listen.or(config.http_listen);
    config.plain_exports |= args.plain_exports;
    if let Some(file) = &args.key_file {
        // The option replaces all key sources of the file.
        config.key = config::KeyConfig { file: Some(file.clone()), ..Default::default() };
    }
}

/// A path on the command line is relative to the current directory.
fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The kernel kills this process when `parent` ends. SIGKILL also ends a stopped process, and R1 needs no clean
/// shutdown.
fn end_with_parent(parent: u32) -> Result<(), CliError> {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    set.map_err(|error| CliError::failed("cannot watch the parent process").because(&error))?;
    // It may have ended before the call above.
    let found = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    if found != parent {
        return Err(CliError::failed(format!("parent: found process {found}, expected {parent}: it has ended")));
    }
    Ok(())
}

#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;
