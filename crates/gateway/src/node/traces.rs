//! Traces of this gateway's sets, if the settings name a collector.

use holdfast_traces::{Exporter, TraceOptions, Traces, TracesError};
use holdfast_types::sync::LockExt;
use std::sync::Mutex;

/// The queue of spans, and what sends them until a task takes it.
pub(super) struct NodeTraces {
    queue: Option<Traces>,
    exporter: Mutex<Option<Exporter>>,
}

impl NodeTraces {
    /// Without options there is neither. Connects to nobody yet.
    pub(super) fn open(options: Option<TraceOptions>) -> Result<Self, TracesError> {
        let (queue, exporter) = options.map(Traces::new).transpose()?.unzip();
        Ok(Self { queue, exporter: Mutex::new(exporter) })
    }

    /// For whoever measures.
    pub(super) fn queue(&self) -> Option<Traces> {
        self.queue.clone()
    }

    /// What sends the spans, once.
    pub(super) fn take_exporter(&self) -> Option<Exporter> {
        self.exporter.locked().take()
    }
}
