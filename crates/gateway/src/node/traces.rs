//! Traces of this gateway's sets, if the settings name a collector.

use super::NodeError;
use crate::config::GatewayConfig;
use holdfast_traces::{Exporter, Traces};
use holdfast_types::sync::LockExt;
use std::sync::Mutex;

/// The queue of spans, and what sends them until a task takes it.
pub(super) struct NodeTraces {
    queue: Option<Traces>,
    exporter: Mutex<Option<Exporter>>,
}

impl NodeTraces {
    /// Without an endpoint there is neither. Connects to nobody yet.
    pub(super) fn open(config: &GatewayConfig) -> Result<Self, NodeError> {
        let options = config.traces.load(config.name.as_str());
        let options = options.map_err(|(what, source)| NodeError::Io { what, source })?;
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
