use super::receiver::{Receiver, attribute};
use super::*;
use crate::sampler::Sampler;
use prost::Message;
use std::time::{Duration, Instant};

/// For a test that would otherwise wait for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// Soon enough for a test, and late enough for spans that are recorded together.
const SOON: Duration = Duration::from_millis(20);

fn options(endpoint: &str) -> TraceOptions {
    TraceOptions {
        endpoint: endpoint.to_string(),
        ca: None,
        resource: Resource { service: "holdfast-gateway", instance: "g1".to_string() },
        sample: 0,
        slow: Duration::from_millis(100),
    }
}

fn span(name: &'static str) -> Span {
    let attributes =
        vec![("set", Value::Text("demo".into())), ("term", Value::Number(7)), ("planned", Value::Is(true))];
    let (trace, id) = (TraceId::of_grant("demo", "db1", 5), SpanId::random());
    Span { trace, id, parent: None, name, start_unix_ns: 1_000, end_unix_ns: 5_000, attributes }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("nothing comes")
}

#[test]
fn spans_are_encoded_as_otlp_has_them() {
    let whole = span("takeover");
    let part = whole.part("takeover.lease", 2_000, 1_500, Vec::new());
    let resource = options("").resource;
    let bytes = encode(&resource, vec![whole.clone(), part.clone()]).encode_to_vec();
    let request = v1::ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
    let [of_resource] = &request.resource_spans[..] else { panic!("{request:?}") };
    let said = &of_resource.resource.as_ref().unwrap().attributes;
    assert_eq!(
        said.iter().map(|one| one.key.as_str()).collect::<Vec<_>>()[..2],
        ["service.name", "service.instance.id"]
    );
    let [first, second] = &of_resource.scope_spans[0].spans[..] else { panic!("{request:?}") };
    assert_eq!((first.trace_id.len(), first.span_id.len(), first.parent_span_id.len()), (16, 8, 0));
    assert_eq!((&second.trace_id, &second.parent_span_id), (&first.trace_id, &first.span_id), "a part of it");
    assert_ne!(second.span_id, first.span_id);
    assert_eq!((first.start_time_unix_nano, first.end_time_unix_nano), (1_000, 5_000));
    assert_eq!(second.end_time_unix_nano, 2_000, "no span ends before its begin");
    let found = ["set", "term", "planned", "none"].map(|key| attribute(first, key));
    assert_eq!(found, ["demo", "7", "true", ""]);
}

/// Numbers of fields are OTLP's: a collector reads by them. Written by hand from its specification.
#[test]
fn numbers_of_fields_are_those_of_the_specification() {
    let id = SpanId::random();
    let trace = TraceId::of_grant("demo", "db1", 5);
    let span = Span { trace, id, parent: Some(id), name: "a", start_unix_ns: 1, end_unix_ns: 2, attributes: vec![] };
    let request = encode(&options("").resource, vec![span]);
    let bytes = request.resource_spans[0].scope_spans[0].spans[0].encode_to_vec();
    let mut expected = vec![0x0a, 16];
    expected.extend(trace.bytes());
    for tag in [0x12, 0x22] {
        expected.extend([tag, 8]);
        expected.extend(id.bytes());
    }
    expected.extend([0x2a, 1, b'a', 0x30, 1]);
    for (tag, time) in [(0x39, 1_u64), (0x41, 2)] {
        expected.push(tag);
        expected.extend(time.to_le_bytes());
    }
    assert_eq!(bytes, expected);
}

#[test]
fn agent_and_gateway_name_the_same_trace_and_each_grant_another_one() {
    let of = |set, owner, epoch| TraceId::of_grant(set, owner, epoch);
    assert_eq!(of("demo", "db1", 5), of("demo", "db1", 5));
    for other in [of("demo", "db1", 6), of("demo", "db2", 5), of("other", "db1", 5), of("demod", "b1", 5)] {
        assert_ne!(of("demo", "db1", 5), other);
    }
}

#[test]
fn moments_become_times() {
    let before = Instant::now();
    let wall = Wall::now();
    assert!(wall.of(before) <= wall.unix_ns());
    assert_eq!(wall.of(before + Duration::from_secs(60)), wall.unix_ns(), "later counts as now");
    let ago = wall.of(before).abs_diff(wall.unix_ns());
    assert!(ago < u64::try_from(PATIENCE.as_nanos()).unwrap(), "{ago}");
}

#[test]
fn some_writes_of_each_second_are_let_through() {
    let sampler = Sampler::new(2);
    let count = |second| (0..10).filter(|_| sampler.admits(second)).count();
    assert_eq!([0, 0, 1, 7].map(count), [2, 0, 2, 2]);
    assert!(!Sampler::new(0).admits(3));
}

/// R10: names of sets are in spans.
#[test]
fn spans_leave_the_machine_over_tls_only() {
    for (endpoint, ca) in [
        ("http://127.0.0.1:4317", false),
        ("http://127.8.0.1:4317/", true),
        ("http://[::1]:4317", false),
        ("https://collector.example:4317", true),
        ("https://127.0.0.1:4317", true),
        ("HTTPS://collector.example:4317", true),
    ] {
        assert_eq!(check(endpoint, ca), Ok(()), "{endpoint}");
    }
    for endpoint in [
        "http://10.0.0.1:4317",
        "http://localhost:4317",
        "http://collector.example:4317",
        "collector:4317",
        "127.0.0.1:4317",
        "ftp://127.0.0.1:4317",
        "http://127.0.0.1:4317/v1/traces",
        "https://collector.example:4317/?a=b",
        "https://me@collector.example:4317",
        "http://:secret@127.0.0.1:4317",
        "http://127.0.0.1:4317/#a",
        "",
    ] {
        assert!(check(endpoint, true).is_err_and(|expected| expected.contains("R10")), "{endpoint}");
    }
    assert!(check("https://collector.example:4317", false).is_err_and(|expected| expected.contains("traces.ca")));
}

#[tokio::test]
async fn no_queue_is_made_for_an_endpoint_that_is_not_allowed() {
    let error = Traces::new(options("http://10.0.0.1:4317")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("\"http://10.0.0.1:4317\"") && error.contains("expected https://"), "{error}");
}

#[test]
fn a_certificate_that_cannot_be_read_is_told_before_anything_is_sent() {
    let with = |ca: &str| {
        let ca = Some(ca.as_bytes().to_vec());
        let options = TraceOptions { ca, ..options("https://collector.example:4317") };
        options.check().map_err(|error| error.to_string())
    };
    assert!(with("").is_err_and(|error| error.contains("found no certificate in traces.ca")));
    let damaged = with("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n");
    assert!(damaged.is_err_and(|error| error.contains("traces.ca: ")));
    assert!(options("http://127.0.0.1:4317").check().is_ok());
}

#[tokio::test]
async fn spans_reach_the_collector_together() {
    let mut collector = Receiver::start().await;
    let (traces, exporter) = Traces::new(options(&collector.endpoint)).unwrap();
    let exporting = tokio::spawn(exporter.run_every(SOON));
    traces.record(vec![span("a"), span("b")]);
    let request = within(collector.request()).await;
    let names: Vec<&str> =
        request.resource_spans[0].scope_spans[0].spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    // What is left is sent before the end.
    traces.record(vec![span("c")]);
    drop(traces);
    assert!(within(collector.spans(&["c"])).await.contains_key("c"));
    assert_eq!(within(exporting).await.unwrap(), 0);
}

/// The count is the process's: other tests may drop spans meanwhile.
#[tokio::test]
async fn what_does_not_fit_and_what_the_collector_does_not_get_is_dropped_and_counted() {
    let before = dropped();
    let (traces, exporter) = Traces::new(options("http://127.0.0.1:1")).unwrap();
    // Nothing is sent yet.
    assert!(traces.record((0..SPANS_MAX - 1).map(|_| span("fits")).collect()));
    assert!(!traces.record(vec![span("does"), span("not")]), "all of them or none");
    assert!(dropped() - before >= 2);
    assert!(traces.record(vec![span("fits")]));
    // Nobody listens at this port.
    drop(traces);
    assert_eq!(within(exporter.run_every(SOON)).await, SPANS_MAX as u64);
    assert!(dropped() - before >= 2 + SPANS_MAX as u64);
}

#[tokio::test]
async fn what_a_collector_refuses_of_a_request_is_dropped_and_counted() {
    let before = dropped();
    let partly = v1::ExportTracePartialSuccess { rejected_spans: 1, error_message: "too long".to_string() };
    let answer = v1::ExportTraceServiceResponse { partial_success: Some(partly) };
    let collector = Receiver::answering(Ok(answer)).await;
    let (traces, exporter) = Traces::new(options(&collector.endpoint)).unwrap();
    assert!(traces.record(vec![span("a"), span("b")]));
    drop(traces);
    assert_eq!(within(exporter.run_every(SOON)).await, 1);
    assert!(dropped() > before);
}

#[tokio::test]
async fn a_slow_write_is_recorded_and_so_are_some_of_the_others() {
    let (quick, slow) = (Duration::from_millis(99), Duration::from_millis(100));
    let (traces, _exporter) = Traces::new(options("http://127.0.0.1:1")).unwrap();
    assert_eq!((traces.wants(quick), traces.wants(slow)), (false, true));
    let sampled = TraceOptions { sample: 1, ..options("http://127.0.0.1:1") };
    let (traces, _exporter) = Traces::new(sampled).unwrap();
    assert!(traces.wants(quick), "the first one of this second");
}
