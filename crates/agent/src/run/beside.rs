//! Tasks beside the agent's own: doors, probes of PostgreSQL, questions about the lease.

use super::error::RunError;
use crate::clock;
use crate::config::AgentConfig;
use crate::host::{Host, NotDone};
use crate::http::{self, AgentAudit, Answers, AskServer, Asked, Door, Openers};
use crate::listen::{self, Bounded};
use crate::machine::{DatabaseView, Job, LeaseView};
use holdfast_types::MonoTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// An event for the agent's task.
pub(super) enum News {
    Done(Job, Result<(), NotDone>),
    Database(u64, DatabaseView),
    Lease(LeaseView),
    /// A command that changes what is on the disk, after the disk took it or not.
    Stored(Asked, std::io::Result<()>),
}

/// Order for the prober: nothing, or to probe at this interval. The number tells one run of PostgreSQL from the next.
pub(super) type Probing = Option<(u64, Duration)>;

/// Tasks beside the agent's own. They end with it.
#[derive(Default)]
pub(super) struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    pub(super) fn add(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Answers over HTTP at one of the doors, for as long as the agent runs.
pub(super) async fn answer(listener: Bounded, door: Door) {
    if let Err(error) = http::serve(listener, door).await {
        tracing::error!(%error, "health checks and commands are no longer answered");
    }
}

/// How long the last lines of the audit log may take.
const AUDIT_LIMIT: Duration = Duration::from_secs(2);

/// The audit log of these settings. An agent that finds something of an earlier one goes on without it (LISTEN-L3).
pub(super) async fn audit_in<H: Host>(config: &AgentConfig, host: &H) -> Result<Option<AgentAudit>, RunError> {
    let Some(log) = &config.audit.log else { return Ok(None) };
    match AgentAudit::start(log, config.audit.rotate.0) {
        Ok(audit) => Ok(Some(audit)),
        Err(error) if !listen::is_first(host).await => {
            tracing::error!(%error, "audit.log: commands leave no line there until the agent is restarted");
            Ok(None)
        }
        Err(error) => Err(RunError::Settings(format!("audit.log: {error}"))),
    }
}

/// Waits for the last lines.
pub(super) async fn end_audit(audit: Option<AgentAudit>) {
    if let Some(audit) = audit
        && !audit.written(AUDIT_LIMIT).await
    {
        tracing::warn!("the last lines of the audit log are not written");
    }
}

/// For the plan of a switchover.
pub(super) fn openers<H: Host>(host: Arc<H>) -> Openers {
    Arc::new(move || {
        let host = host.clone();
        Box::pin(async move { host.openers().await })
    })
}

/// For the documents of Patroni's REST API.
pub(super) fn questions<H: Host>(host: Arc<H>) -> Arc<Answers> {
    let ask: AskServer = Arc::new(move || {
        let host = host.clone();
        Box::pin(async move { host.server().await })
    });
    Arc::new(Answers::new(ask))
}

/// Probes PostgreSQL, one probe at a time.
pub(super) async fn prober<H: Host>(host: Arc<H>, mut plan: watch::Receiver<Probing>, news: mpsc::Sender<News>) {
    loop {
        let Some((life, pace)) = *plan.borrow_and_update() else {
            if plan.changed().await.is_err() {
                return;
            }
            continue;
        };
        if let Some(view) = host.probe().await
            && news.send(News::Database(life, view)).await.is_err()
        {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pace) => {}
            changed = plan.changed() => if changed.is_err() { return },
        }
    }
}

/// Asks the cluster for the lease, at the present interval.
pub(super) async fn poller<H: Host>(host: Arc<H>, poll_ms: Arc<AtomicU64>, slice_ms: u64, news: mpsc::Sender<News>) {
    let mut asked = MonoTime(0);
    loop {
        let wait = Duration::from_millis(poll_ms.load(Ordering::Relaxed));
        if clock::now().saturating_since(asked) >= wait {
            asked = clock::now();
            let view = host.lease().await;
            if news.send(News::Lease(view)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(slice_ms)).await;
    }
}
