//! Where spans wait to be sent. Bounded; nobody waits for room.

use crate::dropped::drop_spans;
use crate::endpoint::{TracesError, channel, way};
use crate::exporter::Exporter;
use crate::sampler::Sampler;
use crate::span::{Resource, Span};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Maximum number of spans that wait to be sent.
pub const SPANS_MAX: usize = 1024;

/// What to record, and where to send it.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// The collector, as [`crate::check`] allows it.
    pub endpoint: String,
    /// The certificate of its authority (PEM), for https.
    pub ca: Option<Vec<u8>>,
    /// Who sends.
    pub resource: Resource,
    /// So many writes of each second are recorded, however quick they were.
    pub sample: u32,
    /// So slow a write is recorded in any case.
    pub slow: Duration,
}

impl TraceOptions {
    /// Whether [`Traces::new`] takes them. Connects to nobody, and needs no runtime.
    ///
    /// # Errors
    /// [`TracesError`].
    pub fn check(&self) -> Result<(), TracesError> {
        way(&self.endpoint, self.ca.as_deref()).map(|_| ())
    }
}

#[derive(Debug)]
struct Inner {
    queue: mpsc::Sender<Span>,
    slow: Duration,
    sampler: Sampler,
    begun: Instant,
}

/// Takes spans. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Traces(Arc<Inner>);

impl Traces {
    /// A queue, and what sends from it once [`Exporter::run`] runs. Needs the runtime.
    ///
    /// # Errors
    /// [`TracesError`].
    pub fn new(options: TraceOptions) -> Result<(Self, Exporter), TracesError> {
        let channel = channel(&options.endpoint, options.ca.as_deref())?;
        let (queue, taken) = mpsc::channel(SPANS_MAX);
        let sampler = Sampler::new(options.sample);
        let inner = Inner { queue, slow: options.slow, sampler, begun: Instant::now() };
        Ok((Self(Arc::new(inner)), Exporter::new(channel, options.endpoint, options.resource, taken)))
    }

    /// Takes these spans, all of them or none: a part of a write says little. Returns whether it took them; otherwise
    /// they are counted as dropped.
    pub fn record(&self, spans: Vec<Span>) -> bool {
        match self.0.queue.try_reserve_many(spans.len()) {
            Ok(permits) => {
                permits.zip(spans).for_each(|(permit, span)| permit.send(span));
                true
            }
            Err(_) => {
                drop_spans(spans.len() as u64);
                false
            }
        }
    }

    /// Whether a write that has ended now is recorded: it was slow, or it is one of the first in this second.
    pub fn wants(&self, took: Duration) -> bool {
        let second = || u32::try_from(self.0.begun.elapsed().as_secs()).unwrap_or_default();
        took >= self.0.slow || self.0.sampler.admits(second())
    }
}
