//! Traces of writes and takeovers, for a collector that speaks OTLP (ADR 0078).
//!
//! ```text
//!   who has measured ─▶ Traces::record ─▶ queue, SPANS_MAX ─▶ Exporter: encode, one call ─▶ collector
//! ```
//! Nobody waits for a collector: what does not fit into the queue, and what the collector does not take, is dropped and
//! counted. Without an endpoint in the settings there is neither a queue nor a task.
//!
//! Owns: spans and their form on the wire ([`encode`], pure), which writes are recorded ([`Traces::wants`]), the queue,
//! the task that sends ([`Exporter`]), which endpoints are allowed ([`check`]). Does not own: moments and names of
//! spans (whoever measures has them), settings. Depends on: nothing of ours.

mod dropped;
mod endpoint;
mod exporter;
mod queue;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs)]
pub mod receiver;
mod sampler;
mod span;
#[cfg(test)]
mod tests;

pub use dropped::dropped;
pub use endpoint::{TracesError, check};
pub use exporter::Exporter;
pub use queue::{SPANS_MAX, TraceOptions, Traces};
pub use span::{Attribute, Resource, Span, SpanId, TraceId, Value, Wall, encode};

/// Generated from `proto/trace.proto`: what is used of OTLP. Its specification is the reference.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}
