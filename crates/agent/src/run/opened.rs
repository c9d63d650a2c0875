//! What an agent reads at its start: its TLS files, its token, its history.

use super::error::{RunError, dir_error};
use crate::config::AgentConfig;
use crate::drivers::pool;
use crate::history::History;
use crate::host::Host;
use crate::listen;
use holdfast_tls::files::{self, SECRET_BYTES_MAX};
use holdfast_tls::{Role, Tls};
use std::path::Path;
use std::sync::Arc;

/// Looks whether the TLS files can be used. An agent that finds something of an earlier one goes on until they can: no
/// handshake of its door succeeds, nor one with a gateway or another agent (LISTEN-L3, LIVE-C4). attach has read them
/// before, and renews the lease.
pub(super) async fn check_tls<H: Host>(tls: Option<&Tls>, host: &H) -> Result<(), RunError> {
    let Some(why) = tls.and_then(Tls::trouble) else { return Ok(()) };
    if listen::is_first(host).await {
        return Err(RunError::Settings(format!("[tls]: {why}")));
    }
    tracing::error!(
        why,
        "[tls]: the files cannot be used: the agent reaches no gateway and no other agent, and nobody reaches it over \
         TLS; all other duties go on, and the files are read again every few seconds"
    );
    Ok(())
}

/// The token in this file.
pub(super) fn token_in(path: &Path) -> Result<Arc<str>, RunError> {
    let text = files::read_secret_text(path, SECRET_BYTES_MAX).map_err(|error| dir_error(path)(error.into()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(RunError::Settings(format!("{}: found nothing, expected a token", path.display())));
    }
    Ok(Arc::from(token))
}

/// The token of these settings. Every agent goes on without it (LISTEN-L3): PostgreSQL needs none.
pub(super) fn token_of(config: &AgentConfig) -> Option<Arc<str>> {
    match config.http.token_file.as_deref().map(token_in).transpose() {
        Ok(token) => token,
        Err(error) => {
            tracing::error!(%error, "http.token_file: the agent runs without a token, and refuses commands over TCP until it is restarted");
            None
        }
    }
}

/// Looks at the path of the pool's mount before anything is attached for it.
pub(super) fn check_mount(config: &AgentConfig) -> Result<(), RunError> {
    pool::mount_without_links(&config.pool).map_err(RunError::Settings)
}

/// Reads the token, the TLS files and the collector's certificate of these settings, and looks at the path of the
/// pool's mount, as an agent does at its start. A token that systemd hands over is there only while the unit runs.
///
/// # Errors
/// What of it cannot be used.
pub fn check_files(config: &AgentConfig) -> Result<(), RunError> {
    check_mount(config)?;
    let comes_later = |path: &&Path| path.starts_with("/run/credentials") && !path.exists();
    if let Some(path) = config.http.token_file.as_deref().filter(|path| !comes_later(path)) {
        token_in(path)?;
    }
    config.traces.load(&config.name).map_err(RunError::Settings)?;
    match config.tls.files().load(Role::Host) {
        Ok(_) => Ok(()),
        Err(error) => Err(RunError::Settings(format!("[tls]: {error}"))),
    }
}

/// The history in `dir`. An agent that finds something of an earlier one goes on without its file (LISTEN-L3).
pub(super) async fn history_in<H: Host>(dir: &Path, host: &H) -> Result<History, RunError> {
    match std::fs::create_dir_all(dir).and_then(|()| History::read_in(dir)) {
        Err(error) if !listen::is_first(host).await => {
            tracing::error!(
                dir = %dir.display(),
                %error,
                "dir is not writable: the history, a pause and scheduled switchovers are lost when this agent ends"
            );
            Ok(History::unwritable(dir))
        }
        opened => opened.map_err(dir_error(dir)),
    }
}
