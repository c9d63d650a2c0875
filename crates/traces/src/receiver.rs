//! A collector in this process, on loopback: for tests.

use crate::v1;
use crate::v1::trace_service_server::{TraceService, TraceServiceServer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Answers, and passes on what it got.
struct Collector {
    got: mpsc::UnboundedSender<v1::ExportTraceServiceRequest>,
    /// What it says of each request.
    answer: Result<v1::ExportTraceServiceResponse, Status>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<v1::ExportTraceServiceRequest>,
    ) -> Result<Response<v1::ExportTraceServiceResponse>, Status> {
        let _ = self.got.send(request.into_inner());
        self.answer.clone().map(Response::new)
    }
}

/// Listens until dropped.
pub struct Receiver {
    /// For the settings.
    pub endpoint: String,
    got: mpsc::UnboundedReceiver<v1::ExportTraceServiceRequest>,
    serving: JoinHandle<()>,
}

impl Receiver {
    /// Takes everything.
    pub async fn start() -> Self {
        Self::answering(Ok(v1::ExportTraceServiceResponse::default())).await
    }

    /// Says this of each request.
    pub async fn answering(answer: Result<v1::ExportTraceServiceResponse, Status>) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (tx, got) = mpsc::unbounded_channel();
        let service = TraceServiceServer::new(Collector { got: tx, answer });
        let served = Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener));
        let serving = tokio::spawn(async move { served.await.expect("serves") });
        Self { endpoint: format!("http://{address}"), got, serving }
    }

    /// The next request.
    pub async fn request(&mut self) -> v1::ExportTraceServiceRequest {
        self.got.recv().await.expect("the collector serves")
    }

    /// Waits for the first span of each of these names, in whichever request it comes.
    pub async fn spans(&mut self, names: &[&str]) -> BTreeMap<String, v1::Span> {
        let mut found = BTreeMap::new();
        while !names.iter().all(|name| found.contains_key(*name)) {
            for of_resource in self.request().await.resource_spans {
                for span in of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans) {
                    found.entry(span.name.clone()).or_insert(span);
                }
            }
        }
        found
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The value of an attribute as text; "" if it is not there.
pub fn attribute(span: &v1::Span, key: &str) -> String {
    use v1::any_value::Value;
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()).and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(is)) => is.to_string(),
        None => String::new(),
    }
}
