//! The audit log: a line for each call that `access` notes. The file is that of [`holdfast_host::audit`].

use crate::config::AuditConfig;
use crate::config::live::Live;
pub(crate) use holdfast_host::audit::Audit;
use holdfast_host::audit::Lost;
use std::convert::Infallible;
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

/// Has the log go on where the settings say, from `at` on. Where it cannot, it stays, and the next reload has it tried
/// again.
pub(crate) async fn follow(audit: Audit, mut at: AuditConfig, live: Live) -> Infallible {
    let mut changes = live.changes();
    loop {
        let wanted = changes.borrow_and_update().now.audit.clone();
        if wanted != at
            && let Some(log) = wanted.log.clone()
        {
            let (audit, rotate) = (audit.clone(), wanted.rotate.0);
            match holdfast_log::spawn_blocking(move || audit.move_to(&log, rotate)).await {
                Ok(Ok(())) => at = wanted,
                Ok(Err(error)) => {
                    let why = format!("audit.log: {error}; the one before is written");
                    tracing::error!("{why}");
                    live.audit_stays(&wanted, &at, why);
                }
                // The process stops.
                Err(_) => {}
            }
        }
        if changes.changed().await.is_err() {
            // Nobody reads settings again.
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GatewayConfig;
    use std::time::Duration;

    /// A place that cannot be written to is told, and nothing is lost; the next reload is another try.
    #[tokio::test]
    async fn the_audit_log_goes_on_where_the_settings_say() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let with = |name: &str| {
            let mut config = GatewayConfig::example();
            config.audit.log = Some(at(name));
            config
        };
        let start = with("a.log");
        let live = Live::new(start.clone(), 1);
        let audit = super::start(&start.audit).unwrap().unwrap();
        let follower = tokio::spawn(follow(audit.clone(), start.audit.clone(), live.clone()));
        live.take(Ok(with("none/b.log")), 2).unwrap();
        tokio::time::timeout(PATIENCE, async {
            while live.trouble().is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        assert_eq!(live.now().audit, start.audit, "where it is written");
        audit.write(&1);
        assert!(audit.written(PATIENCE).await);
        assert_eq!(std::fs::read_to_string(at("a.log")).unwrap(), "1\n");
        live.take(Ok(with("b.log")), 3).unwrap();
        tokio::time::timeout(PATIENCE, async {
            while !at("b.log").exists() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        assert_eq!(live.trouble(), None);
        follower.abort();
    }
}
