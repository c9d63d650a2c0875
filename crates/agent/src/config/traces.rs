//! Where traces of takeovers are sent.

use holdfast_settings::settings;
use holdfast_tls::files::{self, PEM_BYTES_MAX};
use holdfast_traces::{Resource, TraceOptions};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// Traces of takeovers, for a collector that takes OTLP over gRPC. Nothing waits for it.
    pub struct TracesConfig {
        /// The collector: https://HOST:PORT, or http:// with a loopback address, for names of sets and hosts are in
        /// traces. Left out: none.
        endpoint: Option<String> = None, sample "http://127.0.0.1:4317";
        /// Certificate (PEM) of the authority that signed the collector's. An https endpoint needs it. Left out: none.
        ca: Option<PathBuf> = None, sample "/etc/holdfast/traces/ca.pem";
    }
}

impl TracesConfig {
    /// Reads the file; `None` without an endpoint. `host`: its name.
    ///
    /// # Errors
    /// The file cannot be read, with its path, is too long or has no certificate.
    pub(crate) fn load(&self, host: &str) -> Result<Option<TraceOptions>, String> {
        let Some(endpoint) = self.endpoint.clone() else { return Ok(None) };
        let named = |path: &PathBuf, error: io::Error| format!("traces.ca {}: {error}", path.display());
        let read = |path: &PathBuf| files::read(path, PEM_BYTES_MAX).map_err(|error| named(path, error));
        let ca = self.ca.as_ref().map(read).transpose()?;
        let resource = Resource { service: "holdfast-agent", instance: host.to_string() };
        // An agent has no writes.
        let options = TraceOptions { endpoint, ca, resource, sample: 0, slow: Duration::MAX };
        options.check().map_err(|error| format!("[traces]: {error}"))?;
        Ok(Some(options))
    }
}
