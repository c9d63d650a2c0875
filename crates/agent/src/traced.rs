//! Spans of a takeover (ADR 0078), from its line in the history. The gateway that serves has its own in the same trace.

use crate::config::AgentConfig;
use crate::machine::{Event, Record};
use holdfast_traces::{Exporter, Span, SpanId, TraceId, Traces, Value};
use std::fmt::Write as _;

/// The queue of spans, and what sends them; `None` without a collector. An agent whose collector cannot be used goes on
/// without: no takeover fails for a trace. `holdfast agent run --check` tells it before.
pub(crate) fn open(config: &AgentConfig) -> Option<(Traces, Exporter)> {
    let options = config.traces.load(&config.name);
    let opened = options.and_then(|options| options.map(Traces::new).transpose().map_err(|error| error.to_string()));
    opened.unwrap_or_else(|error| {
        tracing::error!(error, "[traces]: no traces are sent until the agent is restarted");
        None
    })
}

/// The spans of a takeover that ended now, at `end_unix_ns` (Unix nanoseconds). Empty for all other lines: also for a
/// takeover that failed, whose phases do not reach to its end.
pub(crate) fn spans(set: &str, host: &str, record: &Record, end_unix_ns: u64) -> Vec<Span> {
    let arrived = matches!(record.event, Event::Start | Event::Failover | Event::Switchover);
    let Some(phases) = record.phases.as_ref().filter(|_| arrived) else { return Vec::new() };
    let ns = |ms: u64| ms.saturating_mul(1_000_000);
    let text = |text: &str| Value::Text(text.to_string());
    let mut attributes = vec![
        ("set", text(set)),
        ("to", text(host)),
        ("event", Value::Text(record.event.to_string())),
        ("planned", Value::Is(record.event == Event::Switchover)),
        ("epoch", Value::Number(record.epoch)),
    ];
    // The owner of a plain export has the address of a client in its name, behind a slash.
    if !record.other.is_empty() && !record.other.contains('/') {
        attributes.push(("from", text(&record.other)));
    }
    let mut at = end_unix_ns.saturating_sub(ns(phases.total_ms()));
    let trace = TraceId::of_grant(set, host, record.epoch);
    let (id, parent, name, start_unix_ns) = (SpanId::random(), None, "takeover", at);
    let whole = Span { trace, id, parent, name, start_unix_ns, end_unix_ns, attributes };
    let mut spans = vec![whole.clone()];
    for (name, took) in [
        ("takeover.detect", phases.detect_ms),
        ("takeover.lease", phases.lease_ms),
        ("takeover.device", phases.attach_ms),
        ("takeover.pool", phases.mount_ms),
        ("takeover.recovery", phases.recover_ms),
        ("takeover.first_write", phases.first_write_ms),
    ] {
        let Some(took) = took else { continue };
        let end = at.saturating_add(ns(took));
        spans.push(whole.part(name, at, end, Vec::new()));
        at = end;
    }
    spans
}

/// Dropped spans, for the metrics of an agent with these labels.
pub(crate) fn metrics(labels: &str) -> String {
    let (name, count) = ("holdfast_agent_traces_dropped_total", holdfast_traces::dropped());
    let help = "Spans of traces that were dropped because the collector did not take them.";
    let mut out = String::new();
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{{labels}}} {count}\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Phases;

    fn record(event: Event) -> Record {
        let phases = Phases {
            detect_ms: Some(3000),
            lease_ms: Some(40),
            attach_ms: Some(100),
            mount_ms: None,
            recover_ms: Some(500),
            first_write_ms: Some(7),
        };
        Record { event, reason: "because".into(), other: "db1".into(), epoch: 5, phases: Some(phases) }
    }

    #[test]
    fn phases_follow_one_another_up_to_the_end() {
        let end = 1_000_000_000_000;
        let spans = spans("demo", "db2", &record(Event::Failover), end);
        let ms = |unix_ns: u64| (end - unix_ns) / 1_000_000;
        let shown: Vec<_> =
            spans.iter().map(|span| (span.name, ms(span.start_unix_ns), ms(span.end_unix_ns))).collect();
        let expected = [
            ("takeover", 3647, 0),
            ("takeover.detect", 3647, 647),
            ("takeover.lease", 647, 607),
            ("takeover.device", 607, 507),
            ("takeover.recovery", 507, 7),
            ("takeover.first_write", 7, 0),
        ];
        assert_eq!(shown, expected);
        assert!(spans[1..].iter().all(|span| span.parent == Some(spans[0].id)));
        assert!(spans.iter().all(|span| span.trace == TraceId::of_grant("demo", "db2", 5)), "as the gateway's");
        let said = &spans[0].attributes;
        assert!(said.contains(&("from", Value::Text("db1".into()))) && said.contains(&("planned", Value::Is(false))));
    }

    #[test]
    fn only_takeovers_that_arrived_have_spans_and_no_client_is_named() {
        for event in [Event::Restart, Event::TakeoverFailed, Event::Demoted, Event::Fenced] {
            assert!(spans("demo", "db2", &record(event), 7).is_empty(), "{event}");
        }
        let plain = Record { other: "plain/m1/10.0.0.9".into(), ..record(Event::Switchover) };
        let spans = spans("demo", "db2", &plain, u64::MAX);
        assert!(spans[0].attributes.contains(&("planned", Value::Is(true))));
        assert!(!format!("{spans:?}").contains("10.0.0.9"), "{spans:?}");
    }
}
