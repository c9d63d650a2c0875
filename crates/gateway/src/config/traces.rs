//! Where traces are sent, and which writes are in them.

use holdfast_settings::settings;
use holdfast_tls::files::{self, PEM_BYTES_MAX};
use holdfast_traces::{Resource, TraceOptions};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// Traces of takeovers and of some writes, for a collector that takes OTLP over gRPC. Nothing waits for it.
    pub struct TracesConfig {
        /// The collector: https://HOST:PORT, or http:// with a loopback address, for names of sets and volumes are in
        /// traces (R10). Left out: none, and nothing is noted.
        endpoint: Option<String> = None, sample "http://127.0.0.1:4317";
        /// Certificate (PEM) of the authority that signed the collector's. An https endpoint needs it. Left out: none.
        ca: Option<PathBuf> = None, sample "/etc/holdfast/traces/ca.pem";
        /// Writes of each second that are recorded however quick they were, 0 to 1000.
        sample: u32 = 1;
        /// A write that takes this long is recorded in any case, in milliseconds, 1 to 60000.
        slow_ms: u64 = 100;
    }
}

impl TracesConfig {
    /// Reads the file; `None` without an endpoint. `gateway`: its name.
    ///
    /// # Errors
    /// The file cannot be read, is too long or has no certificate, with the name of its setting.
    pub fn load(&self, gateway: &str) -> Result<Option<TraceOptions>, (String, io::Error)> {
        let Some(endpoint) = self.endpoint.clone() else { return Ok(None) };
        let read = |path: &PathBuf| {
            files::read(path, PEM_BYTES_MAX).map_err(|error| (format!("traces.ca {}", path.display()), error))
        };
        let ca = self.ca.as_ref().map(read).transpose()?;
        let resource = Resource { service: "holdfast-gateway", instance: gateway.to_string() };
        let slow = Duration::from_millis(self.slow_ms);
        let options = TraceOptions { endpoint, ca, resource, sample: self.sample, slow };
        let unusable = |error| ("[traces]".to_string(), io::Error::new(io::ErrorKind::InvalidData, error));
        options.check().map_err(unusable)?;
        Ok(Some(options))
    }
}
