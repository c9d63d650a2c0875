//! The admin door of a gateway as it listens: each call by each role, over TLS, as a client makes it. What a call needs
//! besides its role is not there: whoever has passed the guard gets another answer than "found role".

use crate::admin::guarded_admin;
use crate::config::{GatewayConfig, TlsConfig};
use crate::node::{Node, Seams};
use crate::run::serve_api;
use bytes::Buf;
use holdfast_api::METHODS;
use holdfast_tls::make::{Wanted, certificates};
use holdfast_tls::{Dialer, Role, TlsFiles};
use holdfast_types::ByteSize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

const PATIENCE: Duration = Duration::from_secs(60);
const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/roles.md"));
/// The columns of the page.
const COLUMNS: [Role; 5] = [Role::Viewer, Role::Operator, Role::Admin, Role::Host, Role::Gateway];

/// Any message without a field in it, which is a message of each call; whatever is answered.
#[derive(Clone, Copy)]
struct Empty;

impl Codec for Empty {
    type Encode = ();
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Empty {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for Empty {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        from.advance(from.remaining());
        Ok(Some(()))
    }
}

/// The answer to one call.
async fn told(channel: &Channel, method: &str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = format!("/holdfast.admin.v1.Admin/{method}").parse().expect("a path");
    let asked = client.unary(Request::new(()), path, Empty);
    tokio::time::timeout(PATIENCE, asked).await.expect("an answer in time").map(|_| ())
}

/// The roles of each call on the page for people.
fn page() -> BTreeMap<String, Vec<Role>> {
    // Behind it comes the table of calls between gateways, which has no roles.
    let of_admin = PAGE.lines().take_while(|line| !line.starts_with("The protocol between gateways"));
    let rows = of_admin.filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(method, cells)| {
        let may = COLUMNS.into_iter().zip(cells.split('|')).filter(|(_, cell)| cell.trim() == "yes");
        (method.to_string(), may.map(|(role, _)| role).collect())
    })
    .collect()
}

async fn node(dir: &Path) -> Arc<Node> {
    crate::node_key::write_key(&dir.join("key"));
    let mut config = GatewayConfig { data_dir: dir.join("node"), ..GatewayConfig::default() };
    config.key.file = Some(dir.join("key"));
    config.cache.memory = ByteSize(32 << 20);
    config.cache.disk = ByteSize(0);
    let at = |file: &str| Some(dir.join(file));
    let (ca, certificate, key) = (at("ca.pem"), at("gateway.pem"), at("gateway.key"));
    config.tls = TlsConfig { ca, certificate, key, ..TlsConfig::default() };
    Node::open_over(config, CancellationToken::new(), Seams::default()).await.expect("a node")
}

fn client(dir: &Path, role: Role, address: &str) -> Channel {
    let at = |end: &str| Some(dir.join(format!("{role}.{end}")));
    let files = TlsFiles { ca: Some(dir.join("ca.pem")), certificate: at("pem"), key: at("key") };
    let dialer = Dialer::from(&files.load(role).expect("good files").expect("some"));
    dialer.channel(&dialer.endpoint(address).expect("an address"))
}

/// ACCESS-A1, through the listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_by_each_role_at_the_door_of_a_gateway() {
    let dir = tempfile::tempdir().expect("a directory");
    certificates(dir.path(), &Role::ALL.map(|role| Wanted::new(role.name(), role)), 30).expect("made");
    let node = node(dir.path()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve_api(listener, node.clone(), guarded_admin(node.clone(), None), stop.clone()));
    let page = page();
    assert_eq!(page.len(), METHODS.len(), "docs/operating/roles.md has each call");
    for role in COLUMNS {
        let channel = client(dir.path(), role, &address);
        for method in METHODS {
            let answer = told(&channel, method.name).await;
            let may = page[method.name].contains(&role);
            let found = format!("{}: found role {role} of certificate {role}, expected one of ", method.name);
            let refused = answer.as_ref().err().filter(|status| status.message().starts_with(&found));
            assert_eq!(refused.is_none(), may, "{} by {role}: {answer:?}", method.name);
            if let Some(status) = refused {
                assert_eq!(status.code(), Code::PermissionDenied);
            } else if let Err(status) = &answer {
                // The call was made, and not just lost on the way.
                let lost = [Code::Unimplemented, Code::Unauthenticated];
                assert!(!lost.contains(&status.code()), "{} by {role}: {status}", method.name);
            }
        }
    }
    stop.cancel();
    node.stop.cancel();
    node.close().await;
    let ended = tokio::time::timeout(PATIENCE, serving).await.expect("the door ends").expect("no panic");
    assert_eq!(ended.1, Ok(()));
}
