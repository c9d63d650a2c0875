//! What the front counts. Handles are looked up once per connection, not per request.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Instant;

/// Kinds of requests, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Zero,
    Trim,
    Flush,
    Cache,
    BlockStatus,
}

const KINDS: [(Kind, &str); 7] = [
    (Kind::Read, "read"),
    (Kind::Write, "write"),
    (Kind::Zero, "zero"),
    (Kind::Trim, "trim"),
    (Kind::Flush, "flush"),
    (Kind::Cache, "cache"),
    (Kind::BlockStatus, "block_status"),
];

pub(super) struct Measures {
    seconds: [Histogram; KINDS.len()],
    bytes: [Counter; KINDS.len()],
    refused: Counter,
    connections: Gauge,
}

impl Measures {
    /// Counts one connection more, until dropped.
    pub(super) fn new() -> Self {
        let connections = gauge!("holdfast_nbd_connections");
        connections.increment(1.0);
        Self {
            seconds: KINDS.map(|(_, op)| histogram!("holdfast_nbd_request_seconds", "op" => op)),
            bytes: KINDS.map(|(_, op)| counter!("holdfast_nbd_request_bytes_total", "op" => op)),
            refused: counter!("holdfast_nbd_request_errors_total"),
            connections,
        }
    }

    /// A request is answered.
    pub(super) fn ended(&self, kind: Kind, len: u64, since: Instant) {
        self.seconds[kind as usize].record(since.elapsed().as_secs_f64());
        self.bytes[kind as usize].increment(len);
    }

    /// A request is answered with an error.
    pub(super) fn refused(&self) {
        self.refused.increment(1);
    }
}

impl Drop for Measures {
    fn drop(&mut self) {
        self.connections.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_where_their_number_says() {
        for (place, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
    }
}
