//! What a collector gets of a set at its leader (ADR 0078).

use super::serving::started_anew;
use super::*;
use holdfast_traces::receiver::{Receiver, attribute};
use holdfast_traces::{Resource, TraceId, TraceOptions, Traces};

fn options(endpoint: &str, sample: u32, slow: Duration) -> TraceOptions {
    let resource = Resource { service: "holdfast-gateway", instance: "g1".to_string() };
    TraceOptions { endpoint: endpoint.to_string(), ca: None, resource, sample, slow }
}

/// The volume, opened without a token at a gateway that sends traces.
async fn opened(world: &World, options: TraceOptions) -> (Arc<SetServer>, Arc<dyn Device>) {
    let (traces, exporter) = Traces::new(options).unwrap();
    tokio::spawn(exporter.run_every(Duration::from_millis(20)));
    let server = started_anew(world, Some(traces));
    let sets = BTreeMap::from([(server.name.clone(), server.clone())]);
    let (cluster, sets) = (world.exports.cluster.clone(), Arc::new(RwLock::new(sets)));
    let exports = NodeExports { cluster, sets, plain_exports: true, open_snapshots: true };
    let export = ExportName::plain(name("demo"), name("vol1"));
    let opened = exports.open(&export, ConnInfo { id: 1, peer: Peer::Unix }).await.expect("served here");
    (server, opened.device)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_and_a_write_reach_the_collector() {
    let mut collector = Receiver::start().await;
    let world = World::new(true).await;
    let (server, device) = opened(&world, options(&collector.endpoint, 100, Duration::MAX)).await;
    let lease = server.lease().expect("it was taken");
    assert_eq!(soon(device.clone().write(4096, written().0, false)).await, Ok(()));
    let names = ["serve", "serve.head", "serve.grant", "write", "write.queued", "entry"];
    let spans = soon(collector.spans(&names)).await;
    let serve = &spans["serve"];
    assert_eq!(attribute(serve, "epoch"), lease.epoch.0.to_string());
    // The owner's name may have the address of a client.
    assert!(lease.plain && !format!("{spans:?}").contains("plain/"));
    let named = TraceId::of_grant("demo", lease.owner.as_str(), lease.epoch.0);
    assert_ne!(serve.trace_id, named.bytes(), "an address could be guessed from it");
    let (write, entry) = (&spans["write"], &spans["entry"]);
    let found = ["set", "volume", "operation", "bytes"].map(|key| attribute(write, key));
    assert_eq!(found, ["demo", "vol1", "write", "4096"]);
    for part in ["write.queued", "entry"] {
        assert_eq!((&spans[part].trace_id, &spans[part].parent_span_id), (&write.trace_id, &write.span_id), "{part}");
    }
    let found = ["seq", "operations", "bytes", "term"].map(|key| attribute(entry, key));
    assert_eq!(found, ["1", "1", "4096", "1"]);
    let times = [write.start_time_unix_nano, entry.start_time_unix_nano, entry.end_time_unix_nano];
    assert!(times.is_sorted() && entry.end_time_unix_nano <= write.end_time_unix_nano, "{write:?} {entry:?}");
}

/// Of quick writes as many as the settings say, and each slow one: here every write is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_slow_write_is_recorded_where_none_is_sampled() {
    for (slow, recorded) in [(Duration::MAX, false), (Duration::ZERO, true)] {
        let mut collector = Receiver::start().await;
        let world = World::new(true).await;
        let (server, device) = opened(&world, options(&collector.endpoint, 0, slow)).await;
        assert_eq!(soon(device.clone().trim(0, 4096, false)).await, Ok(()));
        // Recorded after the trim would have been.
        let (owner, ttl) = (Owner::new("host").unwrap(), Duration::from_secs(30));
        server.acquire(owner, Token(9), ttl, RequestId(9), true, false).await.expect("by force");
        let mut names: Vec<String> = Vec::new();
        while names.iter().filter(|name| *name == "serve").count() < 2 {
            for of_resource in soon(collector.request()).await.resource_spans {
                let spans = of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans);
                names.extend(spans.map(|span| span.name));
            }
        }
        assert_eq!(names.iter().any(|name| name == "write"), recorded, "{names:?}");
    }
}
