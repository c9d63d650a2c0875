//! The audit log: a line for each call that `access` notes. The file is that of [`holdfast_host::audit`].

use crate::config::AuditConfig;
pub(crate) use holdfast_host::audit::Audit;
use holdfast_host::audit::Lost;
use std::io;

/// Opens the file and starts the thread that writes; `None` if the settings name no file.
///
/// # Errors
/// As [`Audit::start`].
pub(crate) fn start(config: &AuditConfig) -> io::Result<Option<Audit>> {
    config.log.as_ref().map(|log| Audit::start(log, config.rotate.0, lost)).transpose()
}

fn lost(why: Lost) {
    let counter = match why {
        Lost::Dropped => metrics::counter!("holdfast_audit_dropped_total"),
        Lost::Unwritten => metrics::counter!("holdfast_audit_errors_total"),
    };
    counter.increment(1);
}
