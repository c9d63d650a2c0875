//! Spans, and their form on the wire. Pure, apart from random ids and the reading of a clock.

use crate::v1;
use crate::v1::any_value::Value as OnWire;
use crate::v1::span::SpanKind;
use rand::Rng;
use sha2::{Digest, Sha256};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Spans of one trace belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

impl TraceId {
    /// Of a trace that only this process has spans of.
    pub fn random() -> Self {
        let mut rng = rand::rng();
        let (high, low) = (u128::from(rng.next_u64()), u128::from(rng.next_u64()));
        Self(((high << 64) | low).max(1))
    }

    /// Of the grant of a set's lease under this epoch: the owner's agent and the gateway that serves know it without
    /// telling each other. Two clusters that send to one collector have the same for a set, an owner and an epoch that
    /// are the same in both.
    pub fn of_grant(set: &str, owner: &str, epoch: u64) -> Self {
        let mut hash = Sha256::new();
        for part in [set.as_bytes(), owner.as_bytes(), epoch.to_be_bytes().as_slice()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let first = hash.finalize().iter().take(16).fold(0_u128, |id, byte| (id << 8) | u128::from(*byte));
        Self(first.max(1))
    }

    /// As OTLP has it.
    pub fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// One span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(u64);

impl SpanId {
    /// A new one.
    pub fn random() -> Self {
        Self(rand::rng().next_u64().max(1))
    }

    /// As OTLP has it.
    pub fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number. What is too large for OTLP is shown as the largest one.
    Number(u64),
    /// Yes or no.
    Is(bool),
}

/// Name and value.
pub type Attribute = (&'static str, Value);

/// A piece of time with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its own id.
    pub id: SpanId,
    /// The span that it is a part of.
    pub parent: Option<SpanId>,
    /// Its name.
    pub name: &'static str,
    /// Its begin, Unix nanoseconds.
    pub start_unix_ns: u64,
    /// Its end, Unix nanoseconds.
    pub end_unix_ns: u64,
    /// What is known of it. No data and no address of a client.
    pub attributes: Vec<Attribute>,
}

impl Span {
    /// A part of this span.
    pub fn part(&self, name: &'static str, start_unix_ns: u64, end_unix_ns: u64, attributes: Vec<Attribute>) -> Span {
        let (trace, id, parent) = (self.trace, SpanId::random(), Some(self.id));
        Span { trace, id, parent, name, start_unix_ns, end_unix_ns, attributes }
    }
}

/// One reading of both clocks, by which moments of one become times of the other.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    at: Instant,
    unix_ns: u64,
}

impl Wall {
    /// Reads the clocks.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { at: Instant::now(), unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// This reading, Unix nanoseconds.
    pub fn unix_ns(&self) -> u64 {
        self.unix_ns
    }

    /// The time of an earlier moment, Unix nanoseconds. A later one counts as this reading.
    pub fn of(&self, moment: Instant) -> u64 {
        let ago = self.at.saturating_duration_since(moment).as_nanos();
        self.unix_ns.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
    }
}

/// Who sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// What kind of process: `holdfast-gateway`, `holdfast-agent`.
    pub service: &'static str,
    /// The name of this gateway or host.
    pub instance: String,
}

fn on_wire((key, value): Attribute) -> v1::KeyValue {
    let value = match value {
        Value::Text(text) => OnWire::StringValue(text),
        Value::Number(number) => OnWire::IntValue(i64::try_from(number).unwrap_or(i64::MAX)),
        Value::Is(is) => OnWire::BoolValue(is),
    };
    v1::KeyValue { key: key.to_string(), value: Some(v1::AnyValue { value: Some(value) }) }
}

/// The message that carries these spans.
pub fn encode(resource: &Resource, spans: Vec<Span>) -> v1::ExportTraceServiceRequest {
    let spans = spans.into_iter().map(|span| v1::Span {
        trace_id: span.trace.bytes().to_vec(),
        span_id: span.id.bytes().to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.bytes().to_vec()),
        name: span.name.to_string(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: span.start_unix_ns,
        end_time_unix_nano: span.end_unix_ns.max(span.start_unix_ns),
        attributes: span.attributes.into_iter().map(on_wire).collect(),
    });
    let version = env!("CARGO_PKG_VERSION").to_string();
    let scope = v1::InstrumentationScope { name: "holdfast".to_string(), version: version.clone() };
    let scope_spans = vec![v1::ScopeSpans { scope: Some(scope), spans: spans.collect() }];
    let attributes = [
        ("service.name", Value::Text(resource.service.to_string())),
        ("service.instance.id", Value::Text(resource.instance.clone())),
        ("service.version", Value::Text(version)),
    ];
    let resource = v1::Resource { attributes: attributes.into_iter().map(on_wire).collect() };
    v1::ExportTraceServiceRequest { resource_spans: vec![v1::ResourceSpans { resource: Some(resource), scope_spans }] }
}
