//! Certificates that are trusted or not, and proxies. The server is `openssl s_server`: rustls judges its certificate.

use crate::support::server::{Answer, Server};
use crate::support::{ID, SECRET, quick};
use bytes::Bytes;
use holdfast_store::{
    CHECK_LIMIT, Disposition, Health, Kind, Proxies, Secret, StoreError, StoreOptions, open, open_observed,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server with a certificate of its own; ends when dropped. It answers any GET with some page, which no store would
/// do: if its certificate was trusted, the request ends with an answer without an ETag.
struct TlsServer {
    child: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn openssl(dir: &Path, args: &[&str]) -> Result<(), String> {
    let ran = Command::new("openssl").args(args).current_dir(dir).stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| format!("openssl cannot be started: {error}"))?;
    assert!(ran.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(())
}

impl TlsServer {
    /// `Err` tells why there is none. `more`: further content of its self-signed certificate beside a name.
    fn start(more: &[&str]) -> Result<Self, String> {
        Self::named("/CN=store", more)
    }

    fn named(subject: &str, more: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().expect("directory");
        let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 -subj";
        let make: Vec<&str> = make.split(' ').chain([subject]).chain(more.iter().copied()).collect();
        openssl(dir.path(), &make)?;
        Self::serve(dir)
    }

    /// With a certificate that ended long ago: an authority's own, for this host.
    fn ended() -> Result<Self, String> {
        let dir = tempfile::tempdir().expect("directory");
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("address");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        let certificate = params.self_signed(&key).expect("certificate");
        std::fs::write(dir.path().join("cert.pem"), certificate.pem()).expect("write");
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).expect("write");
        Self::serve(dir)
    }

    /// With the `cert.pem` and `key.pem` of this folder.
    fn serve(dir: tempfile::TempDir) -> Result<Self, String> {
        // Another process may take the port meanwhile; then the server ends, and another port is tried.
        for _ in 0..5 {
            let address = StdListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("port");
            let mut child = Command::new("openssl")
                .args(["s_server", "-quiet", "-www", "-cert", "cert.pem", "-key", "key.pem", "-accept"])
                .arg(address.to_string())
                .current_dir(dir.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| format!("openssl cannot be started: {error}"))?;
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline && child.try_wait().expect("wait").is_none() {
                if StdStream::connect(address).is_ok() {
                    return Ok(Self { child, address, dir });
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("openssl s_server did not begin to listen");
    }

    fn certificate(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    fn options(&self) -> StoreOptions {
        options(&format!("https://127.0.0.1:{}", self.address.port()))
    }
}

fn options(endpoint: &str) -> StoreOptions {
    let mut retry = quick();
    retry.attempts_max = 2;
    StoreOptions {
        endpoint: Some(endpoint.to_owned()),
        access_key_id: Some(ID.to_owned()),
        secret_access_key: Some(Secret::new(SECRET)),
        retry,
        ..StoreOptions::default()
    }
}

async fn refused(options: &StoreOptions) -> StoreError {
    let store = open("s3://bucket", options).expect("open");
    store.put_new("k", Bytes::from_static(b"x")).await.expect_err("refused")
}

const ADDRESS: &str = "subjectAltName=IP:127.0.0.1";
const NOT_CA: [&str; 4] = ["-addext", ADDRESS, "-addext", "basicConstraints=critical,CA:FALSE"];

/// What `openssl req -x509` makes is an authority's own (CA:TRUE).
const CA: [&str; 2] = ["-addext", ADDRESS];

/// Whose certificate the bundle has.
enum Named {
    Itself,
    /// Another server's, of the same subject.
    Namesake,
    /// None: only the system's are trusted.
    Nothing,
}

#[tokio::test]
async fn a_certificate_is_trusted_where_it_is_named() {
    for more in [&NOT_CA[..], &CA] {
        let server = match TlsServer::start(more) {
            Ok(server) => server,
            Err(reason) => return holdfast_testkit::missing(&reason),
        };
        // Not SSL_CERT_FILE: the environment of the test may have an AWS_CA_BUNDLE, which goes before.
        let options = StoreOptions { ca_bundle: Some(server.certificate()), ..server.options() };
        let store = open("s3://bucket", &options).expect("open");
        let error = store.get("k").await.expect_err("no store");
        assert!(error.to_string().contains("without an ETag"), "{more:?}: trusted, and answered: {error}");
    }
}

/// curl refuses these, too.
#[tokio::test]
async fn an_authoritys_own_certificate_has_to_be_the_named_one_valid_and_this_hosts() {
    let elsewhere = ["-addext", "subjectAltName=DNS:elsewhere.example"];
    let clients = ["-addext", ADDRESS, "-addext", "extendedKeyUsage=clientAuth"];
    for (server, named, says) in [
        (TlsServer::start(&CA), Named::Nothing, "has this very certificate"),
        (TlsServer::start(&CA), Named::Namesake, "has this very certificate"),
        (TlsServer::ended(), Named::Itself, "renew the server's certificate"),
        (TlsServer::start(&elsewhere), Named::Itself, "another host's"),
        (TlsServer::start(&clients), Named::Itself, "InvalidPurpose"),
    ] {
        let server = match server {
            Ok(server) => server,
            Err(reason) => return holdfast_testkit::missing(&reason),
        };
        let namesake = TlsServer::start(&CA).expect("another");
        let mut options = server.options();
        options.ca_bundle = match named {
            Named::Nothing => None,
            Named::Namesake => Some(namesake.certificate()),
            Named::Itself => Some(server.certificate()),
        };
        let error = refused(&options).await;
        assert!(error.to_string().contains(says), "{says:?} in {error}");
        assert_eq!((error.disposition(), error.kind()), (Disposition::Denied, Some(Kind::Certificate)), "{error}");
    }
}

/// It needs a person: this is reported with advice, at once, and not as a broken connection.
#[tokio::test]
async fn a_certificate_that_is_refused_is_told_with_its_way_out() {
    let other = ["-addext", "subjectAltName=DNS:elsewhere.example", "-addext", "basicConstraints=critical,CA:FALSE"];
    for (more, trusted, says) in [
        (&NOT_CA[..], Some("/CN=other"), "AWS_CA_BUNDLE or SSL_CERT_FILE"),
        (&NOT_CA, Some("/CN=store"), "of the same name is trusted here"),
        (&CA, Some("/CN=other"), "CA:TRUE"),
        (&other, None, "another host's"),
    ] {
        let server = match TlsServer::start(more) {
            Ok(server) => server,
            Err(reason) => return holdfast_testkit::missing(&reason),
        };
        // Another authority's certificate, or its own. Not the system's: this test does not depend on what that trusts.
        let another = trusted.map(|subject| TlsServer::named(subject, &NOT_CA).expect("another"));
        let mut options = server.options();
        options.ca_bundle = Some(another.as_ref().unwrap_or(&server).certificate());
        let error = refused(&options).await;
        assert!(error.to_string().contains(says), "{says:?} in {error}");
        assert_eq!((error.disposition(), error.kind()), (Disposition::Denied, Some(Kind::Certificate)), "{error}");
        assert!(Kind::Certificate.needs_operator());
    }
}

/// No set is placed in such a store, and a gateway's metric pages somebody.
#[tokio::test]
async fn a_refused_certificate_decides_the_check_and_needs_an_operator() {
    let server = match TlsServer::start(&["-addext", "subjectAltName=DNS:elsewhere.example"]) {
        Ok(server) => server,
        Err(reason) => return holdfast_testkit::missing(&reason),
    };
    let mut options = server.options();
    options.ca_bundle = Some(server.certificate());
    let health = Arc::new(Health::new("demo"));
    let store = open_observed("s3://bucket", &options, health.clone()).expect("open");
    let error = holdfast_store::check(&*store, 1, CHECK_LIMIT).await.expect_err("refused");
    assert!(!error.is_undecided() && error.to_string().contains("invalid peer certificate"), "{error}");
    let now = health.standing(u64::MAX / 2).now.expect("trouble");
    assert_eq!((now.kind.name(), now.kind.needs_operator()), ("certificate", true), "{}", now.error);
}

/// TCP alone is no connection.
#[tokio::test]
async fn a_host_that_does_not_answer_to_tls_is_given_up_in_time() {
    let silent = StdListener::bind("127.0.0.1:0").expect("bind");
    let mut options = options(&format!("https://{}", silent.local_addr().expect("address")));
    options.connect_timeout_ms = 50;
    let error = open("s3://bucket", &options).expect("open").get("k").await.expect_err("no TLS");
    assert_eq!((error.disposition(), error.kind()), (Disposition::Retry, Some(Kind::NoAnswer)), "{error}");
    assert!(error.to_string().contains("no connection within 50ms"), "{error}");
}

/// A proxy that connects every CONNECT to `to`, and says whom it was asked for.
async fn connects_to(to: SocketAddr) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = near.read_u8().await else { return };
                    head.push(byte);
                }
                let _ = tell.send(String::from_utf8(head).expect("text"));
                let Ok(mut far) = TcpStream::connect(to).await else { return };
                let _ = near.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await;
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, told)
}

#[tokio::test]
async fn https_goes_through_the_proxy() {
    let name = ["-addext", "subjectAltName=DNS:store.test", "-addext", "basicConstraints=critical,CA:FALSE"];
    let server = match TlsServer::start(&name) {
        Ok(server) => server,
        Err(reason) => return holdfast_testkit::missing(&reason),
    };
    let (proxy, mut told) = connects_to(server.address).await;
    let mut options = options("https://store.test:9443");
    options.ca_bundle = Some(server.certificate());
    let url = Secret::new(format!("http://user:hunter2@{proxy}"));
    options.proxies = Proxies { https: Some(url), ..Proxies::default() };
    let error = open("s3://bucket", &options).expect("open").get("k").await.expect_err("no store");
    assert!(error.to_string().contains("without an ETag"), "trusted, and answered: {error}");
    let head = told.recv().await.expect("asked").to_lowercase();
    assert!(head.starts_with("connect store.test:9443 http/1.1\r\n"), "{head}");
    assert!(head.contains("proxy-authorization: basic dxnlcjpodw50zxiy"), "{head}");

    // NO_PROXY: nobody answers under that name.
    while told.try_recv().is_ok() {}
    options.proxies.except = Some("other.test,.store.test".to_owned());
    let error = open("s3://bucket", &options).expect("open").get("k").await.expect_err("no such host");
    assert!(!error.to_string().contains("ETag") && told.try_recv().is_err(), "{error}");
}

#[tokio::test]
async fn a_proxy_that_refuses_is_told_and_nothing_was_sent() {
    for (status, disposition, says) in [
        (407, Disposition::Denied, "http://USER:PASSWORD@HOST:PORT"),
        (503, Disposition::Retry, "tunnel error: unsuccessful"),
    ] {
        let proxy = Server::start((0..2).map(|_| Answer::Send(status, "", Bytes::new()))).await;
        let url = proxy.options.endpoint.clone().expect("URL");
        let mut options = options("https://store.test");
        options.proxies = Proxies { all: Some(Secret::new(url)), ..Proxies::default() };
        let error = refused(&options).await;
        assert_eq!(error.disposition(), disposition, "{error}");
        assert!(error.to_string().contains(says), "{says:?} in {error}");
        assert_eq!(proxy.lines()[0], "CONNECT store.test:443");
    }
}

#[tokio::test]
async fn plain_http_goes_through_its_own_proxy() {
    let proxy = Server::start([Answer::Send(200, "etag: \"1\"\r\n", Bytes::new())]).await;
    let mut options = options("http://store.test:9000");
    let url = proxy.options.endpoint.clone().expect("URL");
    options.proxies = Proxies { http: Some(Secret::new(url)), ..Proxies::default() };
    let store = open("s3://bucket", &options).expect("open");
    store.put_new("k", Bytes::from_static(b"x")).await.expect("put");
    assert_eq!(proxy.lines(), ["PUT http://store.test:9000/bucket/k?x-id=PutObject"]);
}

#[tokio::test]
async fn a_bundle_that_is_not_there_is_refused_when_the_store_is_opened() {
    let mut options = options("https://store.test");
    options.ca_bundle = Some(PathBuf::from("/nonexistent/ca.pem"));
    let error = open("s3://bucket", &options).expect_err("no bundle").to_string();
    assert!(error.contains("AWS_CA_BUNDLE: /nonexistent/ca.pem"), "{error}");
}
