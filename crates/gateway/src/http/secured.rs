//! TLS of the HTTP listener (`tls.http`, ADR 0054): metrics and the page name sets and gateways, so they are for
//! certificates of people and monitoring. Health checks are for everybody, and say no more than their code to whoever
//! shows no such certificate. Where TLS is required, `/serves/SET` is none of them: by guesses it tells which sets
//! there are, so it is for those who may know that, and for hosts that may use the set.

use crate::doors::{Door, Place, Standing};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::{IncomingStream, Listener};
use holdfast_tls::{Acceptor, Caller, Handshakes, HttpClient, HttpConnection, HttpTls, Role};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Who may read everything here.
const READERS: [Role; 3] = [Role::Viewer, Role::Operator, Role::Admin];

/// The listener with TLS. Handshakes go on beside each other, each in the place of its connection (DOOR-D1).
pub(super) struct Secured {
    door: Door,
    handshakes: Handshakes<(SocketAddr, Place)>,
}

impl Secured {
    pub(super) fn new(door: Door, acceptor: Acceptor) -> Self {
        Self { door, handshakes: Handshakes::new(acceptor) }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    from: SocketAddr,
    client: HttpClient,
    /// At the listener.
    place: Option<Place>,
}

impl Asker {
    /// Who has shown a certificate.
    pub(super) fn caller(&self) -> Option<&Arc<Caller>> {
        match &self.client {
            HttpClient::Named(caller) => Some(caller),
            HttpClient::Plain | HttpClient::Unnamed => None,
        }
    }

    /// Its address.
    pub(super) fn address(&self) -> SocketAddr {
        self.from
    }

    /// As if it had come from an address that no machine has.
    #[cfg(test)]
    pub(super) fn for_test(client: HttpClient) -> Self {
        Self { from: SocketAddr::from(([192, 0, 2, 7], 4711)), client, place: None }
    }

    /// DOOR-D5: a client that gets an answer is known. A handshake shows nothing: anybody makes one.
    fn shows(&self, answer: &Answer) {
        if let (Some(place), Answer::Whole | Answer::Code) = (&self.place, answer) {
            place.shows(Standing::Asked);
        }
    }
}

impl Listener for Secured {
    type Io = HttpConnection;
    type Addr = Asker;

    async fn accept(&mut self) -> (HttpConnection, Asker) {
        loop {
            tokio::select! {
                biased;
                (connection, client, (from, place)) = self.handshakes.next() => {
                    return (connection, Asker { from, client, place: Some(place) });
                }
                (socket, from) = self.door.next() => {
                    let place = socket.place();
                    self.handshakes.begin(socket, (from, place));
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Asker> {
        Ok(Asker { from: self.door.local_addr()?, client: HttpClient::Plain, place: None })
    }
}

impl Connected<IncomingStream<'_, Secured>> for Asker {
    fn connect_info(stream: IncomingStream<'_, Secured>) -> Self {
        stream.remote_addr().clone()
    }
}

/// How much a client is told.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Whole,
    /// The code alone: warnings and reasons may name sets.
    Code,
    Refused(String),
}

/// Whether the client is a host that may use the set. Of a name with `%` in it, which no set has, no host may.
fn uses(client: &HttpClient, set: &str) -> bool {
    matches!(client, HttpClient::Named(caller) if caller.roles.contains(&Role::Host) && caller.may_use(set))
}

fn answer(client: &HttpClient, method: &Method, path: &str, mode: HttpTls) -> Answer {
    let of_set = path.strip_prefix("/serves/").is_some_and(|set| mode != HttpTls::Required || uses(client, set));
    // `GET /` is the page.
    let is_check =
        matches!(path, "/livez" | "/readyz" | "/healthz") || of_set || path == "/" && method == Method::OPTIONS;
    let found = match client {
        HttpClient::Plain if is_check && mode == HttpTls::Checks => return Answer::Code,
        HttpClient::Plain => {
            return Answer::Refused("found a request without TLS, expected https (tls.http)".to_string());
        }
        HttpClient::Named(caller) => match caller.has_one_of(&READERS) {
            Ok(()) => return Answer::Whole,
            Err(found) => found,
        },
        HttpClient::Unnamed => "found no certificate, expected one of a viewer, an operator or an admin".to_string(),
    };
    if is_check { Answer::Code } else { Answer::Refused(format!("{path}: {found}")) }
}

/// Before each request.
pub(super) async fn guard(
    State(mode): State<HttpTls>,
    ConnectInfo(asker): ConnectInfo<Asker>,
    request: Request,
    next: Next,
) -> Response {
    let told = answer(&asker.client, request.method(), request.uri().path(), mode);
    asker.shows(&told);
    match told {
        Answer::Whole => next.run(request).await,
        Answer::Code => next.run(request).await.status().into_response(),
        Answer::Refused(why) => {
            tracing::debug!(from = %asker.from, why, "an HTTP request was refused");
            (StatusCode::FORBIDDEN, format!("{why}\n")).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors;
    use holdfast_tls::make::{Wanted, certificates};
    use holdfast_tls::{Dialer, TlsFiles};
    use std::time::Duration;
    use tokio::net::{TcpListener, TcpStream};

    /// DOOR-D5.
    #[tokio::test]
    async fn a_handshake_alone_makes_nobody_known() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = [Wanted::new("g1", Role::Gateway), Wanted::new("vic", Role::Viewer)];
        certificates(dir.path(), &wanted, 30).unwrap();
        let load = |name: &str, role| {
            let at = |end: &str| Some(dir.path().join(format!("{name}.{end}")));
            let files = TlsFiles { ca: Some(dir.path().join("ca.pem")), certificate: at("pem"), key: at("key") };
            files.load(role).unwrap().unwrap()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let door = Door::new("a test's door", listener, doors::HTTPS);
        let mut secured = Secured::new(door, load("g1", Role::Gateway).acceptor());
        let connector = Dialer::from(&load("vic", Role::Viewer)).connector().unwrap();
        let client = async { connector.connect(TcpStream::connect(address).await.unwrap()).await.unwrap() };
        let both = async { tokio::join!(secured.accept(), client) };
        let ((_connection, asker), _client) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        let standing = || asker.place.as_ref().map(Place::standing);
        asker.shows(&Answer::Refused("no".to_string()));
        assert_eq!(standing(), Some(Standing::New));
        asker.shows(&Answer::Code);
        assert_eq!(standing(), Some(Standing::Asked));
    }

    #[test]
    fn metrics_and_the_page_are_for_certificates_and_checks_for_everybody() {
        let (plain, unnamed) = (HttpClient::Plain, HttpClient::Unnamed);
        let checks = ["/livez", "/readyz", "/healthz", "/serves/demo"].map(|path| (Method::GET, path));
        for (method, path) in checks.into_iter().chain([(Method::OPTIONS, "/")]) {
            let told = answer(&unnamed, &method, path, HttpTls::Required);
            let guesses = path == "/serves/demo";
            assert_eq!(matches!(told, Answer::Refused(_)), guesses, "{path}: {told:?}");
            assert!(guesses || told == Answer::Code, "{path}: {told:?}");
            assert_eq!(answer(&unnamed, &method, path, HttpTls::Checks), Answer::Code, "{path}");
            assert_eq!(answer(&plain, &method, path, HttpTls::Checks), Answer::Code, "{path}");
            assert!(matches!(answer(&plain, &method, path, HttpTls::Required), Answer::Refused(_)), "{path}");
        }
        for path in ["/metrics", "/serves", "/nothing", "/", "/page/state", "/page/style.css"] {
            for client in [&unnamed, &plain] {
                let told = answer(client, &Method::GET, path, HttpTls::Checks);
                assert!(matches!(told, Answer::Refused(_)), "{path}");
            }
        }
    }
}
