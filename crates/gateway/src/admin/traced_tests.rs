//! A gateway with a collector: what a grant at its door waited for (ADR 0078).

use super::AdminDoor;
use crate::config::{GatewayConfig, TracesConfig};
use crate::node::{Node, Seams};
use holdfast_api::{hex128, member_of, v1};
use holdfast_set::random::random_u128;
use holdfast_store::{Memory, ObjectStore, StoreError};
use holdfast_traces::TraceId;
use holdfast_traces::receiver::{Receiver, attribute};
use holdfast_types::{ByteSize, MemberId};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Longer than any test.
const PATIENCE: Duration = Duration::from_secs(60);
const CLUSTER: u128 = 9;

/// The answer of a call, once it is none that asks to come again.
async fn granted<T, E: std::fmt::Display>(mut call: impl AsyncFnMut() -> Result<T, E>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(refusal) => assert!(begun.elapsed() < PATIENCE, "{refusal}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A cluster of one gateway, whose stores are in memory.
async fn cluster(dir: &Path, traces: TracesConfig) -> Arc<Node> {
    crate::node_key::write_key(&dir.join("key"));
    let mut config = GatewayConfig { data_dir: dir.join("node"), traces, ..GatewayConfig::default() };
    config.key.file = Some(dir.join("key"));
    config.journal.bound = ByteSize(256 << 20);
    config.journal.reserve = ByteSize(64 << 20);
    config.journal.file = ByteSize(16 << 20);
    config.cache.memory = ByteSize(32 << 20);
    config.cache.disk = ByteSize(0);
    let memory = Arc::new(Memory::new());
    let seams = Seams {
        store: Arc::new(move |_, _: &str, _| {
            let store: Arc<dyn ObjectStore> = memory.clone();
            Box::pin(std::future::ready(Ok::<_, StoreError>(store)))
        }),
        ..Seams::default()
    };
    let node = Node::open_over(config, CancellationToken::new(), seams).await.expect("a node");
    node.adopt(CLUSTER, MemberId(1)).await.expect("adopted");
    let door = AdminDoor::new(node.clone());
    let us = door.get_node(v1::GetNodeRequest {}).await.expect("itself");
    let (members, request_id) = (vec![member_of(&us)], hex128(random_u128()));
    let init = v1::InitClusterRequest { cluster_id: hex128(CLUSTER), members, request_id };
    granted(async || door.init_cluster(init.clone()).await).await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_at_a_gateway_reaches_the_collector() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut collector = Receiver::start().await;
    let traces = TracesConfig { endpoint: Some(collector.endpoint.clone()), ..TracesConfig::default() };
    let node = cluster(dir.path(), traces).await;
    let exporter = node.take_exporter().expect("there is an endpoint");
    let exporting = tokio::spawn(exporter.run_every(Duration::from_millis(20)));
    assert!(node.take_exporter().is_none(), "one task sends");
    let door = AdminDoor::new(node.clone());
    let store = format!("file://{}", dir.path().join("store").display());
    let (name, request_id) = ("demo".to_string(), hex128(random_u128()));
    let create = v1::CreateSetRequest { name, store, request_id, policy: None };
    granted(async || door.create_set(create.clone()).await).await;
    let (set, owner, request_id) = ("demo".to_string(), "pg1".to_string(), hex128(random_u128()));
    let ask = v1::AcquireLeaseRequest { set, owner, request_id, ..Default::default() };
    let grant = granted(async || door.acquire_lease(ask.clone()).await).await;
    let epoch = grant.lease.expect("a grant has a lease").epoch;
    let names = ["serve", "serve.head", "serve.grant"];
    let spans = tokio::time::timeout(PATIENCE, collector.spans(&names)).await.expect("spans come");
    let serve = &spans["serve"];
    assert_eq!(serve.trace_id, TraceId::of_grant("demo", "pg1", epoch).bytes(), "as the agent names it");
    let found = ["set", "epoch", "continued"].map(|key| attribute(serve, key));
    assert_eq!(found, ["demo".to_string(), epoch.to_string(), "false".to_string()]);
    assert!(names[1..].iter().all(|part| spans[*part].parent_span_id == serve.span_id));
    node.stop.cancel();
    node.close().await;
    exporting.abort();
}

/// Nothing is noted, and there is no task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_an_endpoint_sends_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = cluster(dir.path(), TracesConfig::default()).await;
    assert!(node.take_exporter().is_none());
    node.stop.cancel();
    node.close().await;
}
