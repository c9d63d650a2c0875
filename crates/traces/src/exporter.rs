//! Sends spans to the collector: some seconds of them in one call, one attempt for each.

use crate::dropped::drop_spans;
use crate::endpoint::innermost;
use crate::span::{Resource, Span, encode};
use crate::v1::trace_service_client::TraceServiceClient;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::Channel;

/// A span waits for others at most this long.
const SEND_EVERY: Duration = Duration::from_secs(5);

/// So many spans are sent at once.
const BATCH: usize = 512;

/// How long one call may take. Then its spans are dropped: the collector may have them or not.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// So many characters of a collector's reason are logged.
const REASON_MAX: usize = 200;

/// Takes spans from the queue and sends them.
#[derive(Debug)]
pub struct Exporter {
    client: TraceServiceClient<Channel>,
    endpoint: String,
    resource: Resource,
    queue: mpsc::Receiver<Span>,
    /// The last call has failed. It is logged once.
    failing: bool,
}

impl Exporter {
    pub(crate) fn new(channel: Channel, endpoint: String, resource: Resource, queue: mpsc::Receiver<Span>) -> Self {
        Self { client: TraceServiceClient::new(channel), endpoint, resource, queue, failing: false }
    }

    /// Sends until the last [`crate::Traces`] of this queue is gone and everything was tried.
    pub async fn run(self) {
        self.run_every(SEND_EVERY).await;
    }

    /// Like `run`, with another time for which a span may wait for others. Returns how many spans the collector did not
    /// take; they are counted as dropped.
    pub async fn run_every(mut self, every: Duration) -> u64 {
        let mut lost = 0;
        while let Some(batch) = self.gather(every).await {
            lost += self.send(batch).await;
        }
        lost
    }

    /// The next spans; `None` if no more come.
    async fn gather(&mut self, every: Duration) -> Option<Vec<Span>> {
        let mut batch = vec![self.queue.recv().await?];
        let until = Instant::now() + every;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            match timeout_at(until, self.queue.recv_many(&mut batch, room)).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        Some(batch)
    }

    /// One attempt. Returns how many of these spans were lost.
    async fn send(&mut self, batch: Vec<Span>) -> u64 {
        let count = batch.len() as u64;
        let request = encode(&self.resource, batch);
        let (lost, why) = match timeout(SEND_LIMIT, self.client.export(request)).await {
            Ok(Ok(reply)) => {
                let partly = reply.into_inner().partial_success.unwrap_or_default();
                (u64::try_from(partly.rejected_spans).unwrap_or_default().min(count), partly.error_message)
            }
            Ok(Err(status)) => (count, innermost(&status)),
            Err(_) => (count, format!("no answer within {SEND_LIMIT:?}")),
        };
        drop_spans(lost);
        if (lost > 0) != self.failing {
            self.failing = lost > 0;
            self.tell(lost, &why);
        }
        lost
    }

    /// The collector has begun to take spans, or not to.
    fn tell(&self, lost: u64, why: &str) {
        let endpoint = &self.endpoint;
        if self.failing {
            let why: String = why.chars().take(REASON_MAX).collect();
            tracing::warn!(endpoint, lost, why, "the collector does not take traces: they are dropped and counted");
        } else {
            tracing::info!(endpoint, "the collector takes traces again");
        }
    }
}
