//! The log on standard error: its format, and its filter, which can change while a process runs.

use crate::cli::Common;
use crate::exit::CliError;
use crate::output::LogFormat;
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::reload::Handle;

/// Default filter of a gateway. openraft warns of every unanswered heartbeat of a dead peer; the gateway logs the
/// consequences itself.
pub const GATEWAY: &str = "info,openraft=error";

/// Replaces the filter, or tells why it cannot.
type Replace = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// How to replace the filter of this process's log.
static REPLACE: OnceLock<Replace> = OnceLock::new();

/// A filter.
///
/// # Errors
/// The text is none.
pub fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(text)
}

/// Starts the log, with the filter `default` unless the arguments have one.
///
/// # Errors
/// The filter of the arguments is none.
pub fn start(common: &Common, default: &str) -> Result<(), CliError> {
    let text = common.log.as_deref().unwrap_or(default);
    let filter = filter(text).map_err(|error| CliError::usage(format!("--log {text:?}")).because(&error))?;
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // A log line that cannot be written (full disk, closed pipe) is dropped: reporting that on the same stderr would
    // panic.
    let log = log.log_internal_errors(false);
    // Tests run several commands in one process: the first log stays.
    let (started, replace) = match common.log_format {
        LogFormat::Text => {
            let log = log.with_filter_reloading();
            let replace = replacing(log.reload_handle());
            (log.try_init(), replace)
        }
        LogFormat::Json => {
            let log = log.json().with_filter_reloading();
            let replace = replacing(log.reload_handle());
            (log.try_init(), replace)
        }
    };
    if started.is_ok() {
        let _ = REPLACE.set(replace);
    }
    Ok(())
}

fn replacing<S: 'static>(handle: Handle<EnvFilter, S>) -> Replace {
    Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
}

/// Filters the log by `text` from now on.
pub fn follow(text: &str) {
    let replaced = filter(text).map_err(|error| error.to_string()).and_then(|filter| match REPLACE.get() {
        Some(replace) => replace(filter),
        None => Ok(()),
    });
    if let Err(why) = replaced {
        tracing::error!(filter = text, why, "the log's filter cannot be changed");
    }
}
